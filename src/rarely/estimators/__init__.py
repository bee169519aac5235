"""Estimators: each runs a batch of problems as an iterator over its progress and returns estimates."""

from rarely.estimators.base import Budget, Estimator, Progress
from rarely.estimators.monte_carlo import MonteCarlo
from rarely.estimators.splitting import Splitting

__all__ = ["Budget", "Estimator", "MonteCarlo", "Progress", "Splitting"]
