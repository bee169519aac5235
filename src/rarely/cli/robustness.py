"""`rarely robustness`: how often random noise changes a classifier's answer, for many images and radii."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rarely.cli import options as opt
from rarely.cli import pictures
from rarely.cli.output import check_writable, deliver, plain_table, prints, screen, write_file, write_json
from rarely.cli.record import record
from rarely.cli.running import Outcomes, run_problems

if TYPE_CHECKING:
    from rarely.campaign.noise import Noise
    from rarely.campaign.robustness import Curve, Row, Summary


_FLOOR = 1e-12  # chance of an image, where --p-min says nothing else


@opt.estimating
def robustness(
    network: opt.NetworkFile,
    inputs: Annotated[
        Path, typer.Option(metavar="FILE|FOLDER", help=pictures.IMAGES, rich_help_panel=pictures.PICTURES)
    ],
    eps: Annotated[
        str,
        typer.Option(
            parser=pictures.numbers, metavar="R[,R...]",
            help="Radii: how much of the noise; in pixel units for ball and gaussian.",
            rich_help_panel=pictures.PICTURES,
        ),
    ],
    method: opt.EstimatorChoice,
    run: opt.RunSettings,
    noise: pictures.NoiseName = "ball",
    norm: pictures.NormChoice = None,
    clip: pictures.Clip = None,
    labels: pictures.Labels = None,
    mean: pictures.Mean = None,
    std: pictures.Std = None,
    architecture: opt.Architecture = None,
    trust_pickle: opt.TrustPickle = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write one line per image and radius.")
    ] = None,
    plot: opt.PlotFile = None,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:  # fmt: skip
    """Estimate how often random noise, or what cameras and weather do, changes a classifier's answer.

    One row per image and radius; all of them run as batches. Images that are misclassified without noise are named.
    """
    from rarely.campaign.asked import Asked, check_unchanged, seen
    from rarely.campaign.noise import Noise, axis_of
    from rarely.campaign.robustness import ROW_COLUMNS, curve_of, plan_rows, summarise
    from rarely.campaign.tables import write_csv

    check_writable(json_file, csv_file, plot)
    estimator, run = method.make(), run.with_floor(_FLOOR, method)
    radii = cast(Any, eps)  # numbers, by now
    pictures.check_radii(radii)
    what = Noise.read(noise, norm, clip)
    about = pictures.asked_about(inputs, radii, what, labels, mean, std)
    settings = {**method.plain(), **run.plain()}
    asked = Asked("robustness", network, None, about, None, architecture, trust_pickle, "", settings)
    files = seen(asked) if json_file is not None else {}
    net, images = asked.opened()
    check_unchanged(files, asked)
    rows = plan_rows(net, images, radii, what)
    waiting = [(row, row.problem) for row in rows if row.problem is not None]
    outcomes = run_problems([p for _, p in waiting], estimator, run, title="robustness", quiet=quiet)
    for i, (row, _) in enumerate(waiting):
        row.estimate = outcomes.estimates.get(i)
    summaries, first = summarise(rows, radii), waiting[0][1] if waiting else None
    axis, found = axis_of(what.name), sorted({row.eps for row in rows if row.estimate is not None})

    def keep() -> None:
        if json_file is not None:
            data = _as_data(rows, summaries, what, outcomes)
            write_json(json_file, {**data, "provenance": record(asked, files, first)})

    deliver(
        lambda: _show(rows, summaries), prints(quiet, json_file), keep,
        lambda: write_file(csv_file, lambda file: write_csv(file, ROW_COLUMNS, (row.flat() for row in rows))),
        lambda: write_file(plot if found else None, lambda file: _draw(curve_of(rows, found, axis), file)),
    )  # fmt: skip
    outcomes.exit_if_interrupted()


def _draw(curve: Curve, file: Path) -> None:
    from rarely.io.files import save_figure
    from rarely.report.figures import plot_curves

    save_figure(plot_curves([curve]), file)


def _as_data(rows: Sequence[Row], summaries: Sequence[Summary], noise: Noise, outcomes: Outcomes) -> dict[str, Any]:
    shown = ("image", "label", "predicted", "eps", "misclassified", "estimate")
    return {
        "schema": 1,
        "noise": noise.name,
        "norm": noise.norm,
        "clip": noise.clip,
        "interrupted": outcomes.interrupted,
        "rows": [{name: getattr(row, name) for name in shown} for row in rows],
        "summary": [asdict(summary) for summary in summaries],
    }


def _show(rows: Sequence[Row], summaries: Sequence[Summary]) -> None:
    console = screen()
    table = plain_table("image", "label", "eps", "outcome", "probability", "interval", "calls")
    for row in rows:
        if row.estimate is not None:
            chance, interval = row.estimate.cells
            outcome, calls = row.estimate.word, f"{row.estimate.calls:,}"
        else:
            chance = interval = calls = ""
            outcome = f"misclassified as {row.predicted}" if row.misclassified else "not finished"
        table.add_row(row.image, str(row.label), f"{row.eps:g}", outcome, chance, interval, calls)
    console.print(table)
    table = plain_table("eps", "images", "median log p", "quartiles", "no number", "misclassified")
    for summary in summaries:
        low, middle, high = summary.log_prob_quartiles
        cells = ("", "", "")  # of no image that is finished
        if summary.share_below_floor is not None:
            cells = _cut(middle), f"{_cut(low)} to {_cut(high)}", f"{summary.share_below_floor:.0%}"
        table.add_row(f"{summary.eps:g}", str(summary.images), *cells, str(summary.misclassified))
    console.print(table)


def _cut(log_prob: float) -> str:
    return "none found" if log_prob == -math.inf else f"{log_prob:.2f}"
