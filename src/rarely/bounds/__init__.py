"""What can be proved about a network: bounds, verdicts, and bounds on the probability of violation.

Everything here is a statement about the network as it runs in its own numbers, and so in real arithmetic; bounds
are computed in float64 and include their own rounding (see `operators` and `backward`). The pieces:

- `prove(problem)` and `probability_bounds(problem)` take a `rarely.Problem`; the rest takes modules and tensors:
- `build(module, input_shape)` reads a torch module into a `Graph`, or raises `Unprovable`;
- `linear_bounds` and `interval_bounds` bound linear functions of the output over a `BoxRegion` or a `BallRegion`;
- `decide_boxes` and `decide_balls` prove the absence of violations, or find one, or give up in time;
- `bracket` bounds the probability of violation under a `UniformMeasure` or `GaussianMeasure`.
"""

from rarely.bounds.backward import LinearBound
from rarely.bounds.crown import interval_bounds, linear_bounds
from rarely.bounds.decide import decide_balls, decide_boxes
from rarely.bounds.graph import Graph, Unprovable
from rarely.bounds.ledger import Proof
from rarely.bounds.measure import GaussianMeasure, Measure, UniformMeasure
from rarely.bounds.probability import ProbabilityBounds, bracket
from rarely.bounds.problems import probability_bounds, prove
from rarely.bounds.region import BallRegion, BoxRegion, Region
from rarely.bounds.spec import Polytope
from rarely.bounds.trace import build

__all__ = [
    "BallRegion",
    "BoxRegion",
    "GaussianMeasure",
    "Graph",
    "LinearBound",
    "Measure",
    "Polytope",
    "ProbabilityBounds",
    "Proof",
    "Region",
    "UniformMeasure",
    "Unprovable",
    "bracket",
    "build",
    "decide_balls",
    "decide_boxes",
    "interval_bounds",
    "linear_bounds",
    "probability_bounds",
    "prove",
]
