"""A test of a probability that may look at its count at any time: wrong with at most the stated probability.

The mixture of likelihood ratios of some alternatives against the threshold is a nonnegative martingale of mean one when
the threshold is true (and a supermartingale beyond it), so that it ever reaches 1 / alpha with probability at most
alpha (Ville 1939): looking after every draw, and stopping when one likes, costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_BELOW = ((0.5, 0.0), (0.1, 0.1), (0.1, 0.3), (0.1, 0.5), (0.1, 0.7), (0.1, 0.85))  # weights and multiples
_ABOVE = ((0.2, 1.15), (0.2, 1.5), (0.2, 2.0), (0.2, 4.0), (0.1, 20.0), (0.1, 1000.0))


def log_evidence_below(hits: int, n: int, threshold: float) -> float:
    """Log of the evidence for p < threshold against p >= threshold, from `hits` of `n` independent draws."""
    return _mixture(hits, n, threshold, _BELOW)


def log_evidence_above(hits: int, n: int, threshold: float) -> float:
    """Log of the evidence for p > threshold against p <= threshold."""
    return _mixture(hits, n, threshold, _ABOVE)


def draws_needed(threshold: float, confidence: float) -> int:
    """Draws without a violation that are enough for p < threshold."""
    weight = _BELOW[0][0]
    return math.ceil((math.log(1 - confidence) + math.log(weight)) / math.log1p(-threshold))


def _mixture(hits: int, n: int, threshold: float, alternatives: Sequence[tuple[float, float]]) -> float:
    terms = []
    for weight, multiple in alternatives:
        # An alternative must be a probability: multiples beyond one are cut to what lies between the threshold and one.
        q = multiple * threshold if multiple * threshold < 1 else 0.5 * (1 + threshold)
        gain = hits * math.log(q / threshold) if q > 0 else (0.0 if hits == 0 else -math.inf)
        terms.append(math.log(weight) + gain + (n - hits) * (math.log1p(-q) - math.log1p(-threshold)))
    top = max(terms)
    return top + math.log(sum(math.exp(term - top) for term in terms)) if top > -math.inf else top
