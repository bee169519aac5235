"""What the tests of the file formats share: the meaning of a `Specification`, and the data folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rarely.io.formats.specification import Polytope, Specification

Violates = Callable[..., bool]


def _inside(polytope: Polytope, v: np.ndarray, tolerance: float) -> bool:
    left = polytope.A @ v
    strictly = polytope.strict & (tolerance == 0)
    return bool(np.where(strictly, left < polytope.b, left <= polytope.b + tolerance).all())


def _violates(specification: Specification, x: object, y: object, tolerance: float = 0.0) -> bool:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return any(
        bool((case.low - tolerance <= x).all() and (x <= case.high + tolerance).all())
        and not (tolerance == 0 and ((case.open_low & (x <= case.low)) | (case.open_high & (x >= case.high))).any())
        and (case.input_constraints is None or _inside(case.input_constraints, x, tolerance))
        and any(_inside(outputs, y, tolerance) for outputs in case.outputs)
        for case in specification.cases
    )


@pytest.fixture(scope="session")
def violates() -> Violates:
    return _violates


@pytest.fixture(scope="session")
def data() -> Path:
    folder = os.environ.get("RARELY_DATA")
    if not folder:
        pytest.skip("RARELY_DATA is not set")
    return Path(folder)
