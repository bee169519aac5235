"""What a property file says, as plain arrays: input regions, each with the outputs that violate there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from rarely.core.limits import COEFFICIENTS
from rarely.io.formats._formula import Atom, Clause, Dnf, Rejected


@dataclass(frozen=True, eq=False)
class Polytope:
    """The set { v : A v <= b }, with < in the rows that are strict."""

    A: np.ndarray  # (m, k)
    b: np.ndarray  # (m,)
    strict: np.ndarray  # (m,) bool

    def holds(self, v: np.ndarray) -> bool:
        """Whether it holds v (k,), as written."""
        if not np.isfinite(v).all():
            left = self.A @ v
            return bool(np.where(self.strict, left < self.b, left <= self.b).all())
        exact = [Fraction(float(value)) for value in v]  # no sum that rounds decides
        for row, b, strict in zip(self.A, self.b, self.strict, strict=True):
            total = sum(Fraction(float(row[j])) * exact[j] for j in row.nonzero()[0])
            if total > Fraction(float(b)) or (strict and total == Fraction(float(b))):
                return False
        return True


@dataclass(frozen=True, eq=False)
class PropertyCase:
    """One input region with the outputs that violate there.

    A violation is an x in the box that meets `input_constraints` (when there are any) and whose y lies in
    *any* of `outputs`.
    """

    low: np.ndarray  # (n_inputs,)
    high: np.ndarray  # (n_inputs,)
    input_constraints: Polytope | None  # across several inputs; bounds on a single one are in the box
    outputs: tuple[Polytope, ...]
    open_low: np.ndarray  # (n_inputs,) bool: where the bound itself is left out
    open_high: np.ndarray


@dataclass(frozen=True, eq=False)
class Specification:
    """A property: violated by (x, y) when any of its cases is. Regions of different cases may overlap."""

    n_inputs: int
    n_outputs: int
    cases: tuple[PropertyCase, ...]
    source: str


class Input(NamedTuple):
    """An input as its file calls it, for messages: its name and the position of its declaration."""

    name: str
    position: int | None


def build_specification(
    base: Clause, choices: Dnf, inputs: Sequence[Input], n_outputs: int, source: str
) -> Specification:
    """The cases of `base and (choices[0] or choices[1] or ...)`.

    Clauses with the same input region become one case with several output polytopes, since a sampler pays
    per region. A clause that contradicts itself is an empty set and is left out: products of disjunctions
    make such clauses as a matter of course. When nothing else is left, that is an error.
    """
    n_inputs = len(inputs)
    whole = _Box([-math.inf] * n_inputs, [math.inf] * n_inputs, [False] * n_inputs, [False] * n_inputs)
    base_x, base_y = _split(base)
    contradiction = whole.tighten(base_x)
    if contradiction is not None or not choices:
        raise _contradiction(contradiction, inputs)

    # Clauses from a product share their atoms, so identity finds equal regions without comparing numbers.
    regions: dict[tuple[int, ...], tuple[list[Atom], list[list[Atom]]]] = {}
    for clause in choices:
        xs, ys = _split(clause)
        regions.setdefault(tuple(map(id, xs)), (xs, []))[1].append(ys)

    numbers = 0
    cases: dict[bytes, tuple[_Box, Polytope | None, dict[bytes, Polytope]]] = {}
    for xs, outputs in regions.values():
        box = whole.copy()
        empty = box.tighten(xs)
        if empty is not None:
            contradiction = contradiction or empty
            continue
        box.check(inputs)
        across = [atom for atom in (*base_x, *xs) if len(atom.terms) > 1]
        numbers += n_inputs * (4 + len(across)) + n_outputs * sum(len(base_y) + len(ys) for ys in outputs)
        reason = COEFFICIENTS.excess(numbers, "the property")
        if reason is not None:
            raise Rejected(reason)
        constraints = _polytope(across, n_inputs) if across else None
        key = b"".join(side.tobytes() for side in box.arrays()) + (_key(constraints) if constraints else b"")
        _, _, polytopes = cases.setdefault(key, (box, constraints, {}))
        for ys in outputs:
            if not base_y and not ys:
                raise Rejected("no output constraint: every input of a region would violate the property")
            polytope = _polytope([*base_y, *ys], n_outputs)
            polytopes.setdefault(_key(polytope), polytope)
    if not cases:
        raise _contradiction(contradiction, inputs)
    made = []
    for box, constraints, found in cases.values():
        low, high, open_low, open_high = box.arrays()
        made.append(PropertyCase(low, high, constraints, tuple(found.values()), open_low, open_high))
    return Specification(n_inputs, n_outputs, tuple(made), source)


class _Box(NamedTuple):
    """Bounds on every input while clauses are read, and whether they themselves are left out."""

    low: list[float]
    high: list[float]
    open_low: list[bool]
    open_high: list[bool]

    def copy(self) -> _Box:
        return _Box(*(side.copy() for side in self))  # type: ignore[arg-type]

    def tighten(self, atoms: Iterable[Atom]) -> Atom | None:
        """Intersect with the single-variable atoms, in place; return the atom that empties it."""
        for atom in atoms:
            if len(atom.terms) > 1:
                continue
            ((i, coefficient),) = atom.terms
            bound = atom.bound / coefficient
            if not math.isfinite(bound):
                raise Rejected("the bound that this gives is not a finite number", atom.position)
            ends, opens, side = (self.high, self.open_high, 1) if coefficient > 0 else (self.low, self.open_low, -1)
            if side * bound < side * ends[i]:
                ends[i], opens[i] = bound, atom.strict
            elif bound == ends[i]:
                opens[i] = opens[i] or atom.strict
            empty = self.low[i] == self.high[i] and (self.open_low[i] or self.open_high[i])
            if self.low[i] > self.high[i] or empty:
                return atom
        return None

    def check(self, inputs: Sequence[Input]) -> None:
        for side, bounds in (("lower", self.low), ("upper", self.high)):
            for bound, (name, position) in zip(bounds, inputs, strict=True):
                if math.isinf(bound):
                    raise Rejected(f"{name} has no {side} bound", position)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        low, high = (np.array(side, dtype=np.float64) + 0.0 for side in (self.low, self.high))  # no -0.0
        return low, high, np.array(self.open_low), np.array(self.open_high)


def _split(clause: Iterable[Atom]) -> tuple[list[Atom], list[Atom]]:
    xs: list[Atom] = []
    ys: list[Atom] = []
    for atom in clause:
        (ys if atom.terms[0][0] < 0 else xs).append(atom)
    return xs, ys


def _polytope(atoms: Sequence[Atom], width: int) -> Polytope:
    A = np.zeros((len(atoms), width))
    for row, atom in enumerate(atoms):
        for variable, coefficient in atom.terms:
            A[row, variable if variable >= 0 else ~variable] = coefficient
    b = np.array([atom.bound for atom in atoms], dtype=np.float64)
    return Polytope(A, b, np.array([atom.strict for atom in atoms]))


def _key(polytope: Polytope) -> bytes:
    return polytope.A.tobytes() + polytope.b.tobytes() + polytope.strict.tobytes()


def _contradiction(atom: Atom | None, inputs: Sequence[Input]) -> Rejected:
    if atom is None:
        return Rejected("the constraints contradict each other: no input and output can meet them")
    name = inputs[atom.terms[0][0]].name
    return Rejected(f"contradictory bounds: the lower bound of {name} is above its upper", atom.position)
