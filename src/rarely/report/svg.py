"""A figure as SVG inside a page: it takes the page's colours and fonts, and says in words what it shows."""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

from rarely.report.figures import ACCENT, FAINT, INK, SERIES, WARNING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fixed colours become the page's variables, so that one drawing serves light and dark. Black is matplotlib's default.
_VARIABLES = {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    ACCENT: "var(--accent)",
    FAINT: "var(--faint)",
    WARNING: "var(--warning)",
    **{color: f"var(--series-{i})" for i, color in enumerate(SERIES) if color != ACCENT},
}


def inline(figure: Figure, name: str, title: str, description: str) -> str:
    """SVG for a page. `name` is unique in the page: what the drawing refers to inside itself is named after it."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)  # would rule the whole page
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # every drawing has a figure_1; the references go to other elements
    text = re.sub(r'style="[^"]*"', _restyle, text)
    text = re.sub(r"\s*\n\s*", " ", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None  # matplotlib always writes one
    words = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    start = f'<svg {box[0]} role="img" aria-labelledby="{name}-title {name}-desc">{words}'
    return start + text[text.index(">") + 1 :]


def _restyle(style: re.Match[str]) -> str:
    text = re.sub(r"font-family: [^;\"]*;? ?", "", style[0])
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    return text
