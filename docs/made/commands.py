"""The command line reference, from the application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from made.text import cell, code


def all_commands() -> str:
    """Every command with its arguments and options."""
    import typer

    from rarely.cli.app import app

    return "\n".join(_command("rarely", typer.main.get_command(app), root=True))


def _command(name: str, command: Any, *, root: bool = False) -> Iterator[str]:
    """`command` is a command of typer, or a group of them."""
    context = command.make_context(name, [], resilient_parsing=True)
    if not root:
        yield f"## `{name}`\n"
    yield "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")) + "\n"
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    panels: dict[str, list[str]] = {}
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None and "completion" not in param.name:  # typer's own, the same in every program
            heading = "Arguments" if param.param_type_name == "argument" else param.rich_help_panel or "Options"
            panels.setdefault(heading, []).append(_row(*record))
    for heading, rows in panels.items():
        yield "\n".join([f"| {heading} | |\n|---|---|", *rows, ""])
    for child in getattr(command, "commands", {}).values():
        if not child.hidden:
            yield from _command(f"{name} {child.name}", child)


def _row(names: str, text: str) -> str:
    """One line of the help. Choices, as in `--norm <inf|2|1>`, go to the description."""
    choices = re.search(r" <([^>]*\|[^>]*)>", names)
    if choices:
        names = names.replace(choices[0], "")
        text += " One of " + ", ".join(f"`{choice}`" for choice in choices[1].split("|")) + "."
    names = re.sub(r" <list\[.*?\]>| <str>", "", names)
    text = re.sub(r" *\[default: (.*?)\]", r" Default: `\1`.", text.replace("  [required]", " Required."))
    return f"| {code(names)} | {cell(text)} |"
