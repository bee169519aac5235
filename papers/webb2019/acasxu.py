"""Experiment 6: the paper's motivating example, ACAS Xu, as probabilities.

The ten properties on the networks they apply to (186 pairs): how probable is a violation when inputs are uniform in the
property's box? rarely's default answers each pair, with a proof where nothing violates; where something does, splitting
alone and plain Monte Carlo answer beside it. Verdicts are compared with those of the verification competition.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rarely
from papers.webb2019 import common, drawing
from papers.webb2019.common import Context
from papers.webb2019.streamed import Count, counted, stream
from rarely.methods import Estimator

TENS = math.log(10)
COLUMNS = ("network", "property", "known", "method", "outcome", "log_prob", "std", "low", "high", "witnesses",
           "calls", "seconds", "device", "notes")  # fmt: skip
QUICK = (("1_1", 1), ("2_1", 2), ("1_7", 3), ("4_1", 3), ("2_9", 8))  # two proofs, three violated


def name(network: str, number: int) -> str:
    return f"{network} property {number}"


@dataclass(frozen=True)
class Pair:
    network: str  # "1_7"
    number: int  # of the property
    known: str  # sat or unsat
    onnx: Path
    vnnlib: Path
    seed: int  # of its own: pairs with one box and one seed would share their draws

    @property
    def name(self) -> str:
        return name(self.network, self.number)

    def load(self) -> rarely.Problem:
        return rarely.load_problem(self.onnx, self.vnnlib, name=self.name)


def pairs(context: Context) -> list[Pair]:
    with context.file("acasxu", "acasxu_verdicts.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    found = []
    for seed, row in enumerate(rows):
        network = row["network"].removeprefix("ACASXU_run2a_").removesuffix("_batch_2000.onnx")
        number = int(row["property"].removeprefix("prop_").removesuffix(".vnnlib"))
        if not context.quick or (network, number) in QUICK:
            onnx = context.file("acasxu", "onnx", row["network"])
            vnnlib = context.file("acasxu", "vnnlib", row["property"])
            found.append(Pair(network, number, row["verdict"], onnx, vnnlib, seed))
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", default="auto,splitting,plain", help="which of auto, splitting, plain")
    parser.add_argument("--samples", type=float, help="plain Monte Carlo: most samples of a pair (1e9)")
    parser.add_argument("--proof-seconds", type=float, default=60.0, help="for each proof attempt of one pair (60)")


def measure(context: Context) -> None:
    chosen = pairs(context)
    estimators: dict[str, Estimator] = {
        "auto": rarely.Auto(proof_seconds=context.args.proof_seconds),
        "splitting": rarely.Splitting(particles=500 if context.quick else 5_000, islands=8, steps=1, keep="all"),
    }
    for method in context.args.methods.split(","):
        if method in estimators:
            estimates(context, chosen, method, estimators[method])
        elif method == "plain":
            problems = [pair.load() for pair in chosen if pair.known == "sat"]
            stream(context, "acasxu, plain Monte Carlo", {"sat": problems}, {"sat": int(context.args.samples)})
        else:
            common.stop(f"--methods knows auto, splitting and plain, not {method!r}")


def estimates(context: Context, chosen: Sequence[Pair], method: str, estimator: Estimator) -> None:
    """One estimator on every pair; splitting, a second opinion about numbers, only where a violation exists."""
    table = common.Table(context.out / f"{method}.csv", COLUMNS, ("network", "property", "method"))
    wanted = context.mine([pair for pair in chosen if method == "auto" or pair.known == "sat"])
    todo = [p for p in wanted if not table.has(network=p.network, property=p.number, method=method)]
    with common.progress(f"acasxu, {method}", len(todo)) as display:
        for pair in todo:
            if context.late:
                return
            started = time.monotonic()
            found = rarely.estimate(pair.load(), estimator, seed=pair.seed, device=context.device)
            seconds = time.monotonic() - started
            table.add([{
                "network": pair.network, "property": pair.number, "known": pair.known, "method": method,
                "outcome": found.outcome.value, "log_prob": found.log_prob, "std": found.log_prob_std,
                "low": found.interval.low, "high": found.interval.high, "witnesses": len(found.witnesses),
                "calls": found.calls, "seconds": seconds, "device": found.provenance["device"],
                "notes": "; ".join(found.notes),
            }])  # fmt: skip
            display.done(f"{pair.name}: {found.outcome.value} ({pair.known}), {seconds:.1f} s")


# What came out -------------------------------------------------------------------------------------------------------

Key = tuple[str, int]
Answers = dict[Key, dict[str, dict[str, str]]]  # pair -> method -> row


def gather(rows: Sequence[dict[str, str]]) -> Answers:
    found: Answers = defaultdict(dict)
    for row in rows:
        found[row["network"], int(row["property"])][row["method"]] = row
    return found


def violated(row: dict[str, str]) -> bool:
    return int(row["witnesses"]) > 0


def trusted(row: dict[str, str] | None) -> bool:
    return row is not None and row["outcome"] == rarely.Outcome.VIOLATED.value


def figures(context: Context) -> list[Path]:
    answers = gather([row for method in ("auto", "splitting") for row in common.read(context.out / f"{method}.csv")])
    if not answers:
        return []
    counts = counted(context.out, "sat")
    figure, (top, bottom) = drawing.panels(
        "Not in the paper: ACAS Xu, its motivating example", 1, 2, height_ratios=(3, 2)
    )
    _probabilities(top, answers, counts)
    _verdicts(bottom, answers)
    written = drawing.save(figure, context.out, "acasxu")
    summary = context.out / "summary.md"
    summary.write_text(_summary(answers, counts), encoding="utf-8")
    return [*written, summary]


def _probabilities(axes: Any, answers: Answers, counts: dict[str, Count]) -> None:
    """Every violated pair, the rarest first."""
    bad = [key for key, methods in answers.items() if violated(methods["auto"])]
    bad.sort(key=lambda key: float(answers[key]["auto"]["log_prob"]))
    for method, color, marker, shift in (("splitting", drawing.PAPERS, "^", -0.2), ("auto", drawing.OURS, "o", 0.0)):
        seen = [(i, answers[key][method]) for i, key in enumerate(bad) if trusted(answers[key].get(method))]
        y, low, high = ([float(row[name]) / TENS for _, row in seen] for name in ("log_prob", "low", "high"))
        bars = [[v - a for v, a in zip(y, low, strict=True)], [b - v for v, b in zip(y, high, strict=True)]]
        text = {"splitting": "splitting alone", "auto": "rarely's default"}[method]
        x = [i + shift for i, _ in seen]
        axes.errorbar(x, y, bars, fmt=marker, ms=3.5, lw=0.8, color=color, mfc="none", label=text)
    plain = [(i + 0.2, counts[name(*key)]) for i, key in enumerate(bad) if name(*key) in counts]
    hit = [(x, count) for x, count in plain if count.hits]
    axes.errorbar(
        [x for x, _ in hit], [count.log_prob / TENS for _, count in hit], [2 * count.error / TENS for _, count in hit],
        fmt="s", ms=3.5, lw=0.8, color=drawing.PLAIN, mfc="none", label="plain Monte Carlo, ± 2 s.d.",
    )  # fmt: skip
    none = [(x, count.bound / TENS) for x, count in plain if not count.hits]
    if none:
        axes.plot(*zip(*none, strict=True), "v", ms=4, color=drawing.PLAIN, mfc="none", label="none found: upper bound")
    axes.set_xticks(
        range(len(bad)), [f"{network} p{number}" for network, number in bad], rotation=90, fontsize=drawing.SMALL
    )
    title = "a  violated pairs, 95 % intervals; no point where rarely says stalled"
    drawing.label(axes, "network and property", "log10 p", title)
    drawing.name_curves(axes, "upper left")


def _verdicts(axes: Any, answers: Answers) -> None:
    """How many pairs of each property are violated, proved, open."""
    numbers = sorted({number for _, number in answers})
    bottom = [0] * len(numbers)
    kinds = {"violated": drawing.PAPERS, "proved safe": drawing.OURS, "open": drawing.MUTED}
    for kind, color in kinds.items():
        counts = [sum(_kind(m["auto"]) == kind for (_, p), m in answers.items() if p == number) for number in numbers]
        axes.bar([str(number) for number in numbers], counts, 0.7, bottom, color=color, label=kind)
        bottom = [b + c for b, c in zip(bottom, counts, strict=True)]
    drawing.label(axes, "property", "networks", "b  verdicts of rarely's default")
    drawing.name_curves(axes, "center right")
    axes.set_ylim(0, 1.05 * max(bottom))


def _kind(row: dict[str, str]) -> str:
    if violated(row):
        return "violated"
    return "proved safe" if row["outcome"] == rarely.Outcome.PROVED_SAFE.value else "open"


def _summary(answers: Answers, counts: dict[str, Count]) -> str:
    autos = [methods["auto"] for methods in answers.values()]
    lines = []
    for known in ("sat", "unsat"):
        rows = [row for row in autos if row["known"] == known]
        kinds = [sum(_kind(row) == kind for row in rows) for kind in ("violated", "proved safe", "open")]
        lines.append((known, len(rows), *kinds, f"{sum(float(row['seconds']) for row in rows):.0f}"))
    text = common.markdown(("known verdict", "pairs", "violated", "proved safe", "open", "seconds in all"), lines)
    bad = sorted((key for key, m in answers.items() if violated(m["auto"])), key=lambda key: (key[1], key[0]))
    table = []
    for key in bad:
        auto, split, count = answers[key]["auto"], answers[key].get("splitting"), counts.get(name(*key))
        numbers = (*_number(auto), *_number(split), _plain(count))
        table.append((key[1], key[0], *numbers, f"{int(auto['calls']):,}", auto["known"]))
    header = ("property", "network", "p", "95 % interval", "p, splitting alone", "95 % interval", "plain Monte Carlo",
              "calls of the default", "known verdict")  # fmt: skip
    return f"{text}\n\n{common.markdown(header, table)}\n"


def _number(row: dict[str, str] | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    if not trusted(row):
        return f"no number ({row['outcome']})", ""
    p, low, high = (math.exp(float(row[name])) for name in ("log_prob", "low", "high"))
    return f"{p:.3g}", f"{low:.2g} to {high:.2g}"


def _plain(count: Count | None) -> str:
    if count is None:
        return ""
    if not count.hits:
        return f"none in {count.samples:.2g}"
    return f"{math.exp(count.log_prob):.3g} ± {count.error:.1%}"


def main(argv: Sequence[str] | None = None) -> None:
    context = common.start("acasxu", __doc__, argv, options)
    context.fill({"samples": 1e5 if context.quick else 1e9})
    if not context.args.figures_only:
        measure(context)
    drawing.draw(context, figures)


if __name__ == "__main__":
    main()
