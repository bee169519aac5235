"""From plans to tasks: numbers, names, keys and seeds."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rarely.campaign.campaign import Campaign
from rarely.campaign.tasks import Task
from rarely.campaign.work import build_problem
from rarely.core.errors import FormatError, InputError
from rarely.demo import assets


def tasks(plan: dict[str, Any]) -> list[Task]:
    return [task for chunk in Campaign(plan).expansion.chunks() for task in chunk.tasks]


def test_every_combination_once(plan: dict[str, Any]) -> None:
    plan["matrix"] = {"particles": [20, 30]}
    plan["problems"][0]["norms"] = ["inf", "2"]
    found = tasks(plan)
    campaign = Campaign(plan)
    assert len(found) == len(campaign) == 10 * 2 * 3 * 2 * 2
    assert [task.index for task in found] == list(range(len(found)))
    assert len({task.key for task in found}) == len({task.name for task in found}) == len(found)
    assert found[0].name == "net data.npz[0] linf 0.1 splitting particles=20 steps=1 islands=2 log_p_min=-12.0 #0"
    summary = campaign.summary()
    assert summary.problems == 240
    assert summary.chunks == len(list(campaign.expansion.chunks())) == 4 * 9
    assert summary.groups == (("net data.npz linf", 120), ("net data.npz l2", 120))


def test_keys_and_seeds_follow_content_and_not_places(plan: dict[str, Any], tmp_path: Path) -> None:
    before = list(Campaign(plan).expansion.chunks())
    assert before == list(Campaign(plan).expansion.chunks())
    moved = copy.deepcopy(plan)
    other = tmp_path / "elsewhere"
    other.mkdir()
    for name in ("net.py", "data.npz"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    moved["networks"][0]["path"] = f"{other}/net.py:Net"
    moved["problems"][0]["dataset"] = str(other / "data.npz")
    after = list(Campaign(moved).expansion.chunks())
    assert [task.key for c in after for task in c.tasks] == [task.key for c in before for task in c.tasks]
    assert [c.seed for c in after] == [c.seed for c in before]
    assert len({c.seed for c in before}) == len(before)

    for change in (
        lambda p: p["estimator"].update(particles=21),
        lambda p: p.update(budget={"calls": 10_000}),
        lambda p: p["problems"][0].update(clip=[-1, 2]),
        lambda p: p["problems"][0].update(norms=["2"]),
        lambda p: (other / "net.py").write_text((tmp_path / "net.py").read_text() + "\n"),
    ):
        changed = copy.deepcopy(moved)
        change(changed)
        keys = {task.key for c in Campaign(changed).expansion.chunks() for task in c.tasks}
        assert keys.isdisjoint(task.key for c in before for task in c.tasks)


def test_labels_classes_and_indices(plan: dict[str, Any], tmp_path: Path) -> None:
    table = plan["problems"][0]
    with np.load(tmp_path / "data.npz") as data:
        labels = data["labels"]
    table.update(indices=[4, 2], classes=["<b>zero</b>"])
    found = tasks(plan)
    assert {task.item for task in found} == {"data.npz[4]", "data.npz[2]"}
    shown = ["<b>zero</b>" if label == 0 else str(label) for label in labels]
    assert {task.item: task.label for task in found} == {f"data.npz[{i}]": shown[i] for i in (4, 2)}
    table.update(indices="7:")
    assert {task.item for task in tasks(plan)} == {"data.npz[7]", "data.npz[8]", "data.npz[9]"}
    for wrong in ([10], "10:", "3:3"):
        table.update(indices=wrong)
        with pytest.raises(InputError, match="has 10 images, which indices"):
            Campaign(plan)
    table.update(indices=None, clip=[0.5, 1])
    with pytest.raises(InputError, match="outside clip"):
        Campaign(plan)


def test_property_files(tmp_path: Path) -> None:
    nodes = "Input x0\nInput x1\nLinear y 0.0 1.0 x0 1.0 x1\n"
    box = "".join(f"Assert <= 0.0 1.0 x{i}\nAssert >= 1.0 1.0 x{i}\n" for i in range(2))
    (tmp_path / "f").mkdir()
    for name, level in (("a", 1.5), ("b", 1.8)):
        (tmp_path / "f" / f"{name}.rlv").write_text(f"{nodes}{box}Assert <= {level} 1.0 y\n")
    found = tasks({"problems": [{"rlv": str(tmp_path / "f")}], "campaign": {"replicates": 2}})
    assert [(task.item, task.replicate, task.network) for task in found] == [
        ("a.rlv", 0, ""), ("a.rlv", 1, ""), ("b.rlv", 0, ""), ("b.rlv", 1, ""),
    ]  # fmt: skip
    assert build_problem(found[0]).name == "a.rlv #0"
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no \.rlv file"):
        Campaign({"problems": [{"rlv": str(tmp_path / "empty")}]})
    with pytest.raises(FormatError, match="no such file"):
        Campaign({"problems": [{"vnnlib": "no-such-*.vnnlib"}], "networks": [{"path": f"{tmp_path}/f/a.rlv"}]})


@pytest.mark.parametrize("links", [{"a": "."}, {"a": ".", "b": "."}, {"one/x": "../two", "two/y": "../one"}])
def test_links_that_lead_back_are_refused(tmp_path: Path, links: dict[str, str]) -> None:
    """One gave 41 problems of one file, two of them took for ever."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shutil.copy(assets() / "brake-30m.vnnlib", tmp_path / name)
    plan = {
        "networks": [{"path": str(assets() / "cruise.onnx")}],
        "problems": [{"vnnlib": [f"{tmp_path}/**/*.vnnlib"]}],
    }
    (tmp_path / "elsewhere").symlink_to(assets())
    assert len(Campaign(plan)) > 2
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    with pytest.raises(FormatError, match="is a link to a folder that it lies in"):
        Campaign(plan)


def test_settings_that_the_estimator_does_not_have_are_told(plan: dict[str, Any]) -> None:
    plan["estimator"] = {"method": "monte-carlo", "particles": 3}
    with pytest.raises(InputError, match="the plan: estimator: particles does not apply to the estimator monte-carlo"):
        Campaign(plan)


def test_a_file_that_changes_during_the_run_is_refused(plan: dict[str, Any], tmp_path: Path) -> None:
    (task, *_) = tasks(plan)
    (tmp_path / "data.npz").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"data.npz changed while the campaign was running"):
        build_problem(task)
