"""The programs for GPUs on a CPU, compiled by g++ where there is one, and on a GPU where there is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from rarely.gpu import chip, moves
from rarely.methods import walk
from tests.unit.gpu.host import compiler_in

no_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def host(folder: Path) -> object:
    return compiler_in(folder)


@pytest.fixture(params=[pytest.param("cpu", marks=no_compiler), pytest.param("cuda", marks=no_gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, host: object) -> str:
    """Where programs run in a test, however little work there is."""
    monkeypatch.setattr(walk, "_WORTH", 1)
    if request.param == "cpu":
        for module in (chip, moves):
            monkeypatch.setattr(module, "available", lambda device: True)
            monkeypatch.setattr(module, "compiled", host)
        monkeypatch.setattr(chip, "most_shared", lambda device: 2**20)
    name: str = request.param
    return name
