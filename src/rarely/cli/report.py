"""`rarely report`: a page about a campaign. `rarely plot`: one figure, for a paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, screen, writing

if TYPE_CHECKING:
    from rarely.campaign.store import Record

_INTERACTIVE = ".html"
_MOST_CLIMBS = 12  # lines that can be told apart


class Kind(StrEnum):
    curve = "curve"
    distribution = "distribution"
    levels = "levels"


def _drawing(file: Path) -> Path:
    if file.suffix.lower() not in (*opt.FIGURES, _INTERACTIVE):
        raise typer.BadParameter(f"a figure is written as {', '.join((*opt.FIGURES, _INTERACTIVE))}")
    return file


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a campaign, running or finished.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    quiet: opt.Quiet = False,
) -> None:
    """Write a page about a campaign: one file that opens offline.

    Shares, charts, the worst problems with inputs that violate, a table of all problems, and how to reproduce them.
    """
    from rarely.campaign.store import Store
    from rarely.report.page import in_a_sentence, write_page

    check_writable(out)
    with Store.open(folder) as store, writing(out) as draft:
        counted = write_page(draft, store.header, store.records(), store.witnesses, uncovered=store.uncovered)
    if not quiet:
        screen().print(in_a_sentence(counted), markup=False, soft_wrap=True)
        screen().print(f"Written: {out} ({out.stat().st_size / 1000:,.0f} kB)", markup=False, soft_wrap=True)


def plot(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|RESULT.json",
            help="Folders of campaigns, or JSON written by `rarely estimate` and `rarely robustness`.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", callback=_drawing, metavar="FILE",
            help="The figure: .svg, .png, .pdf; or .html to point at (needs the extra plotly).",
        ),
    ],
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="log p over the radius, its distribution, or how samplers climbed. "
            "Default: curve where there are several radii, else distribution.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only problems whose name contains this.", show_default=False)
    ] = None,
    size: Annotated[
        tuple[float, float], typer.Option(metavar="WIDTH HEIGHT", help="Inches; a column of a paper is about 3.3 wide.")
    ] = (6.4, 4.2),
    quiet: opt.Quiet = False,
) -> None:  # fmt: skip
    """Draw one figure of a campaign or of results."""
    from rarely.core.errors import InputError
    from rarely.report.tally import read_records

    check_writable(out)
    if not (min(size) >= 1 and max(size) <= 40):
        raise InputError(f"--size is in inches, from 1 to 40; got {size[0]:g} {size[1]:g}")
    records = _chosen(read_records(sources), only)
    interactive = out.suffix.lower() == _INTERACTIVE
    if kind is Kind.levels:
        _draw_climbs(records, out, size, interactive)
    else:
        kind = _draw(records, kind, out, size, interactive)
    if not quiet:
        screen().print(f"Written: {out} ({kind.value})", markup=False, soft_wrap=True)


def _chosen(records: Iterable[Record], only: str | None) -> Iterator[Record]:
    from rarely.core.errors import InputError

    seen = False
    for record in records:
        if only is None or only in record.name:
            seen = True
            yield record
    if not seen:
        raise InputError("there is no problem to draw" if only is None else f"no problem has {only!r} in its name")


def _draw(
    records: Iterable[Record], kind: Kind | None, out: Path, size: tuple[float, float], interactive: bool
) -> Kind:
    """A figure of numbers; one pass over the records, of which little is kept."""
    from rarely.core.errors import InputError
    from rarely.display.figures import SERIES
    from rarely.io.files import save_figure
    from rarely.report import figures
    from rarely.report.interactive import Marks, write_interactive
    from rarely.report.tally import tally

    marks = Marks()
    counted = tally(marks.watch(records) if interactive else records, max_rows=0)
    curves = counted.curves()
    kind = kind or (Kind.curve if curves else Kind.distribution)
    if kind is Kind.distribution and not counted.trusted and not counted.doubtful:
        raise InputError("no problem has a probability yet, so there is no distribution to draw")
    if kind is Kind.curve and not curves:
        raise InputError("a curve needs finished problems at two radii or more; try --kind distribution")
    if interactive:
        with writing(out) as draft:
            write_interactive(draft, kind.value, counted, marks)
        return kind
    if kind is Kind.curve and len(curves) > len(SERIES):
        raise InputError(f"{len(curves)} curves are too many for one figure; choose some with --only")
    if kind is Kind.curve:
        drawn = figures.plot_curves(curves, size=size)
    else:
        drawn = figures.plot_distribution(counted.trusted, counted.doubtful, size)
    with writing(out) as draft:
        save_figure(drawn, draft)
    return kind


def _draw_climbs(records: Iterable[Record], out: Path, size: tuple[float, float], interactive: bool) -> None:
    from dataclasses import replace

    from rarely.core.errors import InputError
    from rarely.display.figures import plot_estimate, plot_levels
    from rarely.io.files import save_figure
    from rarely.report.interactive import write_climbs

    climbed = ((record.name, record.estimate) for record in records)
    climbs = (replace(e, name=e.name or name) for name, e in climbed if e is not None and len(e.levels) > 1)
    kept = list(itertools.islice(climbs, _MOST_CLIMBS))
    more = sum(1 for _ in climbs)
    if not kept:
        raise InputError("no problem has levels: its estimator did not climb")
    if more:
        raise InputError(f"{len(kept) + more} problems have levels, too many for one figure; choose some with --only")
    if interactive:
        with writing(out) as draft:
            write_climbs(draft, kept)
        return
    drawn = plot_levels(kept, size) if len(kept) > 1 else plot_estimate(kept[0], size)
    with writing(out) as draft:
        save_figure(drawn, draft)
