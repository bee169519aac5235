"""How the figures of the papers' experiments look: one width, one style, one place for names.

A figure is as wide as a page; each says which figure of the paper it stands beside, and names its curves where they
are, in their colours. Needs matplotlib.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers.webb2019.common import Context

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, FAINT = "#22303c", "#66757f", "#b8c4cc"
OURS, PAPERS, PLAIN = "#1f6f8b", "#c8553d", "#8a6fb0"
SERIES = (OURS, PAPERS, PLAIN, "#b07d1e", "#5b8c5a", INK)  # for lines of one figure, in this order

PAGE = 7.2  # inches of every figure: at 720 pixels, text of 8 points is 11 pixels high
TEXT, SMALL = 9, 8  # points; nothing is smaller


def panels(stands_beside: str, columns: int = 1, rows: int = 1, height: float = 2.9, **grid: Any) -> tuple[Figure, Any]:
    """A figure as wide as a page, with a line about what it stands beside, and its axes (an array of several)."""
    figure = _page(stands_beside, height * rows)
    axes = figure.subplots(rows, columns, **grid)
    _style(figure)
    return figure, axes


def mosaic(stands_beside: str, plan: str, height: float = 2.9, **grid: Any) -> tuple[Figure, list[Axes]]:
    """The same for panels of several widths, in alphabetical order: "aa;bc" has a wide one above two others."""
    figure = _page(stands_beside, height * len(plan.split(";")))
    axes = figure.subplot_mosaic(plan, **grid)
    _style(figure)
    return figure, [axes[name] for name in sorted(axes)]


def _page(stands_beside: str, height: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE, height + 0.3), layout="constrained")
    figure.suptitle(stands_beside, x=0.01, ha="left", fontsize=SMALL, color=MUTED)
    return figure


def _style(figure: Figure) -> None:
    for each in figure.axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(colors=INK, labelsize=SMALL)
        each.grid(color=FAINT, linewidth=0.4, alpha=0.6)
        each.set_axisbelow(True)


def label(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(x, color=INK, fontsize=TEXT)
    axes.set_ylabel(y, color=INK, fontsize=TEXT)
    axes.set_title(title, loc="left", fontsize=TEXT, color=INK)


def name_curves(axes: Axes, where: str = "best", columns: int = 1) -> None:
    """The names of what is drawn, in their colours."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(
            fontsize=SMALL, frameon=False, labelcolor="linecolor", loc=where, ncols=columns, handlelength=1.2,
            handletextpad=0.5, labelspacing=0.3, columnspacing=1.2, borderaxespad=0.3,
        )  # fmt: skip


def name_curve(axes: Axes, text: str, at: tuple[float, float], color: str, **place: Any) -> None:
    """A name beside a curve, at a point of the data."""
    axes.annotate(
        text, at, textcoords="offset points", fontsize=SMALL, color=color, **{"xytext": (4, 0), "va": "center", **place}
    )


def log_y(axes: Axes) -> None:
    """A logarithmic axis with powers of ten as 1e4: raised exponents would be too small to read."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e+0", "e").replace("e+", "e"))


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write NAME.svg and NAME.png. Text stays text in the SVG, and the same figure gives the same file."""
    import matplotlib

    written = [out / f"{name}.svg", out / f"{name}.png"]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rarely"}):
        figure.savefig(written[0], metadata={"Date": None}, dpi=200)  # of rasterized parts
        figure.savefig(written[1], dpi=130)
    text = written[0].read_text(encoding="utf-8")
    written[0].write_text(_POSITIONS.sub(lambda match: _DIGITS.sub(r"\1", match[0]), text), encoding="utf-8")
    return written


# Positions in an SVG, and their digits after the second: a hundredth of a point is not seen, and half of the file.
_POSITIONS, _DIGITS = re.compile(r'\b(?:d|x|y)="[^"]*"'), re.compile(r"(\.\d\d)\d+")


def draw(context: Context, figures: Callable[[Context], list[Path]]) -> None:
    """Draw, or say how to draw later: a GPU machine may have no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print(f"no matplotlib here: draw with python -m papers.webb2019.{context.name} --figures-only", file=sys.stderr)
        return
    written = figures(context)
    if not written:
        print(f"{context.out} holds nothing to draw yet", file=sys.stderr)
    for path in written:
        print(path)
