"""How a running campaign is shown: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rarely.cli.output import screen

if TYPE_CHECKING:
    from rarely.campaign.driver import Standing

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def view(quiet: bool) -> Iterator[Callable[[Standing], None]]:
    """A function to be called with every standing, for as long as the campaign runs."""
    console = screen(stderr=True)
    if quiet:
        yield lambda standing: None
    elif console.is_terminal:
        with _live() as update:
            yield update
    else:
        yield _Lines()


@contextmanager
def _live() -> Iterator[Callable[[Standing], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.fields[words]}")
    columns = (BarColumn(30), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(), words)
    with Progress(*columns, console=screen(stderr=True), transient=True) as progress:
        task = progress.add_task("campaign", total=None, words="starting workers")

        def update(standing: Standing) -> None:
            finished = standing.done + standing.failed
            progress.update(task, total=standing.total, completed=finished, words=sentence(standing))

        yield update


class _Lines:
    """A line at the start, at the end, and every few seconds between."""

    def __init__(self) -> None:
        self._last = -_SECONDS_BETWEEN_LINES

    def __call__(self, standing: Standing) -> None:
        ended = standing.done + standing.failed == standing.total
        if ended or time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            screen(stderr=True).print(sentence(standing), markup=False, soft_wrap=True)


def sentence(standing: Standing) -> str:
    parts = [f"{standing.done:,} of {standing.total:,} done", f"{standing.running:,} running"]
    if standing.failed:
        parts.append(f"{standing.failed:,} failed")
    if standing.calls:
        parts.append(f"{standing.calls_per_second:,.0f} calls/s")
    left = standing.seconds_left
    if left:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """As a person would say it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
