"""What a property file says, as plain arrays: input regions, each with the outputs that violate there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rarely.io.formats._formula import Atom, Clause, Dnf, Rejected


@dataclass(frozen=True, eq=False)
class Polytope:
    """The set { v : A v <= b }."""

    A: np.ndarray  # (m, k)
    b: np.ndarray  # (m,)


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
    low, high = [-math.inf] * n_inputs, [math.inf] * n_inputs
    base_x, base_y = _split(base)
    contradiction = _tighten(low, high, base_x)
    if contradiction is not None or not choices:
        raise _contradiction(contradiction, inputs)

    # Clauses from a product share their atoms, so identity finds equal regions without comparing numbers.
    regions: dict[tuple[int, ...], tuple[list[Atom], list[list[Atom]]]] = {}
    for clause in choices:
        xs, ys = _split(clause)
        regions.setdefault(tuple(map(id, xs)), (xs, []))[1].append(ys)

    cases: dict[bytes, tuple[np.ndarray, np.ndarray, Polytope | None, dict[bytes, Polytope]]] = {}
    for xs, outputs in regions.values():
        clause_low, clause_high = low.copy(), high.copy()
        empty = _tighten(clause_low, clause_high, xs)
        if empty is not None:
            contradiction = contradiction or empty
            continue
        across = [atom for atom in (*base_x, *xs) if len(atom.terms) > 1]
        box = _box(clause_low, clause_high, inputs)
        constraints = _polytope(across, n_inputs) if across else None
        key = box[0].tobytes() + box[1].tobytes() + (_key(constraints) if constraints else b"")
        _, _, _, polytopes = cases.setdefault(key, (*box, constraints, {}))
        for ys in outputs:
            if not base_y and not ys:
                raise Rejected("no output constraint: every input of a region would violate the property")
            polytope = _polytope([*base_y, *ys], n_outputs)
            polytopes.setdefault(_key(polytope), polytope)
    if not cases:
        raise _contradiction(contradiction, inputs)
    return Specification(
        n_inputs,
        n_outputs,
        tuple(PropertyCase(lo, hi, across, tuple(ys.values())) for lo, hi, across, ys in cases.values()),
        source,
    )


def _split(clause: Iterable[Atom]) -> tuple[list[Atom], list[Atom]]:
    xs: list[Atom] = []
    ys: list[Atom] = []
    for atom in clause:
        (ys if atom.terms[0][0] < 0 else xs).append(atom)
    return xs, ys


def _tighten(low: list[float], high: list[float], atoms: Iterable[Atom]) -> Atom | None:
    """Intersect the box with the single-variable atoms, in place; return the atom that empties it."""
    for atom in atoms:
        if len(atom.terms) > 1:
            continue
        ((variable, coefficient),) = atom.terms
        bound = atom.bound / coefficient
        if not math.isfinite(bound):
            raise Rejected("the bound that this gives is not a finite number", atom.position)
        if coefficient > 0:
            high[variable] = min(high[variable], bound)
        else:
            low[variable] = max(low[variable], bound)
        if low[variable] > high[variable]:
            return atom
    return None


def _box(low: Sequence[float], high: Sequence[float], inputs: Sequence[Input]) -> tuple[np.ndarray, np.ndarray]:
    for side, bounds in (("lower", low), ("upper", high)):
        for bound, (name, position) in zip(bounds, inputs, strict=True):
            if math.isinf(bound):
                raise Rejected(f"{name} has no {side} bound", position)
    return np.array(low, dtype=np.float64) + 0.0, np.array(high, dtype=np.float64) + 0.0  # no -0.0


def _polytope(atoms: Sequence[Atom], width: int) -> Polytope:
    A = np.zeros((len(atoms), width))
    for row, atom in enumerate(atoms):
        for variable, coefficient in atom.terms:
            A[row, variable if variable >= 0 else ~variable] = coefficient
    return Polytope(A, np.array([atom.bound for atom in atoms], dtype=np.float64))


def _key(polytope: Polytope) -> bytes:
    return polytope.A.tobytes() + polytope.b.tobytes()


def _contradiction(atom: Atom | None, inputs: Sequence[Input]) -> Rejected:
    if atom is None:
        return Rejected("the constraints contradict each other: no input and output can meet them")
    name = inputs[atom.terms[0][0]].name
    return Rejected(f"contradictory bounds: the lower bound of {name} is above its upper", atom.position)
