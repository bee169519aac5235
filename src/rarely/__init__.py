"""rarely tells how rarely a neural network fails.

    problem = rarely.Problem(network, rarely.Misclassification(label), rarely.LpBall(image, 0.1))
    print(rarely.estimate(problem))

Names are loaded when first used, so that `import rarely` and `rarely --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rarely.api import Running, estimate
    from rarely.decide import test
    from rarely.errors import RarelyError
    from rarely.estimators import Auto, ImportanceSampling, LineSampling, MonteCarlo, Splitting
    from rarely.execution import Execution
    from rarely.gate import certify
    from rarely.inputs import Box, Gaussian, LpBall, Mixture, TruncatedGaussian
    from rarely.loading import load_problem
    from rarely.networks import load_network
    from rarely.problem import Problem
    from rarely.properties import LinearConstraint, Misclassification, Targeted
    from rarely.result import Estimate, Outcome

_HOME = {
    "Auto": "rarely.estimators",
    "Box": "rarely.inputs",
    "Estimate": "rarely.result",
    "Execution": "rarely.execution",
    "Gaussian": "rarely.inputs",
    "ImportanceSampling": "rarely.estimators",
    "LineSampling": "rarely.estimators",
    "LinearConstraint": "rarely.properties",
    "LpBall": "rarely.inputs",
    "Misclassification": "rarely.properties",
    "Mixture": "rarely.inputs",
    "MonteCarlo": "rarely.estimators",
    "Outcome": "rarely.result",
    "Problem": "rarely.problem",
    "RarelyError": "rarely.errors",
    "Running": "rarely.api",
    "Splitting": "rarely.estimators",
    "Targeted": "rarely.properties",
    "TruncatedGaussian": "rarely.inputs",
    "certify": "rarely.gate",
    "estimate": "rarely.api",
    "test": "rarely.decide",
    "load_network": "rarely.networks",
    "load_problem": "rarely.loading",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'rarely' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
