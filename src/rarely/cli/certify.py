"""`rarely certify`: accept or reject for a release gate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, prints, screen, write_file, write_json

REJECTED, UNDECIDED = 1, 3  # exit codes; accepted is 0


def certify(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="A network, or an .rlv file with its property.")],
    prop: Annotated[str | None, typer.Argument(metavar="PROPERTY", help="Property: .vnnlib or .vnnlib.gz.")] = None,
    p_max: Annotated[
        float, typer.Option("--p-max", help="Probability of a violation that must not be reached.")
    ] = 1e-6,
    confidence: opt.Confidence = 0.95,
    timeout: Annotated[float, typer.Option("--timeout", "-t", help="Seconds for everything.")] = 60.0,
    max_evaluations: opt.MaxEvaluations = None,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    witness: Annotated[
        Path, typer.Option(callback=opt.arrays, metavar="FILE.npz", help="Where violating inputs go when rejected.")
    ] = Path("witness.npz"),
    trust_pickle: opt.TrustPickle = False,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Is the probability of a violation below --p-max? By proof, rigorous bound, or a test with stated error.

    Exit codes: 0 accepted, 1 rejected (violating inputs are written), 3 undecided.
    """
    from rarely.io.problems import load_problem
    from rarely.questions.threshold import Ruling
    from rarely.questions.threshold import certify as decide

    check_writable(json_file)
    problem = load_problem(network, prop, trust_pickle=trust_pickle)
    decision = decide(
        problem, p_max, confidence, timeout=timeout, seed=seed, device=device, max_evaluations=max_evaluations
    )
    rejected = decision.ruling is Ruling.REJECTED
    shown = prints(quiet, json_file)

    def keep() -> None:
        if rejected and len(decision.witnesses):
            write_file(witness, decision.witnesses.save)
            if shown:
                screen().print(f"violating inputs: {witness}", markup=False)

    deliver(
        lambda: screen().print(str(decision), markup=False, soft_wrap=True), shown,
        keep, lambda: write_json(json_file, decision),
    )  # fmt: skip
    if decision.ruling is not Ruling.ACCEPTED:
        raise typer.Exit(REJECTED if rejected else UNDECIDED)
