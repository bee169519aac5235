"""Draw the figures of the documentation into docs/figures. Run it with `python docs/make_figures.py`.

Everything shown is computed here by the library: nothing is drawn from memory.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import rarely
from rarely.bounds import probability_bounds, prove
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.demo import assets, images
from rarely.demo.text import language_model
from rarely.inputs import Tokens
from rarely.kernels import PCN
from rarely.methods.importance import _bases
from rarely.questions.estimate import finish
from rarely.stats.levels import ancestors, select
from rarely.stats.mixture import fit_mixture

FOLDER = Path(__file__).parent / "figures"
INK, BLUE, RED, GREY = "#222222", "#1f6fb4", "#c0392b", "#999999"


def radii() -> Figure:
    """The front page: the probability that noise changes the answer, against the radius of the noise."""
    pictures, labels, names = images()
    network = rarely.load_network(assets() / "signs.onnx")
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.2, 3.6), gridspec_kw={"width_ratios": [2.4, 1]}, layout="constrained"
    )
    grid = [0.07, 0.08, 0.1, 0.12, 0.14, 0.17, 0.2, 0.23]
    for index, colour in ((2, BLUE),):
        problems = [
            rarely.Problem(
                network, rarely.Misclassification(int(labels[index])), rarely.LpBall(pictures[index], eps, clip=(0, 1))
            )
            for eps in grid
        ]
        found = rarely.estimate(problems)
        for eps, e in zip(grid, found, strict=True):
            print(names[int(labels[index])], eps, e)  # noqa: T201
        kept = [(eps, e) for eps, e in zip(grid, found, strict=True) if e.outcome is rarely.Outcome.VIOLATED]
        x, ten = [eps for eps, _ in kept], math.log(10)
        y, low, high = (
            np.array([value(e) / ten for _, e in kept])
            for value in (lambda e: e.log_prob, lambda e: e.interval.low, lambda e: e.interval.high)
        )
        left.errorbar(x, y, (y - low, high - y), fmt="o-", color=colour, ms=4, lw=1.2, capsize=3)
        left.annotate(names[int(labels[index])], (x[2], y[2]), (8, -14), textcoords="offset points", color=colour)
        if index == 2:
            example = kept[[round(eps, 3) for eps in x].index(0.1)][1].witnesses.inputs[0, 0]
    left.axhline(-6, color=GREY, ls="--", lw=1)
    left.text(
        0.222, -6.15, "plain sampling to 10 %: 1e8 calls here, more below", ha="right", va="top", color=GREY, fontsize=8
    )
    left.set_xlabel("radius of the noise (share of full brightness)")
    left.set_ylabel("log10 of the probability of a wrong answer")
    right.imshow(np.concatenate([pictures[2, 0], np.ones((20, 2)), example.numpy()], 1), cmap="gray", vmin=0, vmax=1)
    with torch.no_grad():
        seen = int(network(example.reshape(1, 1, 20, 20)).argmax())
    right.set_title(f"left: a square\nright: noise of radius 0.1,\nseen as {names[seen]}", fontsize=9)
    right.axis("off")
    return figure


def _curved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, 0] + 0.35 * torch.sin(2.0 * x[:, 1]) + 0.08 * x[:, 1] ** 2 - 3.6


def levels() -> Figure:
    """Multi-level splitting on two standard normals: the population at each level."""
    problem = rarely.Problem(lambda x: x, _curved, rarely.Gaussian([0.0, 0.0], 1.0))
    (batch,) = rarely.Execution(device="cpu").place([problem], Spend(1))
    rng, kernel, n = Rng(3), PCN(), 400
    state = kernel.init(batch, n, rng)
    figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.9), sharex=True, sharey=True, layout="constrained")
    log_prob, grid = 0.0, torch.cartesian_prod(torch.linspace(-3.4, 5.4, 120), torch.linspace(-3.4, 3.4, 100))
    surface = _curved(grid, grid).reshape(120, 100).T
    for k, axis in enumerate(axes):
        z = state.position[0]
        choice = select(state.score, 0.1, paper=False)
        log_prob += float(choice.log_increment)
        level = min(0.0, float(choice.level))
        above = state.score[0] > level if level < 0 else state.score[0] >= 0
        axis.contour(grid[::100, 0], grid[:100, 1], surface, [0.0], colors=RED, linewidths=1.4)
        if level < 0:
            axis.contour(
                grid[::100, 0], grid[:100, 1], surface, [level], colors=BLUE, linewidths=1.0, linestyles="dashed"
            )
        axis.scatter(*z[~above].T, s=3, color=GREY, lw=0)
        axis.scatter(*z[above].T, s=5, color=BLUE if level < 0 else RED, lw=0)
        axis.set_title(f"level {k + 1}: p(s > {level:.1f}) = {math.exp(log_prob):.1e}", fontsize=8)
        axis.set_aspect("equal")
        if bool(choice.finished):
            for unused in axes[k + 1 :]:
                unused.axis("off")
            break
        state = state.clone(ancestors(choice, n, rng, multinomial=False))
        for _ in range(20):
            state, ok = kernel.step(batch, state, choice.level.unsqueeze(1), True, rng)
            state = kernel.adapt(state, ok)
    return figure


def lines() -> Figure:
    """Line tempering on the same region: the root on each line, and what is left to average."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2), layout="constrained")
    v = torch.linspace(-3, 3, 400)
    root = 3.6 - 0.35 * torch.sin(2.0 * v) - 0.08 * v**2
    left.fill_betweenx(v, root, 5.4, color=RED, alpha=0.15, lw=0)
    left.plot(root, v, color=RED)
    some = Rng(1).normal((14,))
    at = 3.6 - 0.35 * torch.sin(2.0 * some) - 0.08 * some**2
    left.hlines(some, -3, at, color=GREY, lw=0.7)
    left.hlines(some, at, 5.4, color=RED, lw=1.2)
    left.scatter(at, some, s=14, color=RED, zorder=3)
    left.annotate("", (1.6, -2.8), (0, -2.8), arrowprops={"arrowstyle": "->", "color": INK})
    left.text(0.0, -2.65, "direction", fontsize=8)
    left.text(4.0, 2.6, "violating", color=RED, fontsize=8)
    left.set(xlim=(-3, 5.4), ylim=(-3.1, 3.1), xlabel="along the direction", ylabel="orthogonal to it")
    tail = torch.special.log_ndtr(-root.double())
    right.plot(v, tail, color=BLUE)
    right.set(xlabel="place z orthogonal to the direction", ylabel="h(z) = log P(Z > root), nats", ylim=(-12, 0))
    mean = float(torch.trapezoid(torch.exp(tail - 0.5 * v.double() ** 2) / math.sqrt(2 * math.pi), v.double()))
    right.axhline(math.log(mean), color=GREY, ls="--", lw=1)
    right.text(-3, -11.6, f"dashed: log p = {math.log(mean):.2f}, the mean of exp(h)", color=GREY, fontsize=8)
    right.set_title("what is left to average varies little", fontsize=9)
    return figure


