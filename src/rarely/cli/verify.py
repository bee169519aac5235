"""`rarely verify`: a VNN-COMP verdict for one instance, or for a whole benchmark."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli.output import screen

if TYPE_CHECKING:
    from rarely.cli.attack import Counterexample, Referee
    from rarely.io.formats.specification import Specification


@dataclass(frozen=True)
class Verdict:
    """What is known of one instance: `sat` comes with a counterexample, `unsat` only from a proof."""

    verdict: str
    seconds: float
    counterexample: Counterexample | None = None
    comment: str = ""

    def write(self, path: Path) -> None:
        from rarely.io.formats.vnncomp import write_result

        found = self.counterexample
        write_result(path, self.verdict, found.x if found else None, found.y if found else None)


def verify(
    network: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="Network: .onnx, .onnx.gz, or an .rlv file with both.")
    ] = None,
    prop: Annotated[str | None, typer.Argument(metavar="PROPERTY", help="Property: .vnnlib or .vnnlib.gz.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", "-t", help="Seconds for an instance; default: the benchmark's own, or 60."),
    ] = None,
    result: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdict as VNN-COMP asks, with the counterexample.")
    ] = None,
    instances: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="A benchmark: lines of network, property, timeout.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where a benchmark's result files go; those there are kept.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run instances again that have a result file.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.")] = 0,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Open pickled files. That can run any code in them.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Decide a VNN-COMP instance: sat, unsat, unknown or timeout.

    sat comes with a counterexample that violates when replayed in onnxruntime, with no tolerance; unsat only with a
    proof. A probability alone never decides: then the verdict is unknown, and the probability a comment on stderr.
    """
    from rarely.core.errors import InputError, RarelyError

    if instances is not None:
        from rarely.cli.benchmark import run_benchmark

        if network is not None or result is not None or results is None:
            raise InputError("--instances goes with --results DIR, and without NETWORK, PROPERTY and --result")
        run_benchmark(instances, results, timeout, force=force, seed=seed, trust_pickle=trust_pickle, quiet=quiet)
        return
    if network is None or results is not None or force:
        raise InputError("verify takes NETWORK and PROPERTY, or --instances FILE.csv with --results DIR")
    try:
        verdict = decide(network, prop, timeout or 60.0, seed=seed, trust_pickle=trust_pickle)
    except RarelyError:
        if result is not None:
            Verdict("error", 0.0).write(result)
        raise
    if result is not None:
        verdict.write(result)
    if not quiet:
        screen().print(verdict.verdict)
        if verdict.comment:
            screen(stderr=True).print(f"# {verdict.comment}", markup=False, soft_wrap=True)


def decide(
    network: str | Path, prop: str | Path | None, timeout: float, *, seed: int = 0, trust_pickle: bool = False
) -> Verdict:
    """The verdict for one pair of files. Loading counts towards the timeout."""
    from rarely.io.problems import load_pair

    started = time.monotonic()
    loaded, specification = load_pair(network, prop, trust_pickle=trust_pickle)
    answer = prove_or_attack(network, loaded, specification, started + timeout, seed)
    seconds = time.monotonic() - started
    verdict = "timeout" if answer.verdict == "unknown" and seconds >= timeout else answer.verdict
    return replace(answer, verdict=verdict, seconds=seconds)


def prove_or_attack(
    path: str | Path, network: Any, specification: Specification, deadline: float, seed: int
) -> Verdict:
    """Attacks and proofs in turn, longer and longer, until the deadline (on the clock of time.monotonic)."""
    from rarely.cli.attack import Attack, Referee

    referee = Referee(path, network, specification)
    search = Attack(network, specification, referee, seed)
    proof = Proof(network, specification, referee)
    # Most instances fall to random inputs or to a proof of a few boxes, so these come first and stay short.
    for step, share in ((search.sample, 0.1), (proof, 0.1), (search.climb, 0.4), (proof, 0.5), (search.split, 1.0)):
        now = time.monotonic()
        found = step(now + share * (deadline - now))
        if found is not None:
            return Verdict("sat", 0.0, found, "the counterexample was replayed")
        if proof.sentence:
            return Verdict("unsat", 0.0, None, proof.sentence)
    return Verdict("unknown", 0.0, None, f"statistics, not a proof: {search.last}" if search.last else "")


@dataclass
class Proof:
    """Tries to prove that no input violates; may meet a counterexample on the way."""

    network: Any
    specification: Specification
    referee: Referee
    sentence: str = ""  # how it was proved

    def __call__(self, deadline: float) -> Counterexample | None:
        import torch

        from rarely.bounds import decide_boxes

        if not isinstance(self.network, torch.nn.Module):
            return None
        shape = getattr(self.network, "input_shape", (self.specification.n_inputs,))
        boxes, bound = 0, -math.inf
        for case in self.specification.cases:
            low, high = (torch.from_numpy(side).reshape(1, *shape) for side in (case.low, case.high))
            outputs = [(torch.from_numpy(polytope.A), torch.from_numpy(polytope.b)) for polytope in case.outputs]
            (answer,) = decide_boxes(self.network, low, high, outputs, max(0.0, deadline - time.monotonic()))
            if answer.witness is not None:
                return self.referee.judge(answer.witness.unsqueeze(0))
            if answer.status != "proved":
                return None
            boxes, bound = boxes + answer.boxes, max(bound, answer.bound)
        self.sentence = f"proved: scores are at most {bound:.4g}, by bounds over {boxes:,} pieces of the input region"
        return None
