"""`rarely certify`: accept or reject for a release gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli import pictures
from rarely.cli.output import (
    check_writable,
    deliver,
    plain_table,
    prints,
    save_witnesses,
    screen,
    write_file,
    write_json,
)
from rarely.cli.record import with_record

if TYPE_CHECKING:
    from rarely.campaign.asked import Asked, Pictures
    from rarely.campaign.gate import Gate
    from rarely.core.problem import Problem
    from rarely.core.witnesses import Witnesses
    from rarely.questions.threshold import Decision

    Answered = tuple[Decision | Gate, Problem, list[tuple[str, Witnesses]], Callable[[], None]]

REJECTED, UNDECIDED = 1, 3  # exit codes; accepted is 0


def certify(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="A network, or an .rlv file with its property.")],
    prop: Annotated[str | None, typer.Argument(metavar="PROPERTY", help="Property: .vnnlib or .vnnlib.gz.")] = None,
    p_max: Annotated[
        float, typer.Option("--p-max", help="Probability of a violation that must not be reached.")
    ] = 1e-6,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER", rich_help_panel=pictures.PICTURES,
            help=f"In place of PROPERTY: every image must keep its class. {pictures.IMAGES}",
        ),
    ] = None,
    eps: Annotated[
        float | None,
        typer.Option(metavar="R", help="How much of the noise, as in robustness.", rich_help_panel=pictures.PICTURES),
    ] = None,
    noise: pictures.NoiseName = "ball",
    norm: pictures.NormChoice = None,
    clip: pictures.Clip = None,
    labels: pictures.Labels = None,
    mean: pictures.Mean = None,
    std: pictures.Std = None,
    confidence: opt.Confidence = 0.95,
    timeout: Annotated[float, typer.Option("--timeout", "-t", help="Seconds for everything.")] = 60.0,
    max_evaluations: opt.MaxEvaluations = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    input_model: opt.InputModel = None,
    architecture: opt.Architecture = None,
    trust_pickle: opt.TrustPickle = False,
    witness: Annotated[
        Path, typer.Option(callback=opt.arrays, metavar="FILE.npz", help="Where violating inputs go when rejected.")
    ] = Path("witness.npz"),
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:  # fmt: skip
    """Is the probability of a violation below --p-max? By proof, rigorous bound, or a test with stated error.

    With --inputs and --eps one decision for each image, and one for all of them: accepted only where every one is.

    Exit codes: 0 accepted, 1 rejected (violating inputs are written), 3 undecided.
    """
    from rarely.campaign.asked import Asked, check_unchanged, seen

    check_writable(json_file)
    about = {"eps": eps, "norm": norm, "clip": clip, "labels": labels, "mean": mean, "std": std}
    images = _images(prop, inputs, input_model, noise, about)
    settings = {
        "p_max": p_max, "confidence": confidence, "timeout": timeout, "max_evaluations": max_evaluations, "seed": seed,
        "device": device, "dtype": None if dtype is None else dtype.value,
    }  # fmt: skip
    asked = Asked("certify", network, prop, images, input_model, architecture, trust_pickle, "", settings)
    files = seen(asked) if json_file is not None else {}
    run = _one if images is None else _each
    answer, problem, found, show = run(asked, partial(check_unchanged, files, asked), quiet)
    shown, rejected = prints(quiet, json_file), answer.ruling.value == "rejected"
    keeps = rejected and any(len(witnesses) for _, witnesses in found)

    def keep_witnesses() -> None:
        if keeps:
            write_file(witness, partial(save_witnesses, found, many=images is not None))
            if shown:
                screen().print(f"violating inputs: {witness}", markup=False)

    def keep() -> None:
        if json_file is not None:
            write_json(json_file, with_record(answer, asked, files, problem, witness if keeps else None))

    deliver(show, shown, keep_witnesses, keep)
    if answer.ruling.value != "accepted":
        raise typer.Exit(REJECTED if rejected else UNDECIDED)


def _images(
    prop: str | None, inputs: Path | None, input_model: str | None, noise: str, about: dict[str, Any]
) -> Pictures | None:
    """What was said about images, if the question is about images."""
    from rarely.campaign.noise import BALL, Noise
    from rarely.core.errors import InputError

    if inputs is None:
        given = [f"--{name}" for name, value in about.items() if value is not None] + ["--noise"] * (noise != BALL)
        if given:
            raise InputError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} about images: give --inputs")
        return None
    if prop is not None or input_model is not None:
        what = prop if prop is not None else "--input-model"
        raise InputError(f"--inputs asks about images under noise; leave {what} away")
    if about["eps"] is None:
        raise InputError("--inputs needs --eps, which says how much of the noise")
    pictures.check_radii([about["eps"]])
    happens = Noise.read(noise, about["norm"], about["clip"])
    return pictures.asked_about(inputs, (about["eps"],), happens, about["labels"], about["mean"], about["std"])


def _one(asked: Asked, loaded: Callable[[], None], quiet: bool) -> Answered:
    """The decision about a property."""
    from rarely.campaign.gate import decide

    problem = asked.problem()
    loaded()
    decision = decide(problem, asked.settings)
    show = partial(screen().print, str(decision), markup=False, soft_wrap=True)
    return decision, problem, [("", decision.witnesses)], show


def _each(asked: Asked, loaded: Callable[[], None], quiet: bool) -> Answered:
    """The decisions about images, each told when it is made, and that about all of them."""
    from rarely.campaign.gate import decide_each, together

    standing = asked.entrants()
    loaded()
    decisions = []
    for decision in decide_each([problem for _, problem in standing], asked.settings):
        decisions.append(decision)
        if not quiet:
            screen(stderr=True).print(str(decision), markup=False, soft_wrap=True)
    gate = together([entrant for entrant, _ in standing], decisions)
    found = [(decision.name, decision.witnesses) for decision in decisions]
    return gate, standing[0][1], found, partial(_show, gate)


def _show(gate: Gate) -> None:
    from rich.markup import escape

    table = plain_table("image", "label", "ruling", "why", "calls", right=[4])
    for entrant, decision in zip(gate.images, gate.decisions, strict=True):
        answer = "" if entrant.label == entrant.predicted else f" (without noise {entrant.predicted})"
        cells = (entrant.image, f"{entrant.label}{answer}", decision.ruling.value, decision.sentence)
        table.add_row(*map(escape, cells), f"{decision.calls:,}")
    screen().print(table)
    screen().print(str(gate), markup=False, soft_wrap=True)
