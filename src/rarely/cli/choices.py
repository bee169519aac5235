"""From the names on a command line to estimators and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rarely.cli.options import EstimatorName, KernelName

if TYPE_CHECKING:
    from rarely.methods import Estimator


def make_estimator(name: EstimatorName, kernel: KernelName | None, settings: dict[str, Any]) -> Estimator:
    """The estimator with the settings that were given (None: not given), which errors spell as options."""
    from rarely import registry as naming

    return naming.make_estimator(name.value, None if kernel is None else kernel.value, settings, _option)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
