"""How often is a rare word a language model's answer? Ours against ITGIS and MHIS, from the paper, at equal calls.

    python benchmarks/tokens.py benchmarks/tokens_truth.json results.json

Wu and Hilton, "Estimating the probabilities of rare outputs in language models" (arXiv 2410.13211), spend 2^16
gradients on each of their tokens: 196,608 of our calls, a gradient counted as three. They choose a temperature for each
law, and
fit a p^c + b to what comes out; both are done here with the truth in hand, the fit for ours, too. The model is the
demo's (`rarely.demo.text`), 64 words of four laws; benchmarks/tokens_truth.py says where the truth comes from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rarely
from rarely.demo.text import LanguageModel, language_model
from rarely.inputs import Tokens
from tokens_truth import position_laws

GRADIENTS = 2**16  # of each target
CALLS = 3 * GRADIENTS
BATCH, DECAY = 256, 0.9  # of ITGIS
CHAINS, BURN_IN = 32, 64  # of MHIS: chains of each target, steps that are thrown away
TEMPERATURES = (0.5, 1.0, 2.0)
METHODS = ("Auto", "ITGIS", "MHIS")
Known = Sequence[dict[str, Any]]  # the word, p and its error, of every target


@dataclass(frozen=True)
class Law:
    """The law of every position as probabilities over the whole vocabulary."""

    probs: Tensor  # (length, words)

    @classmethod
    def of(cls, positions: Sequence[dict[int, float]], words: int) -> Law:
        probs = torch.zeros(len(positions), words, dtype=torch.float64)
        for row, law in zip(probs, positions, strict=True):
            row[list(law)] = torch.tensor(list(law.values()), dtype=torch.float64)
        return cls(probs)


def slopes(model: LanguageModel, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For x (n, length): the target's logit (n,), whether it is the largest, and what each word in each place would
    add to it by the gradient at the word that stands there, (n, length, words)."""
    seen: list[Tensor] = []

    def remember(_: object, __: object, output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[0]

    hook = model.word.register_forward_hook(remember)
    try:
        y = model(x)
    finally:
        hook.remove()
    logit = y.gather(1, targets[:, None])[:, 0]
    (slope,) = torch.autograd.grad(logit.sum(), seen[0])
    with torch.no_grad():
        return logit.detach().double(), y.argmax(1) == targets, slope @ model.word.weight.T


def itgis(model: LanguageModel, law: Law, targets: Tensor, temperature: float, gradients: int) -> Tensor:
    """Independent token gradient importance sampling: tilts from a moving mean of gradients under the tilts so far."""
    draws, log_p = torch.Generator().manual_seed(gradients), law.probs.log()
    k, (length, words) = len(targets), law.probs.shape
    mean, weight, total = torch.zeros(k, length, words, dtype=torch.float64), 0.0, torch.zeros(k, dtype=torch.float64)
    for _ in range(gradients // BATCH):
        tilt = torch.log_softmax(log_p + mean / (temperature * max(weight, 1e-9)), 2)
        x = torch.multinomial(tilt.exp().flatten(0, 1), BATCH, True, generator=draws)  # (k length, BATCH)
        x = x.reshape(k, length, BATCH)
        log_w = (log_p.expand(k, -1, -1).gather(2, x) - tilt.gather(2, x)).sum(1)  # (k, BATCH)
        each = [slopes(model, own.T.contiguous(), target.expand(BATCH)) for own, target in zip(x, targets, strict=True)]
        total += torch.stack([(w.exp() * hit).sum() for w, (_, hit, _) in zip(log_w, each, strict=True)])
        mean = DECAY * mean + (1 - DECAY) * torch.stack([slope.double().mean(0) for _, _, slope in each])
        weight = DECAY * weight + 1 - DECAY
    return total / gradients


def mhis(model: LanguageModel, law: Law, targets: Tensor, temperature: float, gradients: int) -> Tensor:
    """Metropolis-Hastings importance sampling: chains of p(x) exp(logit / T), one word at a time by gradients."""
    draws, log_p = torch.Generator().manual_seed(gradients), law.probs.log().float()
    n, length = CHAINS * len(targets), len(log_p)
    aim, rows = targets.repeat_interleave(CHAINS), torch.arange(CHAINS * len(targets))
    x = torch.multinomial(law.probs, n, True, generator=draws).T.contiguous()
    logit, hit, slope = slopes(model, x, aim)
    hits: list[Tensor] = []
    for step in range(BURN_IN + gradients // CHAINS):
        place = torch.randint(length, (n,), generator=draws)
        forward = torch.log_softmax(log_p[place] + slope[rows, place] / temperature, 1)
        word, old = torch.multinomial(forward.exp(), 1, generator=draws)[:, 0], x[rows, place]
        y = x.clone()
        y[rows, place] = word
        new_logit, new_hit, new_slope = slopes(model, y, aim)
        backward = torch.log_softmax(log_p[place] + new_slope[rows, place] / temperature, 1)
        gain = (new_logit - logit) / temperature + log_p[place, word] - log_p[place, old]
        gain = gain + backward[rows, old] - forward[rows, word]
        ok = torch.rand(n, generator=draws).log() < gain
        x, slope = torch.where(ok[:, None], y, x), torch.where(ok[:, None, None], new_slope, slope)
        logit, hit = torch.where(ok, new_logit, logit), torch.where(ok, new_hit, hit)
        if step >= BURN_IN:
            hits.append(torch.stack([-logit / temperature, hit.double()]))
    weights, met = torch.stack(hits, 1).reshape(2, -1, len(targets), CHAINS)  # each (steps, targets, CHAINS)
    scaled = torch.exp(weights - weights.amax((0, 2), keepdim=True))
    found: Tensor = (scaled * met).sum((0, 2)) / scaled.sum((0, 2))
    return found


def itakura_saito(truth: Tensor, found: Tensor) -> Tensor:
    """The paper's loss: 0 where both agree, infinite where what happens is said to be impossible."""
    ratio = truth / found.clamp_min(1e-300)
    return ratio - ratio.log() - 1


def fitted(truth: Tensor, found: Tensor) -> Tensor:
    """a found^c + b with the smallest loss on a grid."""
    a, b = torch.logspace(-4, 4, 81).double(), torch.cat([torch.zeros(1), torch.logspace(-10, -4, 61)]).double()
    best, least = found, math.inf
    for c in torch.linspace(0.2, 1.2, 21).tolist():
        scale = a * float(truth.log().mean().exp()) ** (1 - c)
        tried = scale[:, None, None] * found**c + b[:, None]
        loss = itakura_saito(truth, tried).mean(2)
        if float(loss.min()) < least:
            least, place = float(loss.min()), int(loss.argmin())
            best = tried.flatten(0, 1)[place]
    return best


Peer = Callable[[LanguageModel, Law, Tensor, float, int], Tensor]


def peer(method: Peer, model: LanguageModel, law: Law, targets: Tensor, truth: Tensor) -> list[float]:
    """At the temperature that does best on a quarter of the targets with a quarter of the gradients."""

    def loss(temperature: float) -> float:
        some = slice(0, None, 4)
        found = method(model, law, targets[some], temperature, GRADIENTS // 4)
        return float(itakura_saito(truth[some], fitted(truth[some], found)).mean())

    chosen: list[float] = method(model, law, targets, min(TEMPERATURES, key=loss), GRADIENTS).tolist()
    return chosen


def answer(method: str, model: LanguageModel, positions: Sequence[dict[int, float]], known: Known) -> dict[str, Any]:
    """What a method finds for the targets of a law; of ours also the intervals of log p that it trusts."""
    number = {word: k for k, word in enumerate(model.vocabulary)}
    targets = torch.tensor([number[target["word"]] for target in known])
    truth = torch.tensor([target["p"] for target in known], dtype=torch.float64)
    if method != "Auto":
        law = Law.of(positions, len(model.vocabulary))
        return {"found": peer(itgis if method == "ITGIS" else mhis, model, law, targets, truth), "calls": CALLS}
    tokens = Tokens(positions, vocabulary=model.vocabulary)
    problems = [rarely.Problem(model, rarely.Predicted(int(target)), tokens) for target in targets]
    answers = rarely.estimate(problems, max_evaluations=CALLS)
    intervals = [(one.interval.low, one.interval.high) for one in answers]
    return {
        "found": [one.prob for one in answers],
        "calls": sum(one.evaluations + 3 * one.gradients for one in answers) // len(answers),
        "trusted": [
            interval if one.outcome.name == "VIOLATED" else None
            for one, interval in zip(answers, intervals, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("truth", type=Path)
    parser.add_argument("results", type=Path, help="what is there already is not run again")
    parser.add_argument("--only", nargs="*", default=METHODS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known, model = json.loads(options.truth.read_text()), language_model()
    laws = position_laws(model)
    for method, name in itertools.product(options.only, known):
        results = json.loads(options.results.read_text()) if options.results.exists() else {}
        if name not in results.setdefault(method, {}):
            results[method][name] = answer(method, model, laws[name], known[name]["targets"])
            options.results.write_text(json.dumps(results, indent=1) + "\n")
    show(known, results)


def show(known: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
    print("| law | method | Itakura-Saito | after a fit | RMSE of log p after it | zeros | trusted, cover | calls |")
    print("|---|---|---|---|---|---|---|---|")
    whole: dict[str, list[tuple[Tensor, ...]]] = {}
    for name, method in itertools.product(known, results):
        if name in results[method]:
            own = results[method][name]
            truth = torch.tensor([target["p"] for target in known[name]["targets"]], dtype=torch.float64)
            found = torch.tensor(own["found"], dtype=torch.float64)
            whole.setdefault(method, []).append((truth, found, fitted(truth, found)))
            said = covered(own["trusted"], truth) if "trusted" in own else "–"
            print(f"| {name} | {method} {row(*whole[method][-1])} | {said} | {own['calls']:,} |")
    for method, parts in whole.items():
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        print(f"| all | {method} {row(*columns)} | | |")


def covered(trusted: Sequence[tuple[float, float] | None], truth: Tensor) -> str:
    """How many intervals are trusted, and how many of those hold the truth."""
    some = [(own, log_p) for own, log_p in zip(trusted, truth.log().tolist(), strict=True) if own is not None]
    return f"{len(some)}, {sum(low <= log_p <= high for (low, high), log_p in some)}"


def row(truth: Tensor, found: Tensor, best: Tensor) -> str:
    raw, after = itakura_saito(truth, found).mean(), itakura_saito(truth, best).mean()
    rmse = (best / truth).log().square().mean().sqrt()
    return f"| {raw:.3g} | {after:.3f} | {rmse:.2f} | {int((found == 0).sum())}"


if __name__ == "__main__":
    main()
