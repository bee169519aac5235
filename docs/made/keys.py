"""The keys of the JSON of estimates and decisions, from the descriptions in their schemas."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from made.text import cell

REFERENCE = Path(__file__).parents[1] / "reference"
SCHEMA, DECISION = REFERENCE / "estimate.schema.json", REFERENCE / "decision.schema.json"


def estimate_schema() -> str:
    return f"```json\n{SCHEMA.read_text(encoding='utf-8').rstrip()}\n```"


def estimate_keys() -> str:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    shared = schema["$defs"]
    lines = list(_keys(schema, shared))
    for part in ("evidence", "statistic"):
        lines.append(f"### A record of `{part}`\n\n`kind` says which of these it is.\n")
        for kind in (_resolved(one, shared) for one in shared[part]["oneOf"]):
            name = kind["properties"]["kind"]["const"]
            keys = {key: entry for key, entry in kind["properties"].items() if key != "kind"}
            lines += [f"#### `{name}`\n\n{kind['description']}\n", *_keys({"properties": keys}, shared)]
    return "\n".join(lines)


def decision_keys() -> str:
    """Those of estimates are not told again."""
    own = json.loads(DECISION.read_text(encoding="utf-8"))["$defs"]
    shared = {**json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"], **own}
    lines = []
    for name in ("decision", "gate"):
        rows = itertools.takewhile(bool, _keys(own[name], shared))
        lines += [f"### A {name}\n\n{own[name]['description']}\n", *rows, ""]
    return "\n".join(lines)


def _keys(schema: dict[str, Any], shared: dict[str, Any]) -> Iterator[str]:
    """A table of the keys; objects inside follow with tables of their own."""
    inner: list[tuple[str, dict[str, Any]]] = []
    yield "| key | type | meaning |\n|---|---|---|"
    for key, entry in schema["properties"].items():
        yield f"| `{key}` | {_type(entry, shared)} | {cell(entry.get('description'))} |"
        part = _resolved(entry.get("items", entry), shared)
        if len(part.get("properties", ())) > 1:
            inner.append((key, part))
    yield ""
    for key, part in inner:
        yield f"### `{key}`\n"
        yield from _keys(part, shared)


def _resolved(entry: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return shared[entry["$ref"].rsplit("/", 1)[-1]] if "$ref" in entry else entry


def _type(entry: dict[str, Any], shared: dict[str, Any]) -> str:
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "anyOf" in entry:
        return " or ".join(_type(one, shared) for one in entry["anyOf"])
    if entry.get("type") == "array":
        inside = _type(entry["items"], shared)
        return f"list of {inside.replace('list', 'lists', 1) if inside.startswith('list') else f'{inside}s'}"
    if entry.get("$ref", "").endswith("/evidence"):
        return "record"
    return str(_resolved(entry, shared).get("type", "number"))
