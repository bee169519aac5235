"""A line that says how far a run is: in a terminal, or in a notebook, where a cell has no terminal."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Display

    from rarely.methods.base import Progress

_SECONDS_BETWEEN = 0.2  # two lines of a notebook, which keeps what it is sent
_WIDTH = 110  # characters of such a line


def progress_display(console: Console, total: int, *, quiet: bool = False) -> Display:
    """A line while work goes on, and only on a terminal. A bar needs several things to count."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    counted = (BarColumn(20), MofNCompleteColumn()) if total > 1 else ()
    what = TextColumn("{task.fields[what]}", markup=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn(), what)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def describe(event: Progress, problems: int) -> str:
    """What goes on, in a line."""
    lowest = float(event.log_prob.min())
    reached = f"log p {lowest:.1f}" if math.isfinite(lowest) else "no violation yet"
    running = f"{event.active} of {problems} running, " if problems > 1 else ""
    return f"{event.stage}: {running}{reached}, {event.calls:,} calls"


@contextmanager
def shown_progress(title: str, total: int) -> Iterator[Callable[[Progress, int], None]]:
    """A function of every event and of how many of `total` problems are finished, which shows where the run stands.

    On a terminal it is a line on stderr, in a notebook an output that is gone when the run is over. A file or a pipe
    gets nothing.
    """
    from rich.console import Console

    console = Console(stderr=True)
    display = progress_display(console, total)
    task = display.add_task(title, total=total, what="")
    with display, _in_notebook(display, console.is_jupyter) as refresh:

        def show(event: Progress, finished: int) -> None:
            display.update(task, completed=finished, what=describe(event, len(event.rows)))
            refresh()

        yield show


@contextmanager
def _in_notebook(display: Display, asked: bool) -> Iterator[Callable[[], None]]:
    """What sends the display to the notebook. rich's own way there needs ipywidgets; this needs IPython alone."""
    if not asked:
        yield lambda: None
        return
    from IPython.display import HTML
    from IPython.display import display as send

    output: Any = send(HTML(""), display_id=True)
    last = -math.inf

    def refresh() -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN:
            last = time.monotonic()
            output.update(HTML(as_html(display)))

    try:
        yield refresh
    finally:
        output.update(HTML(""))


def as_html(display: Display) -> str:
    """The display as it is now."""
    from rich.console import Console

    page = Console(file=io.StringIO(), record=True, width=_WIDTH, force_jupyter=False)
    page.print(display.get_renderable())
    return page.export_html(inline_styles=True, code_format="<pre style='margin:0'>{code}</pre>")
