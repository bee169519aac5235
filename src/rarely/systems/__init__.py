"""Systems that act over time: closed loops, policies and environments, and what they must always or never do."""

from rarely.systems.closed_loop import closed_loop
from rarely.systems.environment import environment
from rarely.systems.logic import Formula
from rarely.systems.policies import load_policy
from rarely.systems.property import Breaks
from rarely.systems.signals import Signal, derived, signal
from rarely.systems.system import System
from rarely.systems.trajectory import Trajectory
from rarely.systems.windows import always, eventually, until

__all__ = [
    "Breaks",
    "Formula",
    "Signal",
    "System",
    "Trajectory",
    "always",
    "closed_loop",
    "derived",
    "environment",
    "eventually",
    "load_policy",
    "signal",
    "until",
]
