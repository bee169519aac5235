"""All ACAS Xu and mnistfc networks, read from the folder that RARELY_DATA names."""

from __future__ import annotations

import csv
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rarely.campaign.benchmark import decide_files
from rarely.io.networks import load_network
from rarely.io.onnx.model import input_port, read_onnx
from rarely.io.onnx.runtime import open_session, run_rows

DATA = os.environ.get("RARELY_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="RARELY_DATA is not set")


def check(path: Path, low: float, high: float) -> None:
    network = load_network(path)
    file = read_onnx(path)
    port = input_port(file)
    rows = np.random.default_rng(0).uniform(low, high, (20, *port.row_shape)).astype(port.dtype)
    expected = run_rows(open_session(file.serialize()), port, rows)
    with torch.no_grad():
        assert np.abs(network(torch.from_numpy(rows)).numpy() - expected).max() <= 1e-5
        large = network(torch.rand(10_000, *network.input_shape))
    assert large.shape == (10_000, *network.output_shape)
    assert torch.isfinite(large).all()
    used = {type(module) for module in network.modules()} - {type(network)}
    assert used <= {nn.Flatten, nn.Linear, nn.ReLU, nn.Module}


def test_acas_xu() -> None:
    paths = sorted(Path(DATA or "", "acasxu", "onnx").glob("*.onnx"))
    assert len(paths) == 45
    for path in paths:
        check(path, -0.5, 0.5)


def test_mnistfc(tmp_path: Path) -> None:
    with tarfile.open(Path(DATA or "", "mnistfc", "mnistfc.tar.xz")) as archive:
        for depth in (2, 4, 6):
            member = archive.extractfile(f"mnistfc/mnist-net_256x{depth}.onnx")
            assert member is not None
            path = tmp_path / f"{depth}.onnx"
            path.write_bytes(member.read())
            check(path, 0.0, 1.0)


def test_vnncomp_test_files_get_their_verdicts(tmp_path: Path) -> None:
    """Networks without a batch, one of them from a vector of one entry to two and back."""
    with tarfile.open(Path(DATA or "", "vnncomp", "test.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    with Path(DATA or "", "vnncomp", "verdicts.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["benchmark"] == "test"]
    folder = tmp_path / "test"
    found = [decide_files(folder / row["onnx"], folder / row["vnnlib"], 60.0).verdict for row in rows]
    assert found == [row["verdict"] for row in rows]
    assert len(found) == 5
