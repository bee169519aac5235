"""`rarely estimate`: the violation probability of one problem, or of many as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import (
    check_writable,
    deliver,
    estimates_table,
    outcome_counts,
    prints,
    save_witnesses,
    screen,
    write_file,
    write_json,
)
from rarely.cli.record import with_record
from rarely.cli.running import run_problems

if TYPE_CHECKING:
    from rarely.campaign.asked import Asked
    from rarely.questions.result import Estimate


@opt.estimating
def estimate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK [PROPERTY]",
            help="A network (.onnx, .onnx:output, .pt2, module:attribute, ...) and one or more .vnnlib properties; "
            "or .rlv files, which hold both; or a folder of .rlv files.",
            show_default=False,
        ),
    ],
    method: opt.EstimatorChoice,
    run: opt.RunSettings,
    input_model: opt.InputModel = None,
    architecture: opt.Architecture = None,
    trust_pickle: opt.TrustPickle = False,
    witnesses: Annotated[
        Path | None,
        typer.Option(callback=opt.arrays, metavar="FILE.npz", help="Write the violating inputs that were found."),
    ] = None,
    plot: opt.PlotFile = None,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Estimate the probability that a property is violated.

    Several properties of one network, or several .rlv files, run as one batch: one line each, and a list in the JSON.
    """
    from rarely.campaign.asked import check_unchanged, seen

    check_writable(json_file, plot, witnesses)
    estimator = method.make()
    about = {"input_model": input_model, "architecture": architecture, "trust_pickle": trust_pickle}
    many, asked = _asked(files, {**about, "settings": {**method.plain(), **run.plain()}})
    told = [seen(one) for one in asked] if json_file is not None else []
    problems = [one.problem() for one in asked]
    for before, one in zip(told, asked, strict=False):
        check_unchanged(before, one)
    outcomes = run_problems(problems, estimator, run, title="estimating", quiet=quiet)
    found = outcomes.finished()

    def keep() -> None:
        if json_file is not None:
            rows = sorted(outcomes.estimates)
            kept = [with_record(outcomes.estimates[i], asked[i], told[i], problems[i], witnesses) for i in rows]
            write_json(json_file, kept if many else kept[0])

    if found:
        deliver(
            lambda: _show(found, many), prints(quiet, json_file),
            lambda: write_file(witnesses, partial(save_witnesses, [(e.name, e.witnesses) for e in found], many=many)),
            keep,
            lambda: write_file(plot, partial(_draw, found, many=many)),
        )  # fmt: skip
    elif outcomes.interrupted:
        write_json(json_file, {"schema": 1, "interrupted": True, "standing": outcomes.stood()})
    outcomes.exit_if_interrupted()


def _asked(files: Sequence[str], about: dict[str, Any]) -> tuple[bool, list[Asked]]:
    """The questions, and whether they were asked for as a list."""
    from rarely.campaign.asked import Asked
    from rarely.core.errors import InputError
    from rarely.io.problems import is_rlv, rlv_files

    inside = [map(str, rlv_files(Path(file))) if Path(file).is_dir() else [file] for file in files]
    paths = list(chain.from_iterable(inside))
    many = len(paths) > len(files)
    if is_rlv(paths[0]):
        foreign = [path for path in paths if not is_rlv(path)]
        if foreign:
            raise InputError(
                f"{foreign[0]} stands among .rlv files, which hold network and property; run it on its own"
            )
        return many or len(paths) > 1, [Asked("estimate", path, name=_stem(path), **about) for path in paths]
    network, *properties = paths
    if not properties:
        return False, [Asked("estimate", network, **about)]
    named = [(prop, f"{_stem(network)} {_stem(prop)}") for prop in properties]
    return len(named) > 1, [Asked("estimate", network, prop, name=name, **about) for prop, name in named]


def _stem(path: str) -> str:
    return Path(path.removesuffix(".gz")).stem


def _show(found: Sequence[Estimate], many: bool) -> None:
    console = screen()
    if not many:
        console.print(found[0])
        return
    console.print(estimates_table(found))
    console.print(outcome_counts(found))


def _draw(found: Sequence[Estimate], file: Path, *, many: bool) -> None:
    from rarely.display.figures import plot_estimate, plot_probabilities
    from rarely.io.files import save_figure

    save_figure(plot_probabilities(found) if many else plot_estimate(found[0]), file)
