"""The examples by user, from the first sentences of the scripts: "For control engineers: how rarely ...?"."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from made.text import cell

_FOLDER = Path(__file__).parents[2] / "examples"
_FOR = re.compile(r"For (.+?): (.*)", re.DOTALL)
# What a user begins with stands first.
_FIRST = ("detector", "loan_table", "closed_loop", "safety_case", "compare_methods")


def example_table() -> str:
    """A row for each script; on a phone its name stands above what it answers."""
    users = defaultdict(list)
    for script in sorted(_FOLDER.glob("*.py"), key=lambda script: (script.stem not in _FIRST, script.stem)):
        first = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        told = _FOR.fullmatch(first)
        user, what = (told[1], told[2]) if told else ("everybody", first)
        users[user].append(f"`examples/{script.name}`<br>{cell(what[0].upper() + what[1:])}")
    rows = [f"| {user} | {entry} |" for user in sorted(users) for entry in users[user]]
    return "\n".join(["| for | script |", "|---|---|", *rows, ""])
