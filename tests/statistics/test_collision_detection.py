"""Twenty CollisionDetection properties against reference probabilities (1.7e10 plain samples, large splitting runs)."""

from __future__ import annotations

import csv
import tarfile
from pathlib import Path

import numpy as np
import pytest

from rarely import Box, LinearConstraint, Outcome, Problem, Splitting, estimate
from rarely.io.formats.rlv import read_rlv
from rarely.kernels import PCN, Kernel, RandomWalk


@pytest.fixture(scope="module")
def problems(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Problem], np.ndarray]:
    """Every third of the sixty references, from log p = -30 to -2, and their log-probabilities."""
    archive = data_folder / "collision_detection" / "collisionDetection.tar.gz"
    reference = data_folder.parent / "reference" / "collision_detection_log_prob.csv"
    for path in (archive, reference):
        if not path.exists():
            pytest.skip(f"{path} is not there")
    folder = tmp_path_factory.mktemp("collision")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    files = {path.name: path for path in folder.rglob("*.rlv")}
    with reference.open() as lines:
        chosen = list(csv.DictReader(lines))[::3][:20]
    found = []
    for row in chosen:
        read = read_rlv(files[row["file"]])
        (case,) = read.specification.cases
        violated = LinearConstraint.any_of([(outputs.A, outputs.b) for outputs in case.outputs])
        found.append(Problem(read.network, violated, Box(case.low, case.high), name=row["file"]))
    return found, np.array([float(row["log_prob"]) for row in chosen])


@pytest.mark.parametrize("kernel", [RandomWalk(), pytest.param(PCN(), marks=pytest.mark.slow)], ids=["paper", "pcn"])
def test_twenty_properties(problems: tuple[list[Problem], np.ndarray], kernel: Kernel) -> None:
    """N = 2000, M = 100, one population each: the bound of the issue on the root mean square error of log p."""
    chosen, truth = problems
    results = estimate(chosen, Splitting(particles=2000, steps=100, islands=1, kernel=kernel), seed=0)
    assert all(result.outcome is Outcome.VIOLATED for result in results)
    error = np.array([result.log_prob for result in results]) - truth
    assert np.sqrt(np.mean(error**2)) <= 0.25
    scaled = error / np.array([result.log_prob_std for result in results])
    assert np.abs(scaled).max() <= 5
    for problem, result in zip(chosen, results, strict=True):
        assert (problem.score(result.witnesses.inputs) >= 0).all()
