"""The keys of `campaign.toml`, from the models that check it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from made.source import field_comments
from made.text import cell, code


def plan_tables() -> str:
    """A table for each table of the file."""
    from rarely.campaign import plan

    tables = {
        "`[campaign]`": plan.General,
        "`[[networks]]`": plan.NetworkTable,
        "`[[problems]]` with `dataset`": plan.DatasetTable,
        "`[[problems]]` with `vnnlib`": plan.VnnlibTable,
        "`[[problems]]` with `instances`": plan.InstancesTable,
        "`[[problems]]` with `rlv`": plan.RlvTable,
        "`[estimator]`": plan.EstimatorTable,
        "`[budget]`": plan.BudgetTable,
    }
    return "\n".join(line for title, model in tables.items() for line in _table(title, model))


def _table(title: str, model: Any) -> Iterator[str]:
    yield f"### {title}\n"
    if "__doc__" in vars(model) and model.__doc__:
        yield f"{inspect.cleandoc(model.__doc__)}\n"
    comments, schema = field_comments(model), model.model_json_schema()
    yield "| key | value | default | |\n|---|---|---|---|"
    for key, entry in schema["properties"].items():
        default = "required" if key in schema.get("required", ()) else code(_default(entry.get("default")))
        yield f"| `{key}` | {cell(_words(entry))} | {default} | {cell(entry.get('description') or comments.get(key))} |"
    yield ""


def _default(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _words(entry: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "anyOf" in entry:
        return " or ".join(_words(one) for one in entry["anyOf"] if one.get("type") != "null")
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "const" in entry:
        return f"`{entry['const']}`"
    if entry["type"] == "array":
        if "prefixItems" in entry:
            return f"{len(entry['prefixItems'])} numbers"
        return f"list of: {_words(entry['items'])}"
    limits = [f"{sign} {entry[key]}" for key, sign in _LIMITS.items() if key in entry and abs(entry[key]) < 2**31]
    return " ".join([_TYPES[entry["type"]], " and ".join(limits)]).strip()


_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
