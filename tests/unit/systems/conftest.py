"""The pushed point as a system."""

from __future__ import annotations

import pytest
from pushed_point import brake, drift

from rarely import Gaussian
from rarely.inputs import Normal
from rarely.systems import System, closed_loop


@pytest.fixture
def pushed() -> System:
    return closed_loop(
        drift, brake, initial=Gaussian([0.0, 0.0], 0.1), disturbance={"wind": Normal(0, 0.1)}, steps=10, step=0.5,
        states=["place", "speed"], actions=["push"],
    )  # fmt: skip
