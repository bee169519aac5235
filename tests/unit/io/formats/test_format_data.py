"""The parsers on the public benchmarks; skipped without RARELY_DATA."""

from __future__ import annotations

import csv
import logging
import tarfile
import time
from pathlib import Path

import numpy as np
import torch

from rarely.io.formats.rlv import read_rlv
from rarely.io.formats.vnncomp import read_instances
from rarely.io.formats.vnnlib import read_vnnlib

log = logging.getLogger(__name__)  # clocks are shown (--log-cli-level=INFO), never asserted


def extract(archive: Path, folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile() and member.name.endswith(suffixes)]
        tar.extractall(folder, members, filter="data")
    return sorted(folder / member.name for member in members)


def test_acasxu_properties(data: Path) -> None:
    shapes = {}
    for path in sorted((data / "acasxu/vnnlib").iterdir()):
        spec = read_vnnlib(path)
        assert (spec.n_inputs, spec.n_outputs) == (5, 5)
        shapes[path.stem] = [[len(polytope.b) for polytope in case.outputs] for case in spec.cases]
    assert shapes == {
        "prop_1": [[1]],
        "prop_2": [[4]],
        "prop_3": [[4]],
        "prop_4": [[4]],
        "prop_5": [[1] * 4],
        "prop_6": [[1] * 4, [1] * 4],
        "prop_7": [[3, 3]],
        "prop_8": [[2, 2, 2]],
        "prop_9": [[1] * 4],
        "prop_10": [[1] * 4],
    }


def test_acasxu_counterexamples_violate(data: Path, violates) -> None:
    with (data / "acasxu/counterexamples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 47
    for row in rows:
        x = [float(row[f"X_{i}"]) for i in range(5)]
        y = [float(row[f"Y_{i}"]) for i in range(5)]
        assert violates(read_vnnlib(data / "acasxu/vnnlib" / row["property"]), x, y, tolerance=1e-6)


def test_acasxu_instances(data: Path) -> None:
    instances = read_instances(data / "acasxu/instances.csv")
    assert len(instances) == 186
    assert {instance.timeout for instance in instances} == {116.0}


def test_mnistfc_properties(data: Path, tmp_path: Path) -> None:
    suffixes = (".vnnlib", ".csv", ".onnx")
    paths = extract(data / "mnistfc/mnistfc.tar.xz", tmp_path, suffixes)
    (table,) = (path for path in paths if path.suffix == ".csv")
    properties = {instance.property for instance in read_instances(table)}
    start = time.perf_counter()
    for path in properties:
        spec = read_vnnlib(path)
        assert (spec.n_inputs, spec.n_outputs) == (784, 10)
        (case,) = spec.cases
        assert len(case.outputs) == 9
        assert (case.low >= 0).all()
        assert (case.high <= 1).all()
    log.info("mnistfc: %.1f ms per property", 1e3 * (time.perf_counter() - start) / len(properties))
    assert properties == {path for path in paths if path.suffix == ".vnnlib"}


def slow_outputs(text: str, x: np.ndarray) -> np.ndarray:
    """The two outputs by walking the lines, which are in order in these files."""
    values: dict[str, np.ndarray] = {}
    for words in map(str.split, text.splitlines()):
        kind, name = words[:2]
        if kind == "Input":
            values[name] = x[:, len(values)]
        elif kind == "MaxPool":
            values[name] = np.max([values[word] for word in words[2:]], axis=0)
        elif kind != "Assert":
            terms = (float(w) * values[n] for w, n in zip(words[3::2], words[4::2], strict=True))
            values[name] = sum(terms, np.full(len(x), float(words[2])))
            if kind == "ReLU":
                values[name] = np.maximum(values[name], 0)
    return np.stack([values["outX0"], values["outX1"]], axis=1)


def test_collision_detection(data: Path, tmp_path: Path, violates) -> None:
    paths = extract(data / "collision_detection/collisionDetection.tar.gz", tmp_path, (".rlv",))
    assert len(paths) == 500
    start = time.perf_counter()
    problems = [read_rlv(path, dtype=torch.float64) for path in paths]
    log.info("CollisionDetection: %.2f ms per file", 1e3 * (time.perf_counter() - start) / len(paths))
    network = problems[0].network
    assert all(problem.network is network for problem in problems)
    kinds = [type(layer).__name__ for layer in network]
    assert kinds == ["Linear", "ReLU", "MaxPool1d", "Linear", "ReLU", "Linear"]
    single = read_rlv(paths[0]).network

    lines = [path.read_text().splitlines() for path in paths]
    texts = {"\n".join(line for line in file if not line.startswith("Assert")) for file in lines}
    assert len(texts) == 1
    cases = [case for problem in problems for case in problem.specification.cases]
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(case.low, case.high) for case in cases])  # one point in each box
    expected = slow_outputs(texts.pop(), x)
    y = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(single(torch.from_numpy(x).float()).numpy(), expected, rtol=0, atol=1e-4)

    # Each file ends in "Assert >= 0.0 -1.0 p 1.0 q": a violation is q - p <= 0.
    for i, (problem, file) in enumerate(zip(problems, lines, strict=True)):
        words = file[-1].split()
        assert words[:4] + words[5:6] == ["Assert", ">=", "0.0", "-1.0", "1.0"]
        p, q = (expected[i, ("outX0", "outX1").index(name)] for name in (words[4], words[6]))
        assert violates(problem.specification, x[i], y[i]) == (q - p <= 0)
