"""What can be proved about a network: bounds, verdicts, and bounds on the probability of violation.

Everything here is a statement about the network in real arithmetic, its stored weights taken as exact reals; bounds
are computed in float64 and include their own rounding (see `linear` and `backward`). The pieces:

- `prove(problem)` and `probability_bounds(problem)` take a `rarely.Problem`; the rest takes modules and tensors:
- `build(module, input_shape)` reads a torch module into a `Graph`, or raises `Unprovable`;
- `linear_bounds` and `interval_bounds` bound linear functions of the output over a `Box` or a `Ball`;
- `decide_boxes` and `decide_balls` prove the absence of violations, or find one, or give up in time;
- `bracket` bounds the probability of violation under a `Uniform` or `Gaussian` law.
"""

from .backward import LinearBound
from .crown import interval_bounds, linear_bounds
from .decide import decide_balls, decide_boxes
from .graph import Graph, Unprovable
from .measure import Gaussian, Law, Uniform
from .probability import ProbabilityBounds, bracket
from .problems import probability_bounds, prove
from .region import Ball, Box, Region
from .spec import Polytope
from .trace import build
from .verdict import Verdict

__all__ = [
    "Ball",
    "Box",
    "Gaussian",
    "Graph",
    "Law",
    "LinearBound",
    "Polytope",
    "ProbabilityBounds",
    "Region",
    "Uniform",
    "Unprovable",
    "Verdict",
    "bracket",
    "build",
    "decide_balls",
    "decide_boxes",
    "interval_bounds",
    "linear_bounds",
    "probability_bounds",
    "prove",
]
