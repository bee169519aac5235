"""rarely tells how rarely a neural network fails.

    problem = rarely.Problem(network, rarely.Misclassification(label), rarely.LpBall(image, 0.1))
    print(rarely.estimate(problem))

Names are loaded when first used, so that `import rarely` and `rarely --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # `as`: type checkers then take the names as exported
    from rarely.api import Running as Running
    from rarely.api import estimate as estimate
    from rarely.campaign.campaign import Campaign as Campaign
    from rarely.decide import test as test
    from rarely.errors import RarelyError as RarelyError
    from rarely.estimators import Auto as Auto
    from rarely.estimators import ImportanceSampling as ImportanceSampling
    from rarely.estimators import LineSampling as LineSampling
    from rarely.estimators import MonteCarlo as MonteCarlo
    from rarely.estimators import Splitting as Splitting
    from rarely.execution import Execution as Execution
    from rarely.gate import certify as certify
    from rarely.inputs import Box as Box
    from rarely.inputs import Gaussian as Gaussian
    from rarely.inputs import LpBall as LpBall
    from rarely.inputs import Mixture as Mixture
    from rarely.inputs import TruncatedGaussian as TruncatedGaussian
    from rarely.loading import load_problem as load_problem
    from rarely.networks import load_network as load_network
    from rarely.problem import Problem as Problem
    from rarely.properties import LinearConstraint as LinearConstraint
    from rarely.properties import Misclassification as Misclassification
    from rarely.properties import Targeted as Targeted
    from rarely.result import Estimate as Estimate
    from rarely.result import Outcome as Outcome
    from rarely.training import augment as augment
    from rarely.watch import monitor as monitor

_HOME = {
    "Auto": "rarely.estimators",
    "Box": "rarely.inputs",
    "Campaign": "rarely.campaign.campaign",
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
    "augment": "rarely.training",
    "certify": "rarely.gate",
    "estimate": "rarely.api",
    "test": "rarely.decide",
    "load_network": "rarely.networks",
    "load_problem": "rarely.loading",
    "monitor": "rarely.watch",
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
