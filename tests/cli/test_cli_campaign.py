"""`rarely campaign`, as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import environment
from typer.testing import CliRunner

from rarely.campaign.store import Store
from rarely.core.errors import StoreError

PLAN = """
[campaign]
batch = 2
[[networks]]
path = "sum.onnx"
[[problems]]
vnnlib = ["corner.vnnlib", "never.vnnlib"]
[[problems]]
rlv = "rlv"
[estimator]
method = "splitting"
particles = 200
log_p_min = -15.0
"""


@pytest.fixture
def inside() -> Callable[..., str]:
    """The command in this process, without the seconds that it takes to import torch: what it prints."""
    from rarely.cli.app import app

    def run(*arguments: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return done.output

    return run


@pytest.fixture(scope="module")
def finished(rarely, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plan beside its files, and the folder of its finished campaign."""
    place = tmp_path_factory.mktemp("campaign")
    shutil.copytree(folder, place / "files")
    plan = place / "files" / "night.toml"
    plan.write_text(PLAN)
    done = rarely("campaign", "run", plan, "--out", place / "out", "--workers", 1)
    assert "4 of 4 done" in done.stderr
    assert "violated" in done.stdout
    return plan, place / "out"


def test_plan_says_what_would_run(inside, finished: tuple[Path, Path], tmp_path: Path) -> None:
    text = inside("campaign", "plan", finished[0])
    assert "4 problems in 2 chunks" in text
    assert "sum.onnx corner.vnnlib" in text
    data = json.loads(inside("campaign", "plan", finished[0], "--json", "-"))
    assert data["problems"] == 4
    (tmp_path / "wrong.toml").write_text(PLAN.replace("particles = 200", "particels = 200"))
    error = inside("campaign", "plan", tmp_path / "wrong.toml", code=2)
    assert "wrong.toml: estimator.particels: there is no such key" in error


def test_names_are_shown_as_they_are_and_command_nothing(inside, finished: tuple[Path, Path]) -> None:
    """Brackets were markup, which ended in a traceback; escapes reached the terminal."""
    name = "[/x] [red]\\u001b[31m\\u202e"
    plan = finished[0].with_name("named.toml")
    plan.write_text(PLAN.replace("[[networks]]\n", f'[[networks]]\nname = "{name}"\n'))
    said = inside("campaign", "plan", plan)
    assert "[/x] [red]\\x1b[31m\\u202e" in said
    assert not {"\x1b", "\u202e"} & set(said)


def test_a_pipe_that_nobody_reads(finished: tuple[Path, Path], tmp_path: Path) -> None:
    """It ended with 1, which means that something failed, before the JSON was written."""
    read, write = os.pipe()
    os.close(read)
    out = tmp_path / "status.json"
    command = [sys.executable, "-m", "rarely", "campaign", "status", finished[1], "--json", out]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment())
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
    assert json.loads(out.read_text())["counts"]["done"] == 4


def test_status_and_export(inside, finished: tuple[Path, Path], tmp_path: Path) -> None:
    assert "below the floor" in inside("campaign", "status", finished[1])
    data = json.loads(inside("campaign", "status", finished[1], "--json", "-"))
    assert data["counts"] == {"waiting": 0, "done": 4, "failed": 0}
    assert data["outcomes"]["violated"] == 3
    assert "4 problems written" in inside("campaign", "export", finished[1], "-o", tmp_path / "x.csv")
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 5
    assert "there is no campaign in" in inside("campaign", "status", tmp_path, code=2)


def test_the_same_command_goes_on_and_a_changed_plan_is_refused(inside, finished: tuple[Path, Path]) -> None:
    plan, out = finished
    again = inside("campaign", "run", plan, "--out", out, "--workers", 1)
    assert "done, " not in again
    changed = plan.with_name("changed.toml")
    changed.write_text(PLAN.replace("= 200", "= 300"))
    error = inside("campaign", "run", changed, "--out", out, code=2)
    assert "estimator was splitting particles=200" in error
    assert "--new" in error