def subspace() -> Figure:
    """A failure-informed subspace: 40 dimensions, a score that bends in two of them."""
    d = 40
    basis = torch.linalg.qr(Rng(5).normal((d, 2)))[0]

    def two_modes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        v = x @ basis
        return torch.maximum(v[:, 0] - 3.2, 0.6 * v[:, 1] - 0.8 * v[:, 0] - 3.4)

    problem = rarely.Problem(torch.nn.Identity().eval(), two_modes, rarely.Gaussian(torch.zeros(d), 1.0))
    (batch,) = rarely.Execution(device="cpu").place([problem], Spend(1))
    rng = Rng(0)
    (islands,) = finish(rarely.Splitting(400, steps=4, keep="all").populations(batch, rng))
    points = torch.cat([island.survivors for island in islands if island.survivors is not None])
    _, g = batch.gradient_normal(points[None, :200])
    spectrum = torch.linalg.svdvals(g[0])
    (found,) = _bases(batch, [points])
    proposal = fit_mixture((points @ found)[None], torch.zeros(1, len(points)), components=4)
    drawn = proposal.sample(1500, rng)[0] @ found.T @ basis
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2), layout="constrained")
    left.bar(range(1, 11), spectrum[:10] / spectrum[0], color=BLUE)
    left.set(xlabel="direction", ylabel="singular value, relative")
    left.set_title(f"gradients at violating points, d = {d}", fontsize=9)
    right.scatter(*drawn.T, s=2, color=GREY, lw=0, label="fitted proposal")
    right.scatter(*(points @ basis)[::3].T, s=4, color=RED, lw=0, label="violating particles")
    right.legend(fontsize=8, loc="lower left", markerscale=3)
    right.set(xlabel="first true direction", ylabel="second true direction")
    right.set_title("seen in the plane that matters", fontsize=9)
    right.set_aspect("equal")
    return figure


def proved() -> Figure:
    """A theorem beside an estimate, on MNIST: needs RARELY_DATA."""
    data = Path(os.environ["RARELY_DATA"])
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from common import mnist_problem

    figure, panels = plt.subplots(1, 2, figsize=(8.2, 3.6), sharey=True, layout="constrained")
    radii = {18: (0.0185, 0.02, 0.0215, 0.023, 0.0245, 0.026, 0.028, 0.03, 0.033),
             3: (0.08, 0.085, 0.09, 0.095, 0.1, 0.105, 0.11, 0.12)}  # fmt: skip
    for axes, (image, grid) in zip(panels, radii.items(), strict=True):
        safe, broken = 0.0, grid[0]  # the largest radius without an attack, by bisection
        for _ in range(6):
            middle = (safe + broken) / 2
            proof = prove(mnist_problem(data, image, middle), 20.0)
            safe, broken = (safe, middle) if proof.status == "violated" else (middle, broken)
        axes.axvline(broken, color=GREY, ls=":", lw=1)
        axes.annotate("an attack succeeds", (broken, -1), (4, 0), textcoords="offset points", color=GREY, fontsize=8)
        _proved_beside_estimated(axes, [(eps, mnist_problem(data, image, eps)) for eps in grid])
        axes.set(xlabel="eps", title=f"MNIST, test image {image}", ylim=(-26, 0.5))
    panels[0].set_ylabel("log10 of the violation probability")
    panels[1].legend(frameon=False, loc="lower right", fontsize=8)
    return figure


