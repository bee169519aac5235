"""`rarely certify` for images, `rarely evidence` and `rarely compare`, in this process: what a user types and gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from cli_helpers import save_linear
from referencing import Registry, Resource
from typer.testing import CliRunner

from rarely.demo import assets

Inside = Callable[..., str]
SCHEMAS = Path(__file__).parents[2] / "docs" / "reference"
FAST = ("-e", "monte-carlo", "--samples", 2000)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """The command in this process and in an empty folder: what it prints, both streams."""
    from rarely.cli.app import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return done.output

    return run


@pytest.fixture
def brighter(tmp_path: Path) -> Path:
    """Two grey pixels, class 1 where the second is brighter; two images are far from changing and one is not."""
    np.savez(
        tmp_path / "x.npz",
        images=np.array([[0.9, 0.1], [0.1, 0.9], [0.52, 0.48]], dtype=np.float32),
        labels=np.array([0, 1, 0]),
    )
    return save_linear(tmp_path / "brighter.onnx", [[1, 0], [0, 1]], (1, 1, 1, 2))


def validated(file: Path) -> dict[str, object]:
    schemas = {
        name: json.loads((SCHEMAS / name).read_text()) for name in ("estimate.schema.json", "decision.schema.json")
    }
    registry = Registry().with_resources((name, Resource.from_contents(schema)) for name, schema in schemas.items())
    data: dict[str, object] = json.loads(file.read_text())
    which = "estimate.schema.json" if "outcome" in data else "decision.schema.json"
    jsonschema.Draft202012Validator(schemas[which], registry=registry).validate(data)
    return data


def test_a_gate_for_images_and_its_evidence(inside: Inside, brighter: Path, tmp_path: Path) -> None:
    about = ("certify", brighter, "--inputs", "x.npz", "--clip", 0, 1, "--p-max", 0.2, "--json", "g.json")
    text = inside(*about, "--eps", 0.1, code=1)
    assert "rejected: not p < 0.2 for all: of 3, 2 accepted, 1 rejected" in text
    data = validated(tmp_path / "g.json")
    assert [one["ruling"] for one in data["decisions"]] == ["accepted", "accepted", "rejected"]  # type: ignore[index, attr-defined]
    assert list(np.load(tmp_path / "witness.npz")["names"]) == [f"{i} eps 0.1" for i in range(3)]
    assert "accepted: p < 0.2 for each of 3" in inside(*about, "--eps", 0.01)
    validated(tmp_path / "g.json")
    assert "Written: page.html" in inside("evidence", "g.json", "-o", "page.html")
    assert "same to the bit: accepted" in inside("evidence", "page.html", "--replay")


def test_a_decision_its_page_and_its_replay(inside: Inside, tmp_path: Path) -> None:
    files = (assets() / "cruise.onnx", assets() / "brake-30m.vnnlib")
    inside("certify", *files, "--p-max", 1e-9, "--dtype", "float32", "--json", "c.json", "-q", code=1)
    data = validated(tmp_path / "c.json")
    made = data["provenance"]
    assert made["command"].startswith("rarely certify ")  # type: ignore[index]
    assert made["witnesses"]["name"] == "witness.npz"  # type: ignore[index]
    inside("evidence", "c.json", "-q")
    page = (tmp_path / "evidence.html").read_text()
    assert "refuted" in page
    told = json.loads(inside("evidence", "evidence.html", "--replay", "--json", "-"))
    assert told["agreement"] == "same to the bit"
    other = json.loads((tmp_path / "c.json").read_text()) | {"ruling": "accepted"}
    (tmp_path / "forged.json").write_text(json.dumps(other))
    assert "differs: it was accepted, and is rejected" in inside("evidence", "forged.json", "--replay", code=1)


def test_one_of_several_estimates(inside: Inside, tmp_path: Path) -> None:
    rlv = tmp_path / "nets"
    rlv.mkdir()
    square = "".join(f"Assert <= 0.0 1.0 x{i}\nAssert >= 1.0 1.0 x{i}\n" for i in range(2))
    for name, limit in (("common", 1.5), ("corner", 1.8)):
        (rlv / f"{name}.rlv").write_text(
            f"Input x0\nInput x1\nLinear y 0.0 1.0 x0 1.0 x1\n{square}Assert <= {limit} 1.0 y\n"
        )
    inside("estimate", "nets", *FAST, "--json", "many.json", "-q")
    assert "has 2 answers, and a page is about one: say --only NAME" in inside("evidence", "many.json", code=2)
    inside("evidence", "many.json", "--only", "corner", "-q")
    assert "compatible" not in inside("evidence", "many.json", "--replay")  # the batch is the same, too
    alone = inside("evidence", "evidence.html", "--replay", code=3)  # in the batch, other problems drew before it
    assert "corner: statistically compatible: violated, as it was; now over then is" in alone
    assert "0 answers are called 'x'" in inside("evidence", "many.json", "--only", "x", code=2)
    inside("estimate", rlv / "corner.rlv", *FAST, "--seed", 4, "--json", "b.json", "-q")
    validated(tmp_path / "b.json")
    data = json.loads((tmp_path / "many.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(data[0]))
    (tmp_path / "two.json").write_text(json.dumps([data[1]] * 2))
    text = inside("compare", "a.json", "two.json", code=2)
    assert "no problem has the same name in both, and there are 1 and 2 of them" in text
    assert "1 problem matched and done in both; 0 matched but not done; 1 only in A" in inside(
        "compare", "many.json", "b.json"
    )
    text = inside("compare", "a.json", "b.json", "--html", "c.html", "--csv", "c.csv")
    assert "1 problem matched, by their place, since no name is the same, and done in both" in text
    assert "B fails less" in text
    assert "<script" not in (tmp_path / "c.html").read_text()
    row = json.loads(inside("compare", "a.json", "b.json", "--json", "-"))["pairs"][0]
    assert row["difference"] == pytest.approx(np.log(0.02 / 0.125), abs=0.7)
    assert row["low"] < row["difference"] < row["high"] < 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["certify", "n.onnx", "p.vnnlib", "--inputs", "x.npz", "--eps", "1"], "leave p.vnnlib away"),
        (["certify", "n.onnx", "--inputs", "x.npz"], "--inputs needs --eps"),
        (["certify", "n.onnx", "p.vnnlib", "--eps", "1", "--noise", "blur"], "--eps and --noise are about images"),
        (["certify", "n.onnx", "--inputs", "x.npz", "--eps", "-1"], "--eps must be positive"),
        (["certify", "n.onnx", "--inputs", "x.npz", "--eps", "1", "--input-model", "uniform"], "leave --input-model"),
        (["evidence", "none.json"], "none.json: cannot be read"),
        (["evidence", "none.json", "--files", "."], "belong to --replay"),
        (["compare", ".", "b.json"], "rarely campaign compare . b.json"),
    ],
)
def test_what_does_not_go_together(inside: Inside, arguments: list[str], says: str) -> None:
    assert says in inside(*arguments, code=2)


def test_noise_of_other_kinds_in_robustness(inside: Inside, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).uniform(0.3, 0.7, (2, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", pixels)
    net = save_linear(tmp_path / "n.onnx", np.random.default_rng(1).normal(size=(64, 3)), (1, 1, 8, 8))
    for noise, eps, words in (("gaussian", 0.3, "standard deviation"), ("rotation:40,shift_x:3", 1, "factor of the")):
        inside("robustness", net, "--inputs", "x.npy", "--noise", noise, "--eps", eps, *FAST, "-q",
               "--plot", "r.svg", "--json", "r.json")  # fmt: skip
        data = json.loads((tmp_path / "r.json").read_text())
        assert data["noise"] == noise
        assert data["provenance"]["asked"]["question"] == "robustness"
        assert words in (tmp_path / "r.svg").read_text()
        inside("plot", "r.json", "--kind", "distribution", "-o", "d.svg", "-q")
    assert "decides nothing; `rarely certify --inputs` does" in inside("evidence", "r.json", code=2)
