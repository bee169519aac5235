"""Small pieces of Markdown."""

from __future__ import annotations


def cell(text: str | None) -> str:
    """Text for one cell of a table."""
    one_line = " ".join((text or "").split())
    return one_line.replace("|", "&#124;").replace("<", "&lt;")


def code(text: str) -> str:
    """Code for one cell of a table: backticks would show what stands for a bar as it is written."""
    return f"<code>{cell(text)}</code>" if text else ""
