"""Plans: what is accepted, how faults are told, and that the TOML of a plan gives the plan back."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rarely.campaign.plan import read_plan
from rarely.core.errors import FormatError, InputError, RarelyError

NETWORKS = [{"path": "a.onnx"}]
DATASET: dict[str, Any] = {"dataset": "x.npz", "radii": [0.1, 0.2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"problems": [DATASET]}, r"problems\[0\] needs a network"),
        ({"networks": NETWORKS}, "problems: Field required"),
        ({"networks": NETWORKS, "problems": []}, "problems: Tuple should have at least 1"),
        ({"networks": NETWORKS, "problems": [{"radii": [1]}]}, r"problems\[0\]: one of the keys dataset, vnnlib"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "rlv": "x"}]}, r"problems\[0\]: one of the keys"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "radi": 1}]}, r"problems\[0\].radi: there is no such key"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "dataset": 3}]}, r"problems\[0\].dataset: .*valid string"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "radii": [0.1, -1]}]}, r"radii\[1\]: .*greater than 0"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "radii": [0.1, 0.1]}]}, r"radii: a value stands there twice"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "indices": "1-3"}]}, r"indices: a range is written"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "clip": [1, 0]}]}, r"clip: the first number"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "norms": ["3"]}]}, r"norms\[0\]: Input should be 'inf'"),
        ({"networks": NETWORKS, "problems": [{**DATASET, "networks": ["b"]}]}, "'b' is none of a.onnx"),
        ({"networks": NETWORKS * 2, "problems": [DATASET]}, "two have the same name"),
        ({"networks": NETWORKS, "problems": [DATASET], "matrix": {"particle": [1]}}, "matrix.particle: there is no"),
        ({"networks": NETWORKS, "problems": [DATASET], "matrix": {"steps": ["x"]}}, "matrix.steps"),
        ({"networks": NETWORKS, "problems": [DATASET], "estimator": {"method": "magic"}}, "estimator.method: "),
        ({"networks": NETWORKS, "problems": [DATASET], "budget": {"hours": 3}}, "budget.hours: there is no such"),
    ],
)
def test_faults_name_their_key(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"the plan: .*{message}|the plan: {message}"):
        read_plan(content)


def test_faults_of_a_file_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text("[campaign]\nsed = 3\n[[problems]]\nrlv = 'x'\n")
    with pytest.raises(FormatError, match=r"night.toml: campaign.sed: there is no such key"):
        read_plan(file)
    file.write_text("[campaign\n")
    with pytest.raises(FormatError, match=r"night.toml: not TOML.*line 1"):
        read_plan(file)
    with pytest.raises(RarelyError, match=r"day\.toml"):
        read_plan(tmp_path / "day.toml")


def test_a_file_lends_its_name_and_folder(tmp_path: Path) -> None:
    (tmp_path / "night.toml").write_text("[[problems]]\nrlv = 'x'\n")
    plan, folder = read_plan(tmp_path / "night.toml")
    assert plan.campaign.name == "night"
    assert folder == tmp_path


def test_the_toml_of_a_plan_gives_it_back() -> None:
    content = {
        "campaign": {"name": 'a "quoted" é\n\x7f name', "seed": 7},
        "networks": [{"path": "a.onnx", "mean": [0.5], "std": [0.25]}, {"path": "m:f", "name": "second"}],
        "problems": [
            {**DATASET, "norms": ["inf", 2], "indices": "0:3", "clip": [0, 1], "classes": ["</script>"]},
            {"vnnlib": "*.vnnlib", "networks": ["second"]},
            {"rlv": "folder", "input_model": "gaussian:0.1"},
            {"instances": "instances.csv"},
        ],
        "estimator": {"method": "splitting", "steps": "auto"},
        "matrix": {"particles": [100, 200]},
        "budget": {"calls": 1000},
    }
    plan, _ = read_plan(content)
    again, _ = read_plan(tomllib.loads(plan.to_toml()))
    assert again == plan
    assert [settings.shown for settings in plan.settings()] == [
        "splitting particles=100 steps=auto",
        "splitting particles=200 steps=auto",
    ]
