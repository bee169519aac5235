"""How help says what an option takes: words that fit their column, and nothing for a switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

_WIDE = 8  # characters of a list of names from which it goes into the text, where words are not broken


class Command(TyperCommand):
    def __init__(self, *arguments: Any, help: str | None = None, **named: Any) -> None:
        super().__init__(*arguments, help=_flowing(help), **named)

    def get_params(self, ctx: Any) -> Any:
        return _said(super().get_params(ctx))


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _said(super().get_params(ctx))


def _said(params: Sequence[Any]) -> Sequence[Any]:
    for param in params:
        kind = getattr(param, "type_descriptor", None) or param.type  # click's own name in older versions of typer
        names = [str(getattr(name, "value", name)) for name in getattr(kind, "choices", None) or ()]
        if getattr(param, "is_bool_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":  # "<str>" beside its name would say nothing, and take the room
            param.display_type_rich = _nothing
        elif param.metavar is None and len("|".join(names)) > _WIDE:
            param.metavar = "NAME"
            param.help = f"{param.help} One of {', '.join(names)}."
    return params


def _flowing(text: str | None) -> str | None:
    """Paragraphs without the line ends of the source, which fall where no screen has its own."""
    return text and "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _nothing(ctx: Any) -> str:
    return ""
