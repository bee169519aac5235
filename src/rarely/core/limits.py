"""How much a file may ask for: one table. It is asked before anything is allocated, and one variable raises all of it.

Limits count bytes, entries and operations, never seconds, so that a busy machine refuses no more than a quiet one.
The one exception is `SECONDS`, for what runs outside of this package's sight.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from rarely.core.errors import InputError

VARIABLE = "RARELY_LIMITS"  # multiplies every limit


@dataclass(frozen=True)
class Limit:
    what: str  # as SECURITY.md lists it
    most: int
    unit: str

    @property
    def now(self) -> int:
        return int(self.most * factor())

    def excess(self, asked: float, what: str) -> str | None:
        """The sentence against `what`, which asks for so much, or None when that is allowed."""
        if asked <= self.now:
            return None
        wanted = f"{asked:.2g}" if asked > 1e15 else f"{math.ceil(asked):,}"
        times = asked / self.most
        enough = f"={math.ceil(times)}" if times < 1e6 else ""
        return (
            f"{what} is too large: {wanted} {self.unit}, where {self.now:,} are allowed; if you trust the file and "
            f"have the memory and the time, raise the limits by setting the environment variable {VARIABLE}{enough}"
        )


MEMORY = Limit("memory for what one file unpacks to or computes", 2 << 30, "bytes")
UNPACKED = Limit("a compressed file, unpacked; or 50 times its size, where that is more", 64 << 20, "bytes")
TEXT = Limit("a file of text: VNN-LIB, rlv, csv, JSON", 64 << 20, "bytes")
PLAN = Limit("a campaign.toml", 4 << 20, "bytes")
ENTRIES = Limit("one value inside an ONNX graph, for one input", 1 << 25, "entries")
NODES = Limit("nodes of an ONNX graph", 20_000, "nodes")
OPERATIONS = Limit("running a network on the 20 inputs of its check", 10**12, "operations")
SECONDS = Limit("running a network in onnxruntime for the first time", 20, "seconds")
WEIGHTS = Limit("weights of an .rlv network, with those that are zero", 1 << 26, "weights")
LEVELS = Limit("layers of an .rlv network, one behind the other", 10_000, "layers")
WORDS = Limit("a VNN-LIB 1.0 file, in words and parentheses", 5_000_000, "words")
CLAUSES = Limit("clauses of a property, multiplied out", 100_000, "clauses")
WRITTEN = Limit("clauses of a property, written out", 1_000_000, "clauses")
LITERALS = Limit("constraints in all clauses of a property together", 10_000_000, "constraints")
COEFFICIENTS = Limit("coefficients of a property's matrices and boxes, with those that are zero", 1 << 26, "numbers")
SETTINGS = Limit("combinations of a [matrix]", 10_000, "combinations")
PROBLEMS = Limit("problems of a campaign", 10_000_000, "problems")

ALL = (
    MEMORY, UNPACKED, TEXT, PLAN, ENTRIES, NODES, OPERATIONS, SECONDS, WEIGHTS, LEVELS, WORDS, CLAUSES, WRITTEN,
    LITERALS, COEFFICIENTS, SETTINGS, PROBLEMS,
)  # fmt: skip

# What parsers call themselves for: more would end the process, so that nothing raises these.
DEPTH = 1000  # parentheses of VNN-LIB 1.0
DEPTH_2 = 500  # of VNN-LIB 2.0, which is parsed by recursion in C++
KEY_PARTS = 100  # of a dotted key in TOML, which costs the square of them


def factor() -> float:
    text = os.environ.get(VARIABLE, "1")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise InputError(f"{VARIABLE}={text[:40]!r} is not a positive number: it multiplies what a file may ask for")
    return value
