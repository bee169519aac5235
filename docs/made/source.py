"""What the source says beside the code."""

from __future__ import annotations

import inspect
import io
import textwrap
import tokenize


def field_comments(kind: type) -> dict[str, str]:
    """The comment beside each field of a class: `radius: Tensor  # () one number per problem`."""
    found: dict[str, str] = {}
    field = ""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:  # a class that a function made: its fields have descriptions of their own
        return {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.start[1] == 4:
            field = token.string
        elif token.type == tokenize.COMMENT:
            found.setdefault(field, token.string.lstrip("# "))
    return found
