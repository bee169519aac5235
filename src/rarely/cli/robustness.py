"""`rarely robustness`: how often random noise changes a classifier's answer, for many images and radii."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, plain_table, prints, screen, write_file, write_json
from rarely.cli.running import Outcomes, run_problems

if TYPE_CHECKING:
    from rarely.campaign.robustness import Curve, Row, Summary


_FLOOR = 1e-12  # chance of an image, where --p-min says nothing else


class Norm(StrEnum):
    inf = "inf"
    two = "2"
    one = "1"


def _numbers(text: str) -> Any:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter("numbers separated by commas are expected, as in 0.1,0.2") from None


@opt.estimating
def robustness(
    network: opt.NetworkFile,
    inputs: Annotated[
        Path,
        typer.Option(metavar="FILE|FOLDER", help="Images: .npy, .npz or a folder of pictures. Bytes become 0 to 1."),
    ],
    eps: Annotated[str, typer.Option(parser=_numbers, metavar="R[,R...]", help="Radii, in the units of the images.")],
    method: opt.EstimatorChoice,
    run: opt.RunSettings,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Labels, .npy. Default: those in the .npz, else the network's own answers."),
    ] = None,
    norm: Annotated[Norm, typer.Option(help="Noise is uniform in the ball of this norm.")] = Norm.inf,
    clip: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Range of legal pixels; the ball is cut to it."),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            parser=_numbers, metavar="M[,M...]", help="Subtracted from pixels before the network, per channel."
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            parser=_numbers, metavar="S[,S...]", help="Divides pixels before the network; radii stay in pixel units."
        ),
    ] = None,
    architecture: opt.Architecture = None,
    trust_pickle: opt.TrustPickle = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write one line per image and radius.")
    ] = None,
    plot: opt.PlotFile = None,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Estimate how often random noise changes a classifier's answer.

    One row per image and radius; all of them run as batches. Images that are misclassified without noise are named.
    """
    from rarely.campaign.robustness import ROW_COLUMNS, curve_of, plan_rows, summarise
    from rarely.campaign.tables import write_csv
    from rarely.core.errors import InputError
    from rarely.io.formats.images import load_images
    from rarely.io.networks import input_shape, load_network, normalised

    check_writable(json_file, csv_file, plot)
    estimator, run = method.make(), run.with_floor(_FLOOR, method)
    radii, shift, scale = cast(Any, (eps, mean, std))  # tuples of numbers, by now
    if any(not (0 < radius < math.inf) for radius in radii):
        raise InputError("--eps must be positive numbers")
    net = normalised(load_network(network, architecture=architecture, trust_pickle=trust_pickle), shift, scale)
    images = load_images(inputs, input_shape(net), labels)
    images.check(clip, "" if clip is None else f"--clip {clip[0]:g} {clip[1]:g}")
    rows = plan_rows(net, images, radii, norm.value, clip)
    waiting = [(row, row.problem) for row in rows if row.problem is not None]
    outcomes = run_problems([p for _, p in waiting], estimator, run, title="robustness", quiet=quiet)
    for i, (row, _) in enumerate(waiting):
        row.estimate = outcomes.estimates.get(i)
    summaries = summarise(rows, radii)
    found = sorted({row.eps for row in rows if row.estimate is not None})
    deliver(
        lambda: _show(rows, summaries), prints(quiet, json_file),
        lambda: write_json(json_file, _as_data(rows, summaries, norm.value, clip, outcomes)),
        lambda: write_file(csv_file, lambda file: write_csv(file, ROW_COLUMNS, (row.flat() for row in rows))),
        lambda: write_file(plot if found else None, lambda file: _draw(curve_of(rows, found), file)),
    )  # fmt: skip
    outcomes.exit_if_interrupted()


def _draw(curve: Curve, file: Path) -> None:
    from rarely.report.figures import plot_curves, save

    save(plot_curves([curve]), file)


def _as_data(
    rows: Sequence[Row], summaries: Sequence[Summary], norm: str, clip: tuple[float, float] | None, outcomes: Outcomes
) -> dict[str, Any]:
    shown = ("image", "label", "predicted", "eps", "misclassified", "estimate")
    return {
        "schema": 1,
        "norm": norm,
        "clip": clip,
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
