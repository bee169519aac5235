"""VNN-LIB 2.0 through the AST of the package `vnnlib` (the extra `rarely[vnnlib2]`).

Only the AST is used: the package's own `compat.transform` mishandles an `or` over inputs together with an
`or` over outputs. Supported is what this package can sample: one network with one input and one output
tensor of real or floating type, and any and/or nesting of linear constraints. The rest is refused by name.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from rarely.core.errors import FormatError, MissingExtra
from rarely.core.limits import COEFFICIENTS, DEPTH_2
from rarely.io.files import refuse
from rarely.io.formats import _formula
from rarely.io.formats._formula import Dnf, Linear, Rejected
from rarely.io.formats.specification import Input, Specification, build_specification

_REAL_TYPES = frozenset({"Real", "F16", "F32", "F64", "BF16"})
_COMPARISONS = {"LessThan": "<", "LessEqual": "<=", "GreaterThan": ">", "GreaterEqual": ">=", "Equal": "="}


def parse_vnnlib2(text: str, source: str = "<text>") -> Specification:
    """Parse VNN-LIB 2.0; tensors are flattened in row-major order, as the networks of this package are."""
    try:
        import vnnlib
    except ImportError:
        raise MissingExtra(
            f"{source} is VNN-LIB 2.0, which needs the package vnnlib: pip install 'rarely[vnnlib2]'"
        ) from None
    _check_text(text, source)
    try:
        query = vnnlib.parse_query_string(text)
    except vnnlib.VNNLibException as error:
        raise _format_error(source, str(error)) from None
    except (IndexError, ValueError, RuntimeError) as error:  # numbers that C++ cannot hold
        raise FormatError(source, f"a number cannot be read ({error})") from None
    try:
        return _specification(query, source)
    except Rejected as error:
        raise FormatError(source, error.reason, error.position) from None


def _check_text(text: str, source: str) -> None:
    """Refuse what the package does not refuse properly: a NUL would end the text early, in silence."""
    depth = 0
    for match in re.finditer(r";[^\n]*|[()\0]|[^\0-\x7f]", text):
        character = match.group()[0]
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character not in "();":
            reason = f"the character {character!r} stands outside of a comment"
        elif depth > DEPTH_2:
            reason = f"parentheses are nested more than {DEPTH_2} deep"
        else:
            continue
        raise FormatError(source, reason, text.count("\n", 0, match.start()) + 1)


def _format_error(source: str, message: str) -> FormatError:
    """The package reports syntax as a sentence with a line and types as a JSON list of errors."""
    try:
        first = json.loads(message)["errors"][0]
        reason = f"{first['message']}: {first['offendingSymbol']} ({first['hint']})"
        return FormatError(source, reason, int(first["line"]))
    except (ValueError, KeyError, IndexError, TypeError):
        line = re.search(r"line (\d+)", message)
        return FormatError(source, message, int(line[1]) if line else None)


def _specification(query: Any, source: str) -> Specification:
    if len(query.networks) != 1:
        raise Rejected(f"{len(query.networks)} networks: only one is supported")
    (network,) = query.networks
    if network.hidden:
        raise Rejected("hidden nodes are not supported")
    for kind, tensors in (("input", network.inputs), ("output", network.outputs)):
        if len(tensors) != 1:
            raise Rejected(f"{len(tensors)} {kind} tensors: only one is supported")
        (tensor,) = tensors
        # Drafts of 2.0 wrote Real; the package passes the word on without knowing it.
        if tensor.dtype.name not in _REAL_TYPES and " Real " not in str(tensor):
            raise Rejected(f"{tensor}: only real and floating types are supported")
    formulas = [_evaluate(assertion.expr) for assertion in query.assertions]
    base = tuple(atom for formula in formulas if len(formula) == 1 for atom in formula[0])
    choices = _formula.conjoin([formula for formula in formulas if len(formula) != 1])
    x, y = network.inputs[0], network.outputs[0]
    for tensor in (x, y):
        refuse(source, COEFFICIENTS.excess(16 * math.prod(tensor.shape), f"the tensor {tensor.name}"))
    inputs = [Input(f"{x.name}{list(index)}", None) for index in np.ndindex(*x.shape)]  # the AST has no line
    return build_specification(base, choices, inputs, math.prod(y.shape), source)


def _evaluate(root: Any) -> Any:
    """The formula of an AST, children first, without recursion."""
    pending: list[tuple[Any, bool]] = [(root, False)]
    done: list[tuple[Any, int]] = []  # a value and the first line below it
    while pending:
        node, ready = pending.pop()
        children = node.children()
        if not ready and children:
            pending.append((node, True))
            pending.extend((child, False) for child in reversed(children))
        elif not children:
            done.append((_leaf(node), node.line))
        else:
            values = [value for value, _ in done[-len(children) :]]
            line = done[-len(children)][1]
            del done[-len(children) :]
            done.append((_combine(type(node).__name__, values, line), line))
    return done[0][0]


def _leaf(node: Any) -> Linear:
    if type(node).__name__ != "Var":
        return Linear({}, float(node.value))
    index = 0
    for position, size in zip(node.indices, node.shape, strict=True):
        index = index * size + position
    return Linear({index if node.kind.name == "Input" else ~index: 1.0}, 0.0)


def _combine(kind: str, values: list[Any], line: int) -> Linear | Dnf:
    match kind:
        case "And":
            return _formula.conjoin(values, line)
        case "Or":
            return _formula.disjoin(values, line)
        case "Plus":
            return _formula.sum_of(values)
        case "Minus" | "Negate":
            return _formula.subtract(values)
        case "Multiply":
            return _formula.multiply(values, line)
        case _ if kind in _COMPARISONS:
            return _formula.comparison(_COMPARISONS[kind], values, line)
    raise Rejected(f"{kind} is not supported", line)
