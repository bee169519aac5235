"""Markov kernels that leave p(x | score > level) invariant."""

from rarely.kernels.base import Kernel, State
from rarely.kernels.default import default_kernel
from rarely.kernels.hamiltonian import HMC
from rarely.kernels.hit_and_run import HitAndRun
from rarely.kernels.langevin import Langevin
from rarely.kernels.pcn import PCN
from rarely.kernels.random_walk import RandomWalk
from rarely.kernels.redraw import Redraw

__all__ = ["HMC", "PCN", "HitAndRun", "Kernel", "Langevin", "RandomWalk", "Redraw", "State", "default_kernel"]
