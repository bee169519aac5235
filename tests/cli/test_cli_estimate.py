"""`rarely estimate` and `rarely inspect` on tiny files."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import environment

from rarely.questions.result import Estimate


def test_one_problem_with_every_kind_of_output(rarely, folder: Path, tmp_path: Path) -> None:
    done = rarely(
        "estimate", folder / "sum.onnx", folder / "corner.vnnlib", "--json", "e.json", "--witnesses", "w.npz",
        "--plot", "e.svg", "--seed", 3, cwd=tmp_path,
    )  # fmt: skip
    assert "violated" in done.stdout
    assert "\x1b" not in done.stdout  # no colours into a pipe
    estimate = Estimate.from_json((tmp_path / "e.json").read_text())
    assert abs(estimate.log_prob - math.log(0.02)) < 5 * estimate.log_prob_std
    assert estimate.name == "sum corner"
    assert estimate.provenance["seed"] == 3
    witnesses = np.load(tmp_path / "w.npz")["inputs"]
    assert witnesses.sum(-1).min() >= 1.8 - 1e-6
    assert "<svg" in (tmp_path / "e.svg").read_text()


@pytest.mark.parametrize("estimator", ["splitting", "monte-carlo"])
def test_estimators_by_name(rarely, folder: Path, estimator: str) -> None:
    options = ["--particles", 300, "--kernel", "hit-and-run"] if estimator == "splitting" else ["--samples", 40_000]
    done = rarely("estimate", folder / "sum.onnx", folder / "corner.vnnlib", "-e", estimator, *options, "--json", "-")
    content = json.loads(done.stdout)
    assert content["provenance"]["estimator"]["name"].lower() == estimator.replace("-", "")
    assert content["log_prob"] == pytest.approx(math.log(0.02), abs=0.5)


def test_folder_of_rlv_files_is_one_batch(rarely, folder: Path, tmp_path: Path) -> None:
    done = rarely(
        "estimate", folder / "rlv", "--json", tmp_path / "all.json", "--witnesses", tmp_path / "w.npz",
        "--plot", tmp_path / "all.png", "-e", "monte-carlo", "--samples", 30_000,
    )  # fmt: skip
    assert "2 problems: 2 violated" in done.stdout
    content = json.loads((tmp_path / "all.json").read_text())
    assert [entry["name"] for entry in content] == ["common", "corner"]
    assert content[0]["prob"] == pytest.approx(0.125, abs=0.02)
    assert list(np.load(tmp_path / "w.npz")["names"]) == ["common", "corner"]
    assert (tmp_path / "all.png").stat().st_size > 1000


def test_several_properties_of_one_network(rarely, folder: Path) -> None:
    files = [folder / "corner.vnnlib", folder / "never.vnnlib"]
    done = rarely("estimate", folder / "sum.onnx", *files, "-e", "monte-carlo", "--samples", 20_000)
    assert "sum corner" in done.stdout
    assert "out of budget" in done.stdout


def test_input_models(rarely, folder: Path, tmp_path: Path) -> None:
    common = ["estimate", folder / "sum.onnx", folder / "corner.vnnlib", "--json", "-"]
    narrow = json.loads(rarely(*common, "--input-model", "gaussian:0.2").stdout)
    assert narrow["log_prob"] < math.log(0.02)
    (tmp_path / "mine.py").write_text(
        "from rarely import Box\n\ndef edge(low, high):\n    return Box(high - 0.1, high)\n"
    )
    certain = json.loads(rarely(*common, "--input-model", "mine:edge", cwd=tmp_path).stdout)
    assert certain["log_prob"] == pytest.approx(0.0, abs=1e-6)


def test_quiet_prints_nothing(rarely, folder: Path) -> None:
    done = rarely("estimate", folder / "rlv" / "common.rlv", "-e", "monte-carlo", "--samples", 5000, "--quiet")
    assert done.stdout == done.stderr == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-e", "monte-carlo", "--kernel", "pcn", "--quantile", "0.2"], "--quantile and --kernel do not apply"),
        (["-e", "splitting", "--samples", "10"], "--samples does not apply"),
        (["--input-model", "gaussian:x"], "SIGMA must be a positive number"),
        (["--input-model", "normal"], "none of uniform, gaussian:SIGMA and module:attribute"),
        (["--device", "abacus"], "device 'abacus'"),
        (["--confidence", "2"], "confidence must lie strictly between 0 and 1"),
        (["--json", "no/such/folder/e.json"], "cannot be written"),
        (["--plot", "e.docx"], ".svg"),
    ],
)
def test_options_that_cannot_be_used(rarely, folder: Path, options: list[str], message: str, tmp_path: Path) -> None:
    done = rarely("estimate", folder / "sum.onnx", folder / "corner.vnnlib", *options, code=2, cwd=tmp_path)
    assert message in done.stderr
    assert done.stdout == ""


def test_files_that_do_not_fit(rarely, folder: Path) -> None:
    done = rarely("estimate", folder / "sum.onnx", folder / "three.vnnlib", code=2)
    assert "three.vnnlib: it speaks of 3 inputs, but the network has 2" in done.stderr
    assert "needs a property file" in rarely("estimate", folder / "sum.onnx", code=2).stderr


MALFORMED = {
    "truncated.onnx": (None, "truncated.onnx", "not an ONNX file, or a truncated one"),
    "open.vnnlib": ("(declare-const X_0 Real)\n(assert (<= X_0 1)\n", "open.vnnlib:2", "unbalanced parentheses"),
    "unknown.vnnlib": (
        "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (<= X_7 1))\n", "unknown.vnnlib:3", "X_7",
    ),
    "cycle.rlv": (
        "Input x\nLinear a 0.0 1.0 b 1.0 x\nLinear b 0.0 1.0 a 2.0 x\nAssert <= 0.0 1.0 a\n", "cycle.rlv:", "cycle",
    ),
    "missing.onnx": ("", "missing.onnx", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_one_sentence(rarely, folder: Path, tmp_path: Path, name: str) -> None:
    content, where, reason = MALFORMED[name]
    if content is None:
        whole = (folder / "sum.onnx").read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    elif content:
        (tmp_path / name).write_text(content)
    files = [name] if name.endswith(".rlv") else [name, folder / "corner.vnnlib"]
    if name.endswith(".vnnlib"):
        files = [folder / "sum.onnx", name]
    done = rarely("estimate", *files, code=2, cwd=tmp_path)
    assert where in done.stderr
    assert reason in done.stderr


def test_interrupt_prints_what_is_known(folder: Path, tmp_path: Path) -> None:
    """The network itself says when the run is under way: its 30th call leaves a file."""
    (tmp_path / "slow.py").write_text(
        "import pathlib\ncalls = 0\n\ndef network(x):\n    global calls\n    calls += 1\n"
        "    if calls == 30:\n        pathlib.Path('running').touch()\n"
        "    return x @ x.new_tensor([[1., 1.], [1., -1.]])\n"
    )
    command = [sys.executable, "-m", "rarely", "estimate", "slow.py:network", str(folder / "corner.vnnlib")]
    command += ["-e", "monte-carlo", "--samples", str(10**12)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell that starts jobs in the background has them ignore SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "running").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "violated, p about 0.02" in errors
    assert "Traceback" not in errors


def test_inspect(rarely, folder: Path) -> None:
    network = json.loads(rarely("inspect", folder / "sum.onnx", "--json", "-").stdout)["network"]
    assert network["input_shape"] == [2]
    assert network["operators"] == {"Flatten": 1, "MatMul": 1}
    assert "log volume 0.00 over 2 free inputs" in rarely("inspect", folder / "corner.vnnlib").stdout
    both = json.loads(rarely("inspect", folder / "rlv" / "corner.rlv", "--json", "-").stdout)
    assert both["property"]["cases"][0]["clauses"] == 1
    assert both["network"]["parameters"] > 0


@pytest.mark.slow
@pytest.mark.skipif("RARELY_DATA" not in os.environ, reason="RARELY_DATA is not set")
def test_collision_detection(tmp_path: Path) -> None:
    """All 172 satisfiable files are violated and none of the 328 others."""
    archive = Path(os.environ["RARELY_DATA"]) / "collision_detection" / "collisionDetection.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    files = tmp_path / "collisionDetection"
    command = [sys.executable, "-m", "rarely", "estimate", str(files), "--json", str(tmp_path / "all.json"), "-q"]
    subprocess.run(command, check=True, timeout=3600)
    content = json.loads((tmp_path / "all.json").read_text())
    violated = {entry["name"] for entry in content if entry["outcome"] == "violated" and entry["witnesses"]}
    assert len(content) == 500
    assert violated == {file.stem for file in files.glob("*.rlv") if not file.stem.endswith("UNSAT")}
    assert len(violated) == 172
    assert not any(entry["witnesses"] for entry in content if entry["name"].endswith("UNSAT"))
