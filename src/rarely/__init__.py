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
    from rarely.campaign.campaign import Campaign as Campaign
    from rarely.core.calls import vectorize as vectorize
    from rarely.core.errors import RarelyError as RarelyError
    from rarely.core.execution import Execution as Execution
    from rarely.core.predicted import Predicted as Predicted
    from rarely.core.problem import Problem as Problem
    from rarely.core.properties import LinearConstraint as LinearConstraint
    from rarely.core.properties import Misclassification as Misclassification
    from rarely.core.properties import Targeted as Targeted
    from rarely.inputs import Box as Box
    from rarely.inputs import Gaussian as Gaussian
    from rarely.inputs import LpBall as LpBall
    from rarely.inputs import Mixture as Mixture
    from rarely.inputs import TruncatedGaussian as TruncatedGaussian
    from rarely.io.networks import load_network as load_network
    from rarely.io.problems import load_problem as load_problem
    from rarely.methods import ImportanceSampling as ImportanceSampling
    from rarely.methods import LineSampling as LineSampling
    from rarely.methods import MonteCarlo as MonteCarlo
    from rarely.methods import Splitting as Splitting
    from rarely.questions.augment import augment as augment
    from rarely.questions.estimate import Running as Running
    from rarely.questions.estimate import estimate as estimate
    from rarely.questions.monitor import monitor as monitor
    from rarely.questions.result import Estimate as Estimate
    from rarely.questions.result import Outcome as Outcome
    from rarely.questions.strategy import Auto as Auto
    from rarely.questions.threshold import certify as certify
    from rarely.questions.threshold import test as test
    from rarely.questions.verify import verify as verify

_NAMES = {
    "rarely.campaign.campaign": ("Campaign",),
    "rarely.core.calls": ("vectorize",),
    "rarely.core.errors": ("RarelyError",),
    "rarely.core.execution": ("Execution",),
    "rarely.core.predicted": ("Predicted",),
    "rarely.core.problem": ("Problem",),
    "rarely.core.properties": ("LinearConstraint", "Misclassification", "Targeted"),
    "rarely.inputs": ("Box", "Gaussian", "LpBall", "Mixture", "TruncatedGaussian"),
    "rarely.io.networks": ("load_network",),
    "rarely.io.problems": ("load_problem",),
    "rarely.methods": ("ImportanceSampling", "LineSampling", "MonteCarlo", "Splitting"),
    "rarely.questions.augment": ("augment",),
    "rarely.questions.estimate": ("Running", "estimate"),
    "rarely.questions.monitor": ("monitor",),
    "rarely.questions.result": ("Estimate", "Outcome"),
    "rarely.questions.strategy": ("Auto",),
    "rarely.questions.threshold": ("certify", "test"),
    "rarely.questions.verify": ("verify",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'rarely' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