def words() -> Figure:
    """The language tutorial: answers after five signs, how often by trying all 32,768 beginnings, and by estimates."""
    model, length = language_model(), 5
    number = {word: k for k, word in enumerate(model.vocabulary)}
    signs = {sign: float(model.counts[number[sign]]) for sign in ["(", ")", "[", "]", ".", ",", ":", "="]}
    law = Tokens(signs, length, vocabulary=model.vocabulary)
    every = torch.cartesian_prod(*[torch.tensor([number[sign] for sign in signs])] * length)
    with torch.no_grad():
        answers = torch.cat([model(part).argmax(1) for part in every.split(4096)])
    chance = law.log_density(every).double().exp()
    p = torch.zeros(len(model.vocabulary), dtype=torch.float64).index_add_(0, answers, chance)
    met = p.nonzero()[:, 0]
    goals = torch.linspace(float(p[met].log().min()), float(p[met].log().max()), 40)
    chosen = sorted({int(met[(p[met].log() - goal).abs().argmin()]) for goal in goals}, key=lambda k: float(p[k]))
    found = rarely.estimate([rarely.Problem(model, rarely.Predicted(k), law) for k in chosen])
    figure, axes = plt.subplots(figsize=(8.2, 3.4), layout="constrained")
    axes.axhline(1, color=GREY, lw=0.8, zorder=0)
    for place, (k, e) in enumerate(zip(chosen, found, strict=True)):
        print(model.vocabulary[k], f"{float(p[k]):.3g}", e)  # noqa: T201
        at, low, high = (math.exp(value) / float(p[k]) for value in (e.log_prob, e.interval.low, e.interval.high))
        colour = BLUE if e.outcome is rarely.Outcome.VIOLATED else RED
        axes.errorbar(float(p[k]), at, ([at - low], [high - at]), fmt="o", ms=3.5, lw=1, capsize=2, color=colour)
        axes.annotate(
            model.vocabulary[k].replace("$", r"\$"), (float(p[k]), 0.62 + 0.04 * (place % 4)), ha="center",
            fontsize=8, color=INK,
        )  # fmt: skip
    axes.set(xscale="log", xlabel="p of a word, from all 32,768 beginnings", ylabel="estimate / exact", ylim=(0.6, 1.4))
    return figure


def _proved_beside_estimated(axes: Axes, problems: list[tuple[float, rarely.Problem]]) -> None:
    ten, rows = math.log(10), []
    for eps, problem in problems:
        e = rarely.estimate(problem, rarely.Auto(proof_seconds=0))
        *_, bounds = probability_bounds(problem, 20.0, target=-e.log_prob if e.log_prob < 0 else None)
        plain = rarely.estimate(problem, rarely.MonteCarlo(1_000_000))
        rows.append((eps, e, bounds, plain))
        print(eps, e, bounds, plain.log_prob)  # noqa: T201
    x = [eps for eps, *_ in rows]
    axes.plot(x, [b.log_upper / ten for _, _, b, _ in rows], color=BLUE, lw=1.4, label="proved upper bound")
    axes.plot(x, [b.log_lower / ten for _, _, b, _ in rows], color=BLUE, lw=1.2, ls="--", label="proved lower bound")
    found = [(eps, e) for eps, e, _, _ in rows if e.outcome is rarely.Outcome.VIOLATED]
    y, low, high = (
        np.array([value(e) / ten for _, e in found])
        for value in (lambda e: e.log_prob, lambda e: e.interval.low, lambda e: e.interval.high)
    )
    axes.errorbar([eps for eps, _ in found], y, (y - low, high - y), fmt="o", color=INK, ms=3.5, lw=1, label="estimate")
    seen = [(eps, plain.log_prob / ten) for eps, _, _, plain in rows if plain.log_prob > -math.inf]
    axes.plot(*zip(*seen, strict=True), "s", mfc="none", color=RED, ms=7, ls="none", label="a million plain draws")


def main() -> None:
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "rarely", "font.size": 9, "axes.spines.top": False})
    matplotlib.rcParams["axes.spines.right"] = False
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    also_png = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for make in (radii, levels, lines, subspace, words, *((proved,) if "RARELY_DATA" in os.environ else ())):
        figure = make()
        figure.savefig(FOLDER / f"{make.__name__}.svg", metadata={"Date": None})
        if also_png is not None:  # to look at
            figure.savefig(also_png / f"{make.__name__}.png", dpi=110)
        plt.close(figure)


if __name__ == "__main__":
    main()
