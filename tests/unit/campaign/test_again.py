"""An answer that was written, asked again: the same to the bit, compatible, or different; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rarely
from rarely.campaign.again import Agreement, read_answers, replay
from rarely.campaign.asked import Asked, Pictures, changed, recorded, seen
from rarely.campaign.gate import decide, decide_each, together
from rarely.core.errors import FormatError, InputError
from rarely.questions.threshold import Ruling

SUM = """import torch


def make():
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        network[1].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    return network
"""
# Inputs in the unit square; a violation where the first output is at least 0.9: p = 0.1.
CORNER = "".join(f"(declare-const {v} Real)\n" for v in ("X_0", "X_1", "Y_0", "Y_1")) + "".join(
    f"(assert ({op} X_{i} {bound}))\n" for i in range(2) for op, bound in ((">=", 0), ("<=", 1))
)
ESTIMATE = {"estimator": "monte-carlo", "samples": 2000, "confidence": 0.95, "seed": 3}
CERTIFY = {"p_max": 0.2, "confidence": 0.95, "timeout": 20.0, "seed": 0, "max_evaluations": None, "device": "cpu",
           "dtype": None}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(SUM)
    (tmp_path / "corner.vnnlib").write_text(f"{CORNER}(assert (>= Y_0 0.9))\n")
    np.savez(tmp_path / "x.npz", images=np.array([[0.9, 0.1], [0.2, 0.8]], dtype=np.float32))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(asked: Asked, answer: Any, file: str = "answer.json") -> Path:
    made = {**answer.provenance, **recorded(asked, seen(asked), "rarely ...", None)}
    Path(file).write_text(replace(answer, provenance=made).to_json())
    return Path(file)


def an_estimate(**changes: Any) -> tuple[Asked, Any]:
    asked = Asked("estimate", "net.py:make", "corner.vnnlib", settings={**ESTIMATE, **changes})
    method = rarely.MonteCarlo(samples=asked.settings["samples"])
    return asked, rarely.estimate(asked.problem(), method, seed=asked.settings["seed"])


def again(file: Path, *folders: Path, trust_code: bool = True) -> tuple[Agreement, str]:
    (done,) = replay(read_answers(file), folders, trust_code=trust_code, source=str(file))
    return done.agreement, done.told


def test_an_estimate_is_the_same_to_the_bit(folder: Path) -> None:
    agreement, told = again(written(*an_estimate()))
    assert agreement is Agreement.SAME
    assert "p = 0.1" in told


def test_another_number_is_compatible_or_not(folder: Path) -> None:
    """The answer of another seed stands for that of another machine, that of another limit for a wrong one."""
    asked, _ = an_estimate()
    _, other = an_estimate(seed=4)
    agreement, told = again(written(asked, other))
    assert agreement is Agreement.COMPATIBLE
    assert "now over then is" in told
    (folder / "far.vnnlib").write_text(f"{CORNER}(assert (>= Y_0 0.6))\n")
    wrong = rarely.estimate(replace(asked, property="far.vnnlib").problem(), rarely.MonteCarlo(samples=2000), seed=3)
    agreement, told = again(written(asked, wrong))
    assert agreement is Agreement.DIFFERS
    assert "now over then is 0.2" in told


def test_another_outcome_differs(folder: Path) -> None:
    asked, _ = an_estimate()
    (folder / "never.vnnlib").write_text(f"{CORNER}(assert (>= Y_0 5))\n")
    safe = rarely.estimate(replace(asked, property="never.vnnlib").problem(), seed=3)
    agreement, told = again(written(asked, safe))
    assert agreement is Agreement.DIFFERS
    assert told.startswith("it was proved safe, and is violated")


def test_a_decision_and_a_gate(folder: Path) -> None:
    asked = Asked("certify", "net.py:make", "corner.vnnlib", settings=CERTIFY)
    assert again(written(asked, decide(asked.problem(), CERTIFY)))[0] is Agreement.SAME
    about = Pictures("x.npz", (0.5,), "inf", (0.0, 1.0))
    asked = Asked("certify", "net.py:make", images=about, settings=CERTIFY)
    standing = asked.entrants()
    gate = together([one for one, _ in standing], list(decide_each([p for _, p in standing], CERTIFY)))
    assert gate.ruling is Ruling.ACCEPTED
    file = written(asked, gate)
    assert again(file)[0] is Agreement.SAME
    data = json.loads(file.read_text())
    data["decisions"][1]["ruling"] = data["ruling"] = "rejected"
    file.write_text(json.dumps(data))
    agreement, told = again(file)
    assert agreement is Agreement.DIFFERS
    assert "it was rejected" in told


def test_files_that_moved_are_found_and_files_that_changed_refused(folder: Path) -> None:
    file = written(*an_estimate())
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for name in ("net.py", "corner.vnnlib"):
        (folder / name).rename(elsewhere / name)
    assert again(file, elsewhere)[0] is Agreement.SAME
    (elsewhere / "corner.vnnlib").write_text(f"{CORNER}(assert (>= Y_0 0.8))\n")
    with pytest.raises(InputError, match=r"property corner.vnnlib: not the file that the answer is about"):
        again(file, elsewhere)
    (elsewhere / "corner.vnnlib").unlink()
    with pytest.raises(FormatError, match="cannot be read"):
        again(file, elsewhere)


def test_code_is_not_run_unless_it_is_trusted(folder: Path) -> None:
    (folder / "spy.py").write_text(f"import pathlib\npathlib.Path('ran').touch()\n{SUM}")
    asked, answer = an_estimate()
    file = written(replace(asked, network="spy.py:make"), answer)
    with pytest.raises(InputError, match=r"spy.py:make is to be run, which is code: say --trust-code"):
        again(file, trust_code=False)
    assert not (folder / "ran").exists()
    assert again(file)[0] is Agreement.SAME
    assert (folder / "ran").exists()
    assert Asked("estimate", "whole.pt", trust_pickle=True).code() == ["whole.pt"]
    (folder / "net:make").touch()  # a file of this name does not make it data
    assert Asked("estimate", "w.safetensors", architecture="net:make").code() == ["net:make"]
    assert not Asked("estimate", "n.onnx", "p.vnnlib", input_model="gaussian:0.1").code()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p.pop("asked"), "does not say what was asked"),
        (lambda p: p.pop("files"), "does not say what was asked"),
        (lambda p: p["asked"].update(surprise=1), "surprise"),
        (lambda p: p["asked"].update(network=["x"]), "network"),
        (lambda p: p["asked"].update(question="certify"), "none to the question"),
        (lambda p: p["asked"]["settings"].update(seed="x"), "seed = 'x' cannot be used"),
        (lambda p: p["asked"]["settings"].update(estimator="os.system"), "cannot be used"),
        (lambda p: p["asked"]["settings"].update(execution=1), "execution = 1 cannot be used"),
        (lambda p: p["asked"]["settings"].pop("seed"), "the setting seed is missing"),
        (lambda p: p.update(asked="all"), "what was asked cannot be read"),
    ],
)
def test_what_cannot_be_asked_again(folder: Path, change: Any, says: str) -> None:
    file = written(*an_estimate())
    data = json.loads(file.read_text())
    change(data["provenance"])
    file.write_text(json.dumps(data))
    with pytest.raises((InputError, FormatError), match=says):
        again(file)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", "<html>", '{"rows": []}', '{"ruling": 1}', "[" * 100_000])
def test_what_is_no_answer(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FormatError, match=r"x\.json"):
        read_answers(tmp_path / "x.json")


def test_files_by_their_role_and_content(folder: Path) -> None:
    asked, _ = an_estimate()
    before = seen(asked)
    assert [(one["role"], one["name"]) for one in before["files"]] == [
        ("network", "net.py"), ("property", "corner.vnnlib"),
    ]  # fmt: skip
    assert {len(one["sha256"]) for one in before["files"]} == {64}
    assert "torch" in before["packages"]
    (folder / "corner.vnnlib").write_text("changed")
    assert changed(before, seen(asked)) == ["property corner.vnnlib"]


def test_a_folder_of_many_pictures_is_listed_in_part(folder: Path) -> None:
    (folder / "many").mkdir()
    for i in range(60):
        (folder / "many" / f"{i:02}.png").write_bytes(b"%d" % i)
    asked = Asked("certify", "whole.pt", images=Pictures("many", (0.1,), "inf"))
    files = seen(asked)["files"]
    assert len(files) == 1 + 50 + 1
    assert files[-1]["name"] == "10 more"
    before = seen(asked)
    (folder / "many" / "59.png").write_bytes(b"other")
    assert changed(before, seen(asked)) == ["inputs 10 more"]
