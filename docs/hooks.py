"""What mkdocs makes at build time: parts of pages that come from the code, so that no copy of them can go stale, and
formulas, which browsers draw without a script.

A page says `<!-- made: commands -->` where the part belongs; words after the name are its arguments. mkdocs puts this
folder on the path.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

from latex2mathml.converter import convert
from made import api, commands, examples, keys, notebook, plan, steps

_MARK = re.compile(r"^<!-- made: (\S+)(.*?) -->$", re.MULTILINE)
_FORMULA = re.compile(r'<(?:span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>', re.DOTALL)
PARTS: dict[str, Callable[..., str]] = {
    "api": api.names,
    "commands": commands.all_commands,
    "decision-keys": keys.decision_keys,
    "estimate-keys": keys.estimate_keys,
    "estimate-schema": keys.estimate_schema,
    "examples": examples.example_table,
    "notebook": notebook.shown,
    "plan": plan.plan_tables,
    "steps": steps.step_table,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _MARK.sub(lambda mark: PARTS[mark[1]](*mark[2].split()), markdown)


def on_page_content(content: str, **_: Any) -> str:
    return _FORMULA.sub(_typeset, content)


def _typeset(formula: re.Match[str]) -> str:
    return convert(html.unescape(formula[2]).strip(), display="block" if formula[1] == "[" else "inline")
