"""The keys of an estimate's JSON, from the descriptions in its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from made.text import cell

SCHEMA = Path(__file__).parents[1] / "reference" / "estimate.schema.json"


def estimate_schema() -> str:
    return f"```json\n{SCHEMA.read_text(encoding='utf-8').rstrip()}\n```"


def estimate_keys() -> str:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return "\n".join(_keys(schema, schema["$defs"]))


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
    if entry.get("type") == "array":
        return f"list of {_type(entry['items'], shared)}s"
    return str(_resolved(entry, shared).get("type", "number"))
