"""What was run beside what the paper ran: the first table of RESULTS.md, counted from the experiments' tables."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from papers.webb2019 import common
from papers.webb2019.streamed import ENOUGH, counted

Rows = Sequence[dict[str, str]]
TWO_RULES = 2  # under which every setting of section 6.2 runs


def table(folder: Path) -> str:
    experiments = (
        ("6.1, CollisionDetection", "500 properties, 30 runs, N = 10,000, M = 1000; 1e10 plain samples", _collision),
        ("6.2, sensitivity", "172 properties, 30 runs of 27 settings; one rule (here: each with two)", _sensitivity),
        ("6.3, MNIST", "30 runs, N = 10,000, M = 100, 250, 1000; 5e9 plain samples",
         lambda folder: _images(folder / "images" / "images.csv", "mnist")),
        ("6.3, CIFAR-10", "30 runs, N = 10,000, M = 100 to 2000; 5e9 plain samples",
         lambda folder: _images(folder / "images" / "images.csv", "cifar10")),
        ("6.3, DenseNet", "CIFAR-100, 30 runs, N = 300, M up to 2000; 5e6 plain samples",
         lambda folder: _images(folder / "densenet" / "densenet.csv", "cifar10", "CIFAR-10, ")),
        ("6.4, robust training", "100 + 100 epochs, 50 images, the random walk", _robust),
    )  # fmt: skip
    rows = [(name, paper, here(folder) or "not run") for name, paper, here in experiments]
    return common.markdown(("section", "the paper", "here"), rows)


def _collision(folder: Path) -> str:
    rows, parts = common.read(folder / "collision" / "paper.csv"), []
    for verdict, words in (("SAT", "that are violated"), ("UNSAT", "that are not")):
        mine = [row for row in rows if row["verdict"] == verdict]
        files = len({row["file"] for row in mine})
        by_steps = defaultdict(set)
        for row in mine:
            by_steps[row["steps"]].add(row["run"])
        parts += [f"{_runs(len(runs))} of the {files} {words}, M = {m}" for m, runs in by_steps.items()]
        samples = [count.samples for count in counted(folder / "collision", verdict).values() if count.hits < ENOUGH]
        if samples:
            parts.append(f"{_big(min(samples))} plain samples of those")
    return "; ".join(parts)


def _sensitivity(folder: Path) -> str:
    runs: Counter[tuple[int, str, str]] = Counter()  # of all properties together
    files: dict[tuple[int, str, str], set[str]] = defaultdict(set)
    for row in common.read(folder / "sensitivity" / "sensitivity.csv"):
        cell = int(row["particles"]), row["quantile"], row["steps"]
        runs[cell] += int(row["replicates"])
        files[cell].add(row["file"])
    quantiles, steps = sorted({q for _, q, _ in runs}), sorted({m for _, _, m in runs}, key=int)
    parts = []
    for n in sorted({n for n, _, _ in runs}):
        groups: dict[str, list[str]] = defaultdict(list)
        for q, m in itertools.product(quantiles, steps):
            properties = len(files[n, q, m])
            each = runs[n, q, m] // (TWO_RULES * properties) if properties else 0
            groups[f"{_runs(each)} of {properties} properties" if each else "no run"].append(f"ρ = {q}, M = {m}")
        most = max(groups, key=lambda text: len(groups[text]))
        rest = [f"{text} at {' and '.join(cells)}" for text, cells in groups.items() if text != most]
        parts.append("; ".join([f"N = {n:,}: {most}", *rest]))
    return "; ".join(parts)


def _images(path: Path, dataset: str, before: str = "") -> str:
    rows = [row for row in common.read(path) if row["dataset"] == dataset]
    walks = [row for row in rows if row["method"] == "paper"]
    if not walks:
        return ""
    shown = Counter(row["image"] for row in walks).most_common(1)[0][0]
    runs: dict[tuple[int, int], set[str]] = defaultdict(set)
    for row in walks:
        if row["image"] == shown:
            runs[int(row["particles"]), int(row["steps"])].add(row["repeat"])
    parts = []
    for n in sorted({n for n, _ in runs}):
        counts = [f"{_runs(len(found))} at M = {m}" for (size, m), found in sorted(runs.items()) if size == n]
        parts.append(f"N = {n:,}: {', '.join(counts)}")
    samples: Counter[str] = Counter()
    for row in rows:
        if row["method"] == "plain":
            samples[row["eps"]] += int(row["particles"])
    plain = f"; up to {_big(max(samples.values()))} plain samples" if samples else ""
    return before + "; ".join(parts) + plain


def _robust(folder: Path) -> str:
    epochs = Counter(row["phase"] for row in common.read(folder / "robust" / "training.csv"))
    rows = common.read(folder / "robust" / "robust.csv")
    if not rows:
        return ""
    looks, images = (len({row[name] for row in rows}) for name in ("epoch", "image"))
    trained = f"{epochs['standard']} + {epochs['robust']} epochs"
    return f"{trained}, {images} images, splitting with pCN, at {looks} of the epochs"


def _runs(count: int) -> str:
    return "no run" if count == 0 else "1 run" if count == 1 else f"{count} runs"


def _big(count: int) -> str:
    return f"{count:.1e}".replace(".0e", "e").replace("e+0", "e").replace("e+", "e")
