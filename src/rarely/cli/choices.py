"""From the names on a command line to estimators and kernels."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rarely.cli.options import EstimatorName, KernelName

if TYPE_CHECKING:
    from rarely.estimators import Estimator

_ESTIMATORS = {
    EstimatorName.auto: "Auto",
    EstimatorName.splitting: "Splitting",
    EstimatorName.monte_carlo: "MonteCarlo",
    EstimatorName.line_sampling: "LineSampling",
    EstimatorName.importance: "ImportanceSampling",
}
_KERNELS = {
    KernelName.pcn: "PCN",
    KernelName.random_walk: "RandomWalk",
    KernelName.langevin: "Langevin",
    KernelName.hmc: "HMC",
    KernelName.hit_and_run: "HitAndRun",
}


def make_estimator(name: EstimatorName, kernel: KernelName | None, settings: dict[str, Any]) -> Estimator:
    """The estimator with the settings that were given (None: not given). One that it does not have is an error."""
    from rarely import estimators, kernels
    from rarely.api import default_estimator
    from rarely.errors import InputError

    kind: Any = getattr(estimators, _ESTIMATORS[name], None)
    if kind is None and name is EstimatorName.auto:
        kind = type(default_estimator())
    if kind is None:
        raise InputError(f"the estimator {name.value} is not part of this version of rarely")
    given = {key: value for key, value in settings.items() if value is not None}
    if kernel is not None:
        given["kernel"] = getattr(kernels, _KERNELS[kernel])()
    known = {spec.name for spec in fields(kind)}
    foreign = [_option(key) for key in given if key not in known]
    if foreign:
        usable = ", ".join(_option(key) for key in (*settings, "kernel") if key in known) or "none of these settings"
        raise InputError(
            f"{' and '.join(foreign)} {'does' if len(foreign) == 1 else 'do'} not apply to the estimator {name.value}; "
            f"it takes {usable}"
        )
    made: Estimator = kind(**given)
    return made


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
