"""Linear constraints and their and/or combinations in disjunctive normal form, shared by all parsers.

Variables are integers: input i is `i`, output j is `~j` (negative). A formula is always kept in disjunctive
normal form: a list of clauses (any may hold), each a tuple of atoms (all must hold). The empty list is
false and the empty clause is true. Every function is iterative, so deep files cannot exhaust the stack.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from rarely.core.limits import CLAUSES, LITERALS, WRITTEN, Limit

_DIRECTIONS = {"<": (1.0,), ">": (-1.0,), "=": (1.0, -1.0)}


class Rejected(Exception):
    """A reason and a parser's own notion of position; the parser turns it into a `FormatError`."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.position = reason, position


class Linear(NamedTuple):
    """constant + sum of coefficient * variable. Owned by one parent: the functions below may reuse it."""

    coefficients: dict[int, float]
    constant: float


class Atom(NamedTuple):
    """sum of coefficient * variable <= bound, or <, over inputs only or outputs only, never over none."""

    terms: tuple[tuple[int, float], ...]
    bound: float
    position: int
    strict: bool


Clause = tuple[Atom, ...]
Dnf = list[Clause]


def sum_of(parts: Sequence[Linear]) -> Linear:
    largest = max(range(len(parts)), key=lambda i: len(parts[i].coefficients))
    total = parts[largest].coefficients  # merging into the largest keeps nested sums linear in their length
    for i, part in enumerate(parts):
        if i != largest:
            for variable, coefficient in part.coefficients.items():
                total[variable] = total.get(variable, 0.0) + coefficient
    return Linear(total, sum(part.constant for part in parts))


def times(part: Linear, factor: float) -> Linear:
    return Linear({v: factor * c for v, c in part.coefficients.items()}, factor * part.constant)


def subtract(parts: Sequence[Linear]) -> Linear:
    """SMT-LIB's minus: a single operand is negated, further operands are taken from the first."""
    if len(parts) == 1:
        return times(parts[0], -1.0)
    return sum_of([parts[0], *(times(part, -1.0) for part in parts[1:])])


def multiply(parts: Sequence[Linear], position: int) -> Linear:
    factor, variable_part = 1.0, None
    for part in parts:
        if not part.coefficients:
            factor *= part.constant
        elif variable_part is None:
            variable_part = part
        else:
            raise Rejected("a product of variables is not linear: unsupported", position)
    return Linear({}, factor) if variable_part is None else times(variable_part, factor)


def comparison(operator: str, operands: Sequence[Linear], position: int) -> Dnf:
    """The chain `operands[0] operator operands[1] operator ...`."""
    strict = operator in ("<", ">")
    atoms: list[Atom] = []
    for left, right in itertools.pairwise(operands):
        difference = dict(left.coefficients)
        for variable, coefficient in right.coefficients.items():
            difference[variable] = difference.get(variable, 0.0) - coefficient
        linear = Linear(difference, left.constant - right.constant)
        for sign in _DIRECTIONS[operator[0]]:
            atom = _atom(linear, sign, position, strict)
            if atom.terms:
                atoms.append(atom)
            elif atom.bound < 0 or (strict and atom.bound == 0):
                return []
    return [tuple(atoms)]


def _atom(linear: Linear, sign: float, position: int, strict: bool) -> Atom:
    terms = tuple(sorted((v, sign * c) for v, c in linear.coefficients.items() if c != 0.0))
    bound = 0.0 - sign * linear.constant
    if not math.isfinite(bound) or not all(math.isfinite(c) for _, c in terms):
        raise Rejected("the constants of this constraint overflow", position)
    if terms and terms[0][0] < 0 <= terms[-1][0]:
        raise Rejected("a constraint that mixes inputs (X) and outputs (Y) is unsupported", position)
    return Atom(terms, bound, position, strict)


def conjoin(parts: Sequence[Dnf], position: int | None = None) -> Dnf:
    """All of `parts`: the product of their clauses."""
    if not all(parts):
        return []
    clauses: Dnf = [tuple(atom for part in parts if len(part) == 1 for atom in part[0])]
    for part in parts:
        if len(part) == 1:
            continue
        literals = len(part) * sum(map(len, clauses)) + len(clauses) * sum(map(len, part))
        _check_size(len(clauses) * len(part), literals, position, CLAUSES if len(clauses) > 1 else WRITTEN)
        clauses = [left + right for left in clauses for right in part]
    return clauses


def disjoin(parts: Sequence[Dnf], position: int | None = None) -> Dnf:
    """Any of `parts`."""
    clauses = [clause for part in parts for clause in part]
    _check_size(len(clauses), 0, position, WRITTEN)
    return clauses


def _check_size(clauses: int, literals: int, position: int | None, most: Limit) -> None:
    """A few lines can make a product as large as they like; the parts of a disjunction are written out one by one."""
    what = "the property, with its combinations of and/or multiplied out,"
    reason = most.excess(clauses, what) or LITERALS.excess(literals, what)
    if reason is not None:
        raise Rejected(reason, position)
