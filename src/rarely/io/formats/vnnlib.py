"""VNN-LIB 1.0: an own, iterative parser of the part of SMT-LIB that VNN-COMP uses.

A file declares inputs X_i and outputs Y_j and asserts what a counterexample must meet. Any and/or nesting of
linear constraints over inputs or over outputs is read, and brought to cases (see `Specification`). Strict
comparisons stay strict for witnesses; proofs are about the closed set, which is larger. Multi-dimensional tensors are
flattened by the format itself.
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rarely.core.errors import FormatError
from rarely.core.limits import DEPTH, WORDS
from rarely.io.files import read_text, refuse
from rarely.io.formats import _formula
from rarely.io.formats._formula import Atom, Dnf, Linear, Rejected
from rarely.io.formats.specification import Input, Polytope, PropertyCase, Specification, build_specification

__all__ = ["Polytope", "PropertyCase", "Specification", "parse_vnnlib", "read_vnnlib"]

# Comments, strings, quoted symbols, parentheses, words; the last class keeps a stray quote from vanishing.
_TOKEN: Final = re.compile(r';[^\n]*|"[^"]*"|\|[^|]*\||[()]|[^\s()";|]+|["|]')
_VARIABLE: Final = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_COMPARISONS: Final = frozenset({"<=", ">=", "<", ">", "="})
_ARITHMETIC: Final = frozenset({"+", "-", "*"})
_VERSION_2: Final = frozenset({"vnnlib-version", "declare-network"})
# SMT-LIB commands that say nothing about the property.
_IGNORED: Final = frozenset({"set-logic", "set-info", "set-option", "check-sat", "get-model", "exit"})
_COMMANDS: Final = frozenset({"assert", "declare-const", "declare-fun", *_IGNORED})

# What a parenthesis can hold once it is read: a word, an expression, a formula, or anything else, unread.
_Value = str | Linear | Dnf | None


def read_vnnlib(path: str | Path) -> Specification:
    """Read a `.vnnlib` or `.vnnlib.gz` file of version 1.0, or 2.0 with the extra `rarely[vnnlib2]`."""
    return parse_vnnlib(read_text(path), str(path))


def parse_vnnlib(text: str, source: str = "<text>") -> Specification:
    """The same for a string; `source` names it in errors."""
    tokens = _TOKEN.findall(text)
    if ";" in text:
        tokens = [token for token in tokens if token[0] != ";"]
    if len(tokens) > 1 and tokens[0] == "(" and tokens[1] in _VERSION_2:
        from rarely.io.formats.vnnlib2 import parse_vnnlib2

        return parse_vnnlib2(text, source)
    refuse(source, WORDS.excess(len(tokens), "the property"))  # what is read of a word takes some 350 bytes
    try:
        with _without_collector():
            return _Parser().parse(tokens, source)
    except Rejected as error:
        line = None if error.position is None else _line(text, error.position)
        raise FormatError(source, error.reason, line) from None


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of small objects, none in a cycle: looking for cycles among them took a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _line(text: str, position: int) -> int:
    """The line of a token. Scanning again on an error is what makes positions free when there is none."""
    for match in _TOKEN.finditer(text):
        if match.group()[0] != ";":
            if position == 0:
                return text.count("\n", 0, match.start()) + 1
            position -= 1
    return text.count("\n") + 1


class _Frame:
    """An open parenthesis: where it is and what it holds so far."""

    __slots__ = ("items", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.items: list[_Value] = []


class _Parser:
    def __init__(self) -> None:
        self.variables: dict[str, int] = {}
        self.declared: dict[str, dict[int, int]] = {"X": {}, "Y": {}}  # index -> position
        self.base: list[Atom] = []  # what every clause has in common, kept out of the products
        self.choices: Dnf = [()]

    def parse(self, tokens: list[str], source: str) -> Specification:
        stack: list[_Frame] = []
        for position, token in enumerate(tokens):
            if token == "(":
                if len(stack) >= DEPTH:
                    raise Rejected(f"parentheses are nested more than {DEPTH} deep", position)
                stack.append(_Frame(position))
            elif token == ")":
                if not stack:
                    raise Rejected("unbalanced parentheses: ')' closes nothing", position)
                frame = stack.pop()
                if not stack:
                    self.command(frame)
                elif stack[0].items and stack[0].items[0] == "assert":
                    stack[-1].items.append(self.reduce(frame, stack[0]))
                else:
                    stack[-1].items.append(None if frame.items else "()")
            elif stack:
                stack[-1].items.append(token)
            else:
                raise Rejected(f"'{_short(token)}' stands outside of any command", position)
        if stack:
            raise Rejected("unbalanced parentheses: this '(' is never closed", stack[0].position)
        return self.finish(source)

    def finish(self, source: str) -> Specification:
        for (letter, declared), kind in zip(self.declared.items(), ("input", "output"), strict=True):
            if not declared:
                raise Rejected(f"no {kind} variable {letter}_0 is declared")
            for i in range(len(declared)):
                if i not in declared:
                    last = max(declared)
                    raise Rejected(f"{letter}_{last} is declared, but {letter}_{i} is not", declared[last])
        inputs = [Input(f"X_{i}", position) for i, position in sorted(self.declared["X"].items())]
        return build_specification(tuple(self.base), self.choices, inputs, len(self.declared["Y"]), source)

    def command(self, frame: _Frame) -> None:
        head = frame.items[0] if frame.items else None
        if head == "assert":
            formula = self.formula(frame.items[1], frame) if len(frame.items) == 2 else None
            if formula is None:
                raise Rejected("assert takes one constraint", frame.position)
            if len(formula) == 1:
                self.base.extend(formula[0])
            else:
                self.choices = _formula.conjoin([self.choices, formula], frame.position)
        elif head in ("declare-const", "declare-fun"):
            self.declare(frame)
        elif head not in _IGNORED:
            shown = _short(head) if isinstance(head, str) else "("
            raise Rejected(f"unknown command '{shown}'", frame.position)

    def declare(self, frame: _Frame) -> None:
        match frame.items:
            case ["declare-const", str(name), str(sort)] | ["declare-fun", str(name), "()", str(sort)]:
                parsed = _VARIABLE.fullmatch(name)
            case [head, *_]:
                raise Rejected(f"malformed {head}", frame.position)
        if parsed is None:
            raise Rejected(f"unknown variable '{_short(name)}': only X_i and Y_i are known", frame.position)
        if sort != "Real":
            raise Rejected(f"{name} is of type '{_short(sort)}': only Real is supported", frame.position)
        if name in self.variables:
            raise Rejected(f"{name} is declared twice", frame.position)
        letter, index = parsed[1], int(parsed[2])
        self.variables[name] = index if letter == "X" else ~index
        self.declared[letter][index] = frame.position

    def reduce(self, frame: _Frame, command: _Frame) -> Linear | Dnf:
        """The meaning of one closed parenthesis inside an assert."""
        if not frame.items or not isinstance(frame.items[0], str):
            raise Rejected("an operator is missing after '('", frame.position)
        operator, arguments = frame.items[0], frame.items[1:]
        if operator in _COMMANDS:
            reason = f"unbalanced parentheses: '{operator}' begins before this command is closed"
            raise Rejected(reason, command.position)
        comparison, arithmetic = operator in _COMPARISONS, operator in _ARITHMETIC
        if not comparison and not arithmetic and operator not in ("and", "or"):
            raise Rejected(f"unsupported operator '{_short(operator)}'", frame.position)
        if len(arguments) < (2 if comparison else 1):
            raise Rejected(f"'{operator}' has too few arguments", frame.position)
        if comparison:
            return _formula.comparison(operator, self.expressions(arguments, frame), frame.position)
        if operator == "+":
            return _formula.sum_of(self.expressions(arguments, frame))
        if operator == "-":
            return _formula.subtract(self.expressions(arguments, frame))
        if operator == "*":
            return _formula.multiply(self.expressions(arguments, frame), frame.position)
        formulas = [self.formula(argument, frame) for argument in arguments]
        combine = _formula.conjoin if operator == "and" else _formula.disjoin
        return combine(formulas, frame.position)

    def formula(self, value: _Value, frame: _Frame) -> Dnf:
        if isinstance(value, list):
            return value
        found = f"'{_short(value)}'" if isinstance(value, str) else "a number"
        raise Rejected(f"a constraint is expected in place of {found}", frame.position)

    def expressions(self, values: list[_Value], frame: _Frame) -> list[Linear]:
        found: list[Linear] = []
        for value in values:
            if isinstance(value, str):
                variable = self.variables.get(value)
                if variable is None:
                    found.append(Linear({}, _number(value, frame.position)))
                else:
                    found.append(Linear({variable: 1.0}, 0.0))
            elif isinstance(value, Linear):
                found.append(value)
            else:
                raise Rejected("a number or variable is expected in place of a constraint", frame.position)
        return found


def _number(token: str, position: int) -> float:
    if _NUMBER.fullmatch(token):
        value = float(token)
        if math.isfinite(value):
            return value
    elif not _NOT_FINITE.fullmatch(token):
        raise Rejected(f"undeclared variable '{_short(token)}'", position)
    raise Rejected(f"the constant {_short(token)} is not a finite number", position)


def _short(token: str) -> str:
    return token if len(token) <= 40 else f"{token[:37]}..."
