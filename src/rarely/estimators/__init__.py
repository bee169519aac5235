"""Estimators: each runs a batch of problems as an iterator over its progress and returns estimates."""

from rarely.estimators.auto import Auto
from rarely.estimators.base import Budget, Estimator, Progress
from rarely.estimators.importance import ImportanceSampling
from rarely.estimators.line_sampling import LineSampling
from rarely.estimators.monte_carlo import MonteCarlo
from rarely.estimators.splitting import Splitting

__all__ = [
    "Auto",
    "Budget",
    "Estimator",
    "ImportanceSampling",
    "LineSampling",
    "MonteCarlo",
    "Progress",
    "Splitting",
]
