"""`rarely report`: a page about a campaign. `rarely plot`: one figure, for a paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, screen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rarely.campaign.store import Record

_INTERACTIVE = ".html"
_MOST_CLIMBS = 12  # lines that can be told apart


class Kind(StrEnum):
    curve = "curve"
    distribution = "distribution"
    levels = "levels"


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    from rarely.core.errors import InputError

    try:
        yield
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from error


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
    with Store.open(folder) as store, _writing(out):
        counted = write_page(out, store.header, store.records(), store.witnesses)
    if not quiet:
        screen().print(in_a_sentence(counted), markup=False, soft_wrap=True)
        screen().print(f"Written: {out} ({out.stat().st_size / 1000:,.0f} kB)", markup=False, soft_wrap=True)


def plot(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|RESULT.json...",
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
    records = [record for record in read_records(sources) if only is None or only in record.name]
    if not records:
        raise InputError("there is no problem to draw" if only is None else f"no problem has {only!r} in its name")
    chosen = kind or (Kind.curve if len({record.radius for record in records}) > 1 else Kind.distribution)
    if out.suffix.lower() == _INTERACTIVE:
        from rarely.report.interactive import write_interactive

        with _writing(out):
            write_interactive(out, records, chosen.value)
    else:
        from rarely.report.figures import save

        drawn = _draw(records, chosen, size)
        with _writing(out):
            save(drawn, out)
    if not quiet:
        screen().print(f"Written: {out} ({chosen.value})", markup=False, soft_wrap=True)


def _draw(records: Sequence[Record], kind: Kind, size: tuple[float, float]) -> Figure:
    from rarely.core.errors import InputError
    from rarely.report import figures
    from rarely.report.tally import tally

    if kind is Kind.levels:
        climbed = [record.estimate for record in records if record.estimate and len(record.estimate.levels) > 1]
        if not climbed:
            raise InputError("no problem has levels: its estimator did not climb")
        if len(climbed) > _MOST_CLIMBS:
            raise InputError(f"{len(climbed)} problems have levels, too many for one figure; choose some with --only")
        return figures.plot_levels(climbed, size) if len(climbed) > 1 else figures.plot_estimate(climbed[0], size)
    counted = tally(records, max_rows=0)
    if kind is Kind.distribution:
        if not counted.trusted and not counted.doubtful:
            raise InputError("no problem has a probability yet, so there is no distribution to draw")
        return figures.plot_distribution(counted.trusted, counted.doubtful, size)
    curves = counted.curves()
    if not curves:
        raise InputError("a curve needs finished problems at two radii or more; try --kind distribution")
    if len(curves) > len(figures.SERIES):
        raise InputError(f"{len(curves)} curves are too many for one figure; choose some with --only")
    return figures.plot_curves(curves, size=size)
