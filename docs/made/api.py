"""The Python reference, from signatures, docstrings and the comments beside fields."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

from made.source import field_comments
from made.text import cell, code

_WIDTH = 88
_SHORT = 30  # characters of a default that fit the table


def names(module: str, *wanted: str) -> str:
    """A part for each name of a module."""
    home = importlib.import_module(module)
    return "\n".join(line for name in wanted for line in _part(module, name, getattr(home, name)))


def _part(module: str, name: str, value: Any) -> Iterator[str]:
    yield f'### `{module}.{name}` {{ #{module}.{name} data-toc-label="{name}" }}\n'
    if not _listed(value) and not (isinstance(value, type) and issubclass(value, Enum | Exception)):
        yield f"```python\n{_signature(f'{module}.{name}', value)}\n```\n"
    yield f"{inspect.getdoc(value)}\n"
    if isinstance(value, type):
        yield from _fields(value)
        yield from _members(value)


def _listed(value: Any) -> bool:
    """Whether the table of fields is the signature: a dataclass without a constructor of its own."""
    return dataclasses.is_dataclass(value) and value.__dataclass_params__.init


def _signature(name: str, value: Any) -> str:
    """As it is called, over several lines when one is too short."""
    signature = inspect.signature(value)
    arguments, named = [], False
    for argument in signature.parameters.values():
        if argument.kind is inspect.Parameter.KEYWORD_ONLY and not named:
            arguments.append("*")
            named = True
        default = "" if argument.default is inspect.Parameter.empty else f" = {argument.default!r}"
        arguments.append(f"{argument.name}: {argument.annotation}{default}")
    result = "" if isinstance(value, type) else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(arguments)}){result}"
    if len(line) <= _WIDTH:
        return line
    inside = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name}(\n{inside}){result}"


def _fields(kind: type) -> Iterator[str]:
    """What a dataclass is made of, or what values an enumeration has."""
    if issubclass(kind, Enum):
        yield "| value | |\n|---|---|"
        for member in kind:
            yield f"| `{member.name}` | {cell(getattr(member, 'sentence', member.value))} |"
        yield ""
    elif _listed(kind):
        comments = field_comments(kind)
        yield "| field | type | default | |\n|---|---|---|---|"
        for field in dataclasses.fields(kind):
            meaning = cell(comments.get(field.name))
            yield f"| `{field.name}` | {code(str(field.type))} | {code(_default(field))} | {meaning} |"
        yield ""


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        made = repr(field.default_factory())
        return made if len(made) <= _SHORT else "..."
    if isinstance(field.default, float):
        return f"{field.default:.6g}"
    return "" if field.default is dataclasses.MISSING else repr(field.default)


def _members(kind: type) -> Iterator[str]:
    """Methods and properties that say what they do; those that take a batch are for the library itself."""
    rows = []
    for name, member in vars(kind).items():
        plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        text = inspect.getdoc(plain) if inspect.isfunction(plain) else None
        if name.startswith("_") or not text or {"batch", "state"} & set(_own_arguments(plain)):
            continue
        call = name if isinstance(member, property) else f"{name}({', '.join(_own_arguments(plain))})"
        rows.append(f"| {code(call)} | {cell(text)} |")
    if rows:
        yield "\n".join(["| member | |\n|---|---|", *rows, ""])


def _own_arguments(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
