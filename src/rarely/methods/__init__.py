"""Estimators: each runs a batch of problems as an iterator over its progress and returns estimates."""

from rarely.methods.base import Budget, Estimator, Progress
from rarely.methods.importance import ImportanceSampling
from rarely.methods.line_sampling import LineSampling
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.splitting import Splitting

__all__ = [
    "Budget",
    "Estimator",
    "ImportanceSampling",
    "LineSampling",
    "MonteCarlo",
    "Progress",
    "Splitting",
]