def test_compare(inside, finished: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = ("campaign", "compare", finished[1], finished[1])
    text = inside(*arguments, "--csv", tmp_path / "x.csv")
    assert "4 problems matched" in text
    assert "3 no clear difference" in text
    assert "1 no violation found in either" in text
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 5
    data = json.loads(inside(*arguments, "--json", "-"))
    assert data["mean"]["value"] == 0
    assert len(data["pairs"]) == 4


def _begun(folder: Path) -> bool:
    try:
        Store.open(folder).close()
    except StoreError:
        return False
    return True


def test_ctrl_c_says_how_to_go_on(inside, folder: Path, tmp_path: Path) -> None:
    """A network that takes its time is interrupted; the store can be looked at, and the exit code is a shell's."""
    (tmp_path / "slow.py").write_text("import time\n\ndef net(x):\n    time.sleep(0.2)\n    return x\n")
    shutil.copy(folder / "corner.vnnlib", tmp_path)
    plan = tmp_path / "slow.toml"
    plan.write_text('[campaign]\nreplicates = 500\nbatch = 1\n[[networks]]\npath = "slow.py:net"\n[[problems]]\n'
                    'vnnlib = "corner.vnnlib"\n[estimator]\nmethod = "monte-carlo"\nsamples = 10\n')  # fmt: skip
    run = subprocess.Popen(
        [sys.executable, "-m", "rarely", "campaign", "run", plan, "--out", tmp_path / "out", "--workers", "1"],
        stderr=subprocess.PIPE, text=True, env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    while not _begun(tmp_path / "out"):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=60)
    assert run.returncode == 130, error
    assert f"To go on: rarely campaign run {plan} --out {tmp_path / 'out'}" in error
    assert "Traceback" not in error
    counts = json.loads(inside("campaign", "status", tmp_path / "out", "--json", "-"))["counts"]
    assert counts["waiting"] > 0
    assert counts["failed"] == 0


DISK = """
import json, subprocess, sys
from typer.testing import CliRunner
from rarely.campaign.store import Store
from rarely.cli.app import app

plan, out = sys.argv[1:]


def mount(*options):
    subprocess.run(["mount", *options, out], check=True)


def run():
    done = CliRunner().invoke(app, ["campaign", "run", plan, "--out", out, "--workers", "1", "-q"])
    return [done.exit_code, done.output]


mount("-t", "tmpfs", "-o", "size=256k", "none")
full = run()
mount("-o", "remount,ro")
readonly = run()
mount("-o", "remount,rw,size=64m")
with Store.open(out) as store:
    store.check()
    kept = store.counts()
better = run()
mount("-o", "remount,ro")
with Store.open(out) as store:
    store.check()
    print(json.dumps([full, readonly, better, kept, store.counts()]))
"""


def test_a_full_and_a_read_only_disk(finished: tuple[Path, Path], tmp_path: Path) -> None:
    """A real file system of 256 kB in a mount namespace of its own."""
    out = tmp_path / "disk"
    out.mkdir()
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", out], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root and unshare")
    plan = finished[0].with_name("many.toml")
    plan.write_text(
        PLAN.replace("batch = 2", "batch = 20\nreplicates = 100")
        .replace("splitting", "monte-carlo")
        .replace("particles = 200\nlog_p_min = -15.0", "samples = 200")
    )
    command = ["unshare", "-m", sys.executable, "-c", DISK, plan, out]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    full, readonly, better, kept, counts = json.loads(done.stdout)
    assert full[0] == readonly[0] == 2
    assert "the disk is full; make room and run the same command again" in full[1]
    assert "it cannot be written: the folder or the file is read-only" in readonly[1]
    assert better[0] == 0
    assert kept["waiting"] > 0
    assert counts == {"waiting": 0, "done": 400, "failed": 0}
