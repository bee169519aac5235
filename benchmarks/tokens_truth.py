"""The truth that benchmarks/tokens.py compares with: how often each word is the most likely next one, for four laws.

    python benchmarks/tokens_truth.py benchmarks/tokens_truth.json
    python benchmarks/tokens_truth.py benchmarks/tokens_truth.json --again "any words" --sequences 1e9 --device cuda

Three laws have 2 to 17 million sequences, which are all tried: p is exact but for the rounding of the network. The
fourth has 512^8. There every draw of the first seven words is tried with all 512 last words, each by its probability:
unbiased, with a standard error from draws that are independent, and many times as sharp as drawing the last word, too.
One thread, 40 minutes for 32 million sequences; words before the last are computed once for all that follow them. On a
GPU a billion sequences take minutes: `--again` measures the words that were chosen anew.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rarely.demo.text import LanguageModel, language_model

TARGETS = 16  # of each law
RANGE = (1e-9, 1e-3)
GROUPS = 100  # of prefixes, whose spread gives the standard error
ROWS = {"cpu": 4096, "cuda": 2**20}  # sequences at a time: what stays in the caches, or fills a GPU

SIGNS = "( ) [ ] . , : ="
SENTENCE = (
    "the a an this that any each its",
    "value object class function name method type instance",
    "of in to for by with from as",
    "the a an this that any each its",
    "list string module attribute number expression statement argument",
    "is are can may must should was has",
    "not only also used defined called the a",
)


def position_laws(model: LanguageModel) -> dict[str, list[dict[int, float]]]:
    """Of each law, for every position the numbers of the words that may stand there, with their probabilities."""
    number = {word: k for k, word in enumerate(model.vocabulary)}
    counts = dict(enumerate(map(float, model.counts)))
    frequent = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:64])
    signs = {number[sign]: counts[number[sign]] for sign in SIGNS.split()}
    slots = [{number[word]: 1 / (k + 1) ** 2 for k, word in enumerate(slot.split())} for slot in SENTENCE]
    whole: dict[str, list[dict[int, Any]]] = {
        "any words": [counts] * 8,
        "frequent words": [frequent] * 4,
        "signs": [signs] * 7,
        "a sentence": slots,
    }
    return {
        name: [{word: weight / sum(law.values()) for word, weight in law.items()} for law in laws]
        for name, laws in whole.items()
    }


def answers_after(model: LanguageModel, prefixes: Tensor, last: Tensor) -> Tensor:
    """The most likely next word (n, K) after each of `prefixes` (n, L - 1) and each of `last` (K,)."""
    blocks: Any = model.blocks
    first, second = blocks
    n, k, length = len(prefixes), len(last), prefixes.shape[1] + 1
    places = model.place.weight[:length]
    past = model.word(prefixes) + places[:-1]
    here = (model.word(last) + places[-1]).expand(n, -1, -1)  # (n, K, width)
    middle = first(past, past)
    for block, before in ((first, past), (second, middle)):
        here = _beside(block, here, before)
    logits: Tensor = model.answer(model.last(here))
    return logits.argmax(-1).reshape(n, k)


def _beside(block: Any, x: Tensor, past: Tensor) -> Tensor:
    """A block at K last words (n, K, width), each of which sees the past (n, L - 1, width) and itself."""
    split = (block.heads, -1)
    q = block.query(block.before(x)).unflatten(-1, split)  # (n, K, heads, size)
    own_k, own_v = (t.unflatten(-1, split) for t in block.both(block.before(x)).chunk(2, -1))
    k, v = (t.unflatten(-1, split) for t in block.both(block.before(past)).chunk(2, -1))
    scale = q.shape[-1] ** -0.5
    there = torch.einsum("nkhd,nlhd->nkhl", q, k) * scale
    share = torch.cat([there, (q * own_k).sum(-1, keepdim=True) * scale], -1).softmax(-1)
    seen = torch.einsum("nkhl,nlhd->nkhd", share[..., :-1], v) + share[..., -1:] * own_v
    x = x + block.mixed(seen.flatten(-2))
    y: Tensor = x + block.narrow(F.gelu(block.wide(block.between(x))))
    return y


def enumerated(model: LanguageModel, laws: list[dict[int, float]]) -> Tensor:
    """p of every word, (words,), over all sequences."""
    words, chances = _placed(laws, model)
    prefixes, weight = torch.cartesian_prod(*words[:-1]), torch.cartesian_prod(*chances[:-1]).prod(1)
    total = chances[0].new_zeros(len(model.vocabulary))
    pieces = (torch.split(t, max(1, ROWS[total.device.type] // len(words[-1]))) for t in (prefixes, weight))
    for part, share in zip(*pieces, strict=True):
        found = answers_after(model, part, words[-1])
        total.index_add_(0, found.flatten(), (share[:, None] * chances[-1]).flatten())
    return total.cpu()


def drawn(model: LanguageModel, laws: list[dict[int, float]], sequences: float) -> tuple[Tensor, Tensor, int]:
    """p of every word, its standard error, and the number of prefixes drawn: whole rounds of all groups."""
    words, chances = _placed(laws, model)
    device = words[0].device
    size = max(1, ROWS[device.type] // len(words[-1]))
    rounds = max(1, round(sequences / (size * GROUPS * len(words[-1]))))
    sums = torch.zeros(GROUPS, len(model.vocabulary), dtype=torch.float64, device=device)
    draws = torch.Generator(device).manual_seed(0)
    for group in list(range(GROUPS)) * rounds:
        picks = [torch.multinomial(chance, size, True, generator=draws) for chance in chances[:-1]]
        prefixes = torch.stack([word[pick] for word, pick in zip(words, picks, strict=False)], 1)
        found = answers_after(model, prefixes, words[-1])
        sums[group].index_add_(0, found.flatten(), chances[-1].expand(size, -1).flatten())
    each = sums.cpu() / (rounds * size)
    return each.mean(0), each.std(0) / GROUPS**0.5, rounds * size * GROUPS


def _placed(laws: list[dict[int, float]], model: LanguageModel) -> tuple[list[Tensor], list[Tensor]]:
    """Words that may stand in each position, and their probabilities, where the model is."""
    device = model.word.weight.device
    words = [torch.tensor(list(law), device=device) for law in laws]
    return words, [torch.tensor(list(law.values()), dtype=torch.float64, device=device) for law in laws]


def chosen(p: Tensor, error: Tensor) -> list[int]:
    """Words whose p is spread over the range, evenly in its logarithm, and known to a tenth at least."""
    usable = [k for k in range(len(p)) if RANGE[0] <= p[k] <= RANGE[1] and error[k] <= 0.1 * p[k]]
    usable.sort(key=lambda k: float(p[k]))
    picked: list[int] = []
    for goal in torch.logspace(-9, -3, TARGETS, dtype=torch.float64).log():
        free = [k for k in usable if k not in picked]
        picked.append(min(free, key=lambda k: abs(float(p[k].log() - goal))))
    return sorted(picked, key=lambda k: -float(p[k]))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sequences", type=float, default=3.2e7, help="of a law that has too many to try them all")
    parser.add_argument("--device", default="cpu", choices=sorted(ROWS))
    parser.add_argument("--again", help="a law that is in the file: p of the same words, with as many sequences")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = language_model().to(options.device)
    truth = json.loads(options.file.read_text()) if options.file.exists() else {}  # go on where it stopped
    check = torch.randint(512, (20, 8), generator=torch.Generator().manual_seed(1)).to(options.device)
    assert bool((answers_after(model, check[:, :-1], check[0, -1:])[0, 0] == model(check[:1]).argmax()).all())
    laws, number = position_laws(model), {word: k for k, word in enumerate(model.vocabulary)}
    missing = {options.again} if options.again else laws.keys() - truth.keys()
    for name in sorted(missing, key=lambda name: len(laws[name][0]) > 64):  # draws come last
        begun = time.monotonic()
        if len(laws[name][0]) > 64:
            p, error, n = drawn(model, laws[name], options.sequences)
            how = f"{n:,} draws of the first seven words, each with all {len(laws[name][-1])} last words"
        else:
            p = enumerated(model, laws[name])
            error, how = torch.zeros_like(p), "all sequences"
        known = [number[target["word"]] for target in truth.get(name, {}).get("targets", [])]
        targets = [
            {"word": model.vocabulary[k], "p": float(p[k]), "error": float(error[k])} for k in known or chosen(p, error)
        ]
        truth[name] = {"how": how, "seconds": round(time.monotonic() - begun), "targets": targets}
        options.file.write_text(json.dumps(truth, indent=1, ensure_ascii=False) + "\n")
        print(
            name, how, f"{time.monotonic() - begun:.0f} s", [f"{t['word']} {t['p']:.1e}" for t in targets], flush=True
        )


if __name__ == "__main__":
    main()
