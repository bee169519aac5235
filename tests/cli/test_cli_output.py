"""What is printed and written when something is in the way: a full disk, a read-only folder, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import save_linear
from typer.testing import CliRunner

from rarely.cli import output
from rarely.cli.app import app
from rarely.core.errors import InputError
from rarely.io.files import replacing

FAST = ("-e", "monte-carlo", "--samples", "3000")
FULL = "No space left on device"


def run(*arguments: object) -> Any:
    output.screen.cache_clear()
    return CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, list(map(str, arguments)))


@pytest.fixture
def files(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which names that begin with `full` are on a device that takes nothing."""
    save_linear(tmp_path / "brighter.onnx", [[1, 0], [0, 1]], (1, 1, 1, 2))
    np.save(tmp_path / "x.npy", np.array([[0.6, 0.4], [0.4, 0.6]], dtype=np.float32))
    for name in ("full.json", "full.npz", "full.svg", "full.csv", "full.txt"):
        (tmp_path / name).symlink_to("/dev/full")
    for name in ("sum.onnx", "corner.vnnlib"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ESTIMATE = ("estimate", "sum.onnx", "corner.vnnlib", *FAST)
ROBUSTNESS = ("robustness", "brighter.onnx", "--inputs", "x.npy", "--eps", "0.2", *FAST)
CERTIFY = ("certify", "sum.onnx", "corner.vnnlib", "--p-max", "1e-3")


@pytest.mark.parametrize(
    ("command", "option", "result"),
    [
        (ESTIMATE, ("--json", "full.json"), "violated"),
        (ESTIMATE, ("--witnesses", "full"), "violated"),
        (ESTIMATE, ("--plot", "full.svg"), "violated"),
        (ROBUSTNESS, ("--json", "full.json"), "violated"),
        (ROBUSTNESS, ("--csv", "full.csv"), "violated"),
        (ROBUSTNESS, ("--plot", "full.svg"), "violated"),
        (CERTIFY, ("--json", "full.json"), "rejected"),
        (CERTIFY, ("--witness", "full.npz"), "rejected"),
        (("inspect", "sum.onnx"), ("--json", "full.json"), "parameters"),
        (("verify", "sum.onnx", "corner.vnnlib"), ("--result", "full.txt"), "sat"),
    ],
)
def test_a_full_disk_keeps_no_result_from_being_seen(
    files: Path, command: tuple[str, ...], option: tuple[str, str], result: str
) -> None:
    done = run(*command, *option)
    assert done.exit_code == 2, done.output
    assert result in done.stdout
    assert f"cannot be written: {FULL}" in done.stderr
    assert "Traceback" not in done.output


def test_what_nobody_asked_to_see_is_shown_when_it_would_be_lost(files: Path) -> None:
    done = run(*ESTIMATE, "--quiet", "--json", "full.json")
    assert done.exit_code == 2
    assert "violated" in done.stderr
    assert done.stdout == ""


def test_what_can_be_written_is(files: Path) -> None:
    done = run(*ROBUSTNESS, "--json", "full.json", "--csv", "rows.csv", "--plot", "full.svg")
    assert done.exit_code == 2
    assert f"full.json cannot be written: {FULL}; full.svg cannot be written: {FULL}" in done.stderr
    assert len((files / "rows.csv").read_text().splitlines()) == 3


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    file.write_text("old")

    def half(draft: Path) -> None:
        draft.write_text("half")
        raise OSError(28, FULL)

    with pytest.raises(InputError, match=f"cannot be written: {FULL}"):
        output.write_file(file, half)
    assert file.read_text() == "old"
    with replacing(file) as draft, replacing(draft) as inner:
        inner.write_text("new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_places_that_take_no_file_are_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.json").write_text("{}")
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # tests may run as root, who may write anywhere
    for name, told in (("old.json", "it is read-only"), ("new.json", f"the folder {tmp_path} is read-only")):
        with pytest.raises(InputError, match=f"cannot be written: {told}"):
            output.check_writable(tmp_path / name)


def test_a_screen_that_takes_nothing_keeps_no_file_from_being_written(tmp_path: Path) -> None:
    def show() -> None:
        raise OSError(28, FULL)

    with pytest.raises(OSError, match=FULL):
        output.deliver(show, True, lambda: output.write_json(tmp_path / "e.json", {"p": 1}))
    assert json.loads((tmp_path / "e.json").read_text()) == {"p": 1}


INTERRUPTED = """
import os, signal
calls = 0

def network(x):
    global calls
    calls += len(x)
    if calls > 20_000:
        os.kill(os.getpid(), signal.SIGINT)
        calls = 0
    return x.flatten(1)
"""


@pytest.fixture
def interrupting(files: Path) -> Path:
    """A network that sends Ctrl-C at its 20,000th call."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    (files / "slow.py").write_text(INTERRUPTED)
    np.save(files / "x.npy", np.array([[0.9, 0.1], [0.55, 0.45], [0.1, 0.9]], dtype=np.float32))
    return files


def test_an_interrupted_run_writes_what_it_knows(interrupting: Path) -> None:
    done = run(
        "robustness", "slow.py:network", "--inputs", "x.npy", "--eps", "0.4,0.1", "-e", "monte-carlo", "--samples",
        10**9, "--json", "r.json",
    )  # fmt: skip
    assert done.exit_code == 130
    assert "nan" not in done.stdout
    assert "interrupted; 0 of 6 problems were finished" in done.stderr
    content = json.loads((interrupting / "r.json").read_text())
    assert content["interrupted"]
    known = [row["estimate"] for row in content["rows"]]
    assert [one["provenance"]["interrupted"] for one in known if one] == [True] * 6
    assert known[2]["prob"] == pytest.approx(0.383, abs=0.05)  # (0.8 - 0.1)^2 / 2 of a square of side 0.8
    assert "the run was interrupted: this is what was known then" in known[2]["notes"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_estimate_writes_its_json(interrupting: Path) -> None:
    done = run(
        "estimate", "slow.py:network", "corner.vnnlib", "-e", "monte-carlo", "--samples", 10**9, "--json", "e.json"
    )
    assert done.exit_code == 130
    content = json.loads((interrupting / "e.json").read_text())
    assert content["provenance"]["interrupted"]
    assert content["evidence"][0]["n"] >= 20_000


def test_what_is_finished_is_told_while_others_go_on(files: Path) -> None:
    np.save(files / "x.npy", np.array([[0.6, 0.4], [0.97, 0.0]], dtype=np.float32))
    done = run("robustness", "brighter.onnx", "--inputs", "x.npy", "--eps", "0.486", "--json", "-")
    assert done.exit_code == 0, done.output
    assert "0 eps 0.486: p = " in done.stderr
    assert "1 eps" not in done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert rows[0]["estimate"]["seconds"] < rows[1]["estimate"]["seconds"]


def test_images_have_a_floor_of_their_own(files: Path) -> None:
    """Twenty pixels of noise, and a margin of eleven standard deviations of their sum."""
    save_linear(files / "sums.onnx", [[1, -1]] * 20, (1, 1, 1, 20))
    np.save(files / "x.npy", np.full((1, 20), 0.2 * 1.9 / 2, dtype=np.float32))
    command = ("robustness", "sums.onnx", "--inputs", "x.npy", "--eps", "0.2", "--json", "-")
    for floor, outcome in (((), "below the floor"), (("--p-min", "1e-99"), "violated")):
        row = json.loads(run(*command, *floor).stdout)["rows"][0]["estimate"]
        assert row["outcome"] == outcome, row["sentence"]
    assert "p_min is a probability" in run(*command, "--p-min", "-27").stderr
    assert run(*command, *FAST).exit_code == 0  # a method without a floor
