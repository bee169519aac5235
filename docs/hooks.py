"""What mkdocs makes at build time: parts of pages that come from the code, so that no copy of them can go stale.

A page says `<!-- made: commands -->` where the part belongs; words after the name are its arguments. mkdocs puts this
folder on the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from made import api, commands, keys, plan, steps

_MARK = re.compile(r"^<!-- made: (\S+)(.*?) -->$", re.MULTILINE)
PARTS: dict[str, Callable[..., str]] = {
    "api": api.names,
    "commands": commands.all_commands,
    "estimate-keys": keys.estimate_keys,
    "estimate-schema": keys.estimate_schema,
    "plan": plan.plan_tables,
    "steps": steps.step_table,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _MARK.sub(lambda mark: PARTS[mark[1]](*mark[2].split()), markdown)
