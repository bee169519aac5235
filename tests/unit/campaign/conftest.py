"""A small campaign: a linear network in a Python file and a few images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from campaign_helpers import NETWORK


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def plan(tmp_path: Path) -> dict[str, Any]:
    """10 images x 2 radii x 3 replicates = 60 problems in chunks of 7."""
    (tmp_path / "net.py").write_text(NETWORK)
    images = np.random.default_rng(0).uniform(size=(10, 6)).astype(np.float32)
    labels = (images @ _weight()).argmax(1)
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    return {
        "campaign": {"name": "small", "seed": 1, "replicates": 3, "batch": 7},
        "networks": [{"path": f"{tmp_path}/net.py:Net", "name": "net"}],
        "problems": [{"dataset": str(tmp_path / "data.npz"), "radii": [0.1, 0.4]}],
        "estimator": {"method": "splitting", "particles": 20, "islands": 2, "steps": 1, "log_p_min": -12.0},
    }


def _weight() -> np.ndarray:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(5)).numpy()
