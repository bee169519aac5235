"""`action.yml`: what GitHub asks of it, and its script with the inputs of a job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import rarely
from rarely.demo import assets

ACTION: dict[str, Any] = yaml.safe_load((Path(rarely.__file__).parents[2] / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]


def test_it_is_an_action() -> None:
    assert ACTION["name"]
    assert ACTION["description"]
    assert ACTION["runs"]["using"] == "composite"
    for step in STEPS:
        assert ("uses" in step) != ("run" in step)
        assert "run" not in step or step["shell"] == "bash"  # composite actions have no default shell
        assert "${{" not in step.get("run", ""), "an input would be read as a command"
    for said in ACTION["inputs"].values():
        assert said["description"].strip()
        assert said.get("required") or isinstance(said["default"], str)


def test_what_it_speaks_of_exists() -> None:
    named = re.findall(r"inputs\.([\w-]+)", json.dumps([STEPS, ACTION["outputs"]]))
    assert set(named) == ACTION["inputs"].keys()
    ids = {step["id"]: step for step in STEPS if "id" in step}
    for step, output in re.findall(r"steps\.(\w+)\.outputs\.(\w+)", json.dumps(ACTION["outputs"])):
        assert f"{output}=" in ids[step]["run"]


def _job(folder: Path, **inputs: str) -> tuple[int, str, str]:
    """The exit code of the step, the ruling it gives, and the summary, as a runner of GitHub would see them."""
    (step,) = [step for step in STEPS if step.get("id") == "certify"]
    given = {name: said.get("default", "") for name, said in ACTION["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    values = {name: given[re.findall(r"inputs\.([\w-]+)", value)[0]] for name, value in step["env"].items()}
    commands = folder / "bin"
    commands.mkdir()
    (commands / "rarely").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rarely "$@"\n')
    (commands / "rarely").chmod(0o755)
    (folder / "step.sh").write_text(step["run"])
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    environment = {**os.environ, **values, **files, "PATH": f"{commands}:{os.environ['PATH']}"}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]  # as GitHub calls it
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    told = [Path(file).read_text() if Path(file).exists() else "" for file in files.values()]
    return done.returncode, told[0].strip(), told[1]


BRAKE = {"network": str(assets() / "cruise.onnx"), "property": str(assets() / "brake-30m.vnnlib")}  # p is 1.7e-8


@pytest.mark.parametrize(("p_max", "code", "ruling"), [("1e-6", 0, "accepted"), ("1e-9", 1, "rejected")])
def test_a_job(p_max: str, code: int, ruling: str, tmp_path: Path) -> None:
    returned, output, summary = _job(tmp_path, **BRAKE, p_max=p_max, options="--seed 3\n--max-evaluations  50000")
    assert (returned, output) == (code, f"ruling={ruling}")
    assert summary.startswith(f"### {BRAKE['network']}: {ruling}")
    assert json.loads((tmp_path / "rarely-gate.json").read_text())["ruling"] == ruling
    assert (tmp_path / "rarely-gate.npz").exists() == (ruling == "rejected")


def test_a_job_with_an_error_has_no_ruling(tmp_path: Path) -> None:
    """Names are data: one that looks like a command is a file that is not there."""
    command = "$(touch taken)"
    code, output, _ = _job(tmp_path, network=f"{command}.onnx", property="x.vnnlib", p_max="1e-6", options=command)
    assert (code, output) == (2, "")
    assert not (tmp_path / "taken").exists()
