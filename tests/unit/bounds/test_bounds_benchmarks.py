"""The published benchmarks, from the folder that RARELY_DATA names: minutes, so by hand."""

from __future__ import annotations

import csv
import tarfile
import time

import pytest
import torch

from rarely.bounds import UniformMeasure, bracket, decide_boxes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def collision(data_folder, tmp_path_factory):
    """The 500 CollisionDetection problems by file name."""
    from rarely.io.formats.rlv import read_rlv

    folder = tmp_path_factory.mktemp("collision")
    with tarfile.open(data_folder / "collision_detection" / "collisionDetection.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return {path.name: read_rlv(path) for path in sorted(folder.rglob("*.rlv"))}


def _case(problem):
    (case,) = problem.specification.cases
    return (torch.from_numpy(t) for t in (case.low, case.high, case.outputs[0].A, case.outputs[0].b))


def test_every_collision_detection_property_is_decided_in_half_a_minute(collision):
    parts = [tuple(_case(p)) for p in collision.values()]
    low, high, A, b = (torch.stack(t) for t in zip(*parts, strict=True))
    network = next(iter(collision.values())).network
    begin = time.monotonic()
    verdicts = decide_boxes(network, low, high, [(A, b)], 30.0)
    assert time.monotonic() - begin < 30
    for name, verdict in zip(collision, verdicts, strict=True):
        assert verdict.status == ("proved" if "UNSAT" in name else "violated"), name


def test_bracket_contain_the_references_within_a_factor_of_two(collision, data_folder):
    with open(data_folder.parent / "reference" / "collision_detection_log_prob.csv") as file:
        references = list(csv.DictReader(file))
    tight = 0
    for row in references:
        problem = collision[row["file"]]
        low, high, A, b = _case(problem)
        *_, found = bracket(problem.network, UniformMeasure(low, high), [(A, b)], 60.0, gap=0.69)
        truth, sd = float(row["log_prob"]), float(row["log_prob_sd"])
        assert found.log_lower <= truth + 5 * sd, row["file"]
        assert found.log_upper >= truth - 5 * sd, row["file"]
        tight += found.gap <= 0.6932
    assert tight >= 40


def test_acas_xu_verdicts_are_right(data_folder):
    """Every ninth of the 186 instances, a minute each at most."""
    from rarely.io.formats.vnnlib import read_vnnlib
    from rarely.io.onnx.importer import import_onnx

    folder = data_folder / "acasxu"
    with open(folder / "acasxu_verdicts.csv") as file:
        rows = list(csv.DictReader(file))[::9]
    decided = 0
    for row in rows:
        network = import_onnx(folder / "onnx" / row["network"])
        answers = []
        for case in read_vnnlib(folder / "vnnlib" / row["property"]).cases:
            low, high = (torch.from_numpy(t).reshape(1, *network.input_shape) for t in (case.low, case.high))
            outputs = [(torch.from_numpy(p.A), torch.from_numpy(p.b)) for p in case.outputs]
            answers.append(decide_boxes(network, low, high, outputs, 60.0)[0].status)
        if "violated" in answers:
            assert row["verdict"] == "sat"
            decided += 1
        elif set(answers) == {"proved"}:
            assert row["verdict"] == "unsat"
            decided += 1
    assert decided >= 0.9 * len(rows)
