"""Estimators and kernels by the names that command lines and plans call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from rarely import kernels
from rarely.core.errors import InputError
from rarely.methods.base import Estimator
from rarely.methods.importance import ImportanceSampling
from rarely.methods.line_sampling import LineSampling
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.splitting import Splitting
from rarely.questions.strategy import Auto

ESTIMATORS: dict[str, Any] = {
    "auto": Auto,
    "splitting": Splitting,
    "monte-carlo": MonteCarlo,
    "line-sampling": LineSampling,
    "importance": ImportanceSampling,
}
KERNELS: dict[str, Any] = {
    "pcn": kernels.PCN,
    "random-walk": kernels.RandomWalk,
    "langevin": kernels.Langevin,
    "hmc": kernels.HMC,
    "hit-and-run": kernels.HitAndRun,
}


def make_estimator(
    name: str, kernel: str | None, settings: Mapping[str, Any], spell: Callable[[str], str] = str
) -> Estimator:
    """The estimator with the settings that were given (None: not given). One that it does not have is an error.

    `spell` says how the user wrote the name of a setting.
    """
    kind = ESTIMATORS[name]
    given = {key: value for key, value in settings.items() if value is not None}
    if kernel is not None:
        given["kernel"] = KERNELS[kernel]()
    known = {spec.name for spec in fields(kind)}
    foreign = [spell(key) for key in given if key not in known]
    if foreign:
        usable = ", ".join(spell(key) for key in (*settings, "kernel") if key in known) or "none of these settings"
        raise InputError(
            f"{' and '.join(foreign)} {'does' if len(foreign) == 1 else 'do'} not apply to the estimator {name}; "
            f"it takes {usable}"
        )
    made: Estimator = kind(**given)
    return made
