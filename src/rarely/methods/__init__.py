"""How something is learnt: draws, splitting, lines, importance sampling, counting, attacks, proofs."""

from rarely.methods.base import Estimator, Progress
from rarely.methods.directed import DirectedSplitting
from rarely.methods.importance import ImportanceSampling
from rarely.methods.line_sampling import LineSampling
from rarely.methods.monte_carlo import MonteCarlo
from rarely.methods.splitting import Splitting
from rarely.methods.tilting import Tilting

__all__ = [
    "DirectedSplitting",
    "Estimator",
    "ImportanceSampling",
    "LineSampling",
    "MonteCarlo",
    "Progress",
    "Splitting",
    "Tilting",
]
