"""The examples by user, from the first sentences of the scripts: "For control engineers: how rarely ...?"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from made.text import cell

_FOLDER = Path(__file__).parents[2] / "examples"
_FOR = re.compile(r"For (?:a |an |the )?(.+?)s?: (.*)", re.DOTALL)


def example_table() -> str:
    named, others = [], []
    for script in sorted(_FOLDER.glob("*.py")):
        first = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        told = _FOR.fullmatch(first)
        if told:
            what = told[2][0].upper() + told[2][1:]
            named.append(f"| {cell(told[1])}s | `examples/{script.name}` | {cell(what)} |")
        else:
            others.append(f"| | `examples/{script.name}` | {cell(first)} |")
    return "\n".join(["| for | script | |", "|---|---|---|", *sorted(named), *others, ""])
