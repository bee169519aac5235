"""Section 6.4, Fig. 3 and Fig. 5: how log p changes while a network is trained to be provably robust.

The MNIST network of Wong and Kolter, trained in the usual way, then with the loss of their convex outer bound (the full
bound, see `outer_bound.py`) for eps from 0.01 to 0.1 over the first half of the epochs. At chosen epochs: log p for eps
0.1, 0.2 and 0.3 on 50 test images, capped at exp(-250), beside the certificates that the bound gives for the same
images and radii. The event is that the network leaves the answer that it gives for the image itself, right or wrong, as
in the paper.

The sampler is `Splitting(keep="all")` with pCN on several islands in place of the paper's random walk, whose N x M
steps for each of up to 109 levels would take days.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import rarely
from papers.webb2019 import common, drawing, nets, robust_figures
from papers.webb2019.data import Images, load
from papers.webb2019.outer_bound import margins, robust_loss
from papers.webb2019.train import Epoch, Recipe, accuracy, fit, seeded

RADII = (0.1, 0.2, 0.3)
FLOOR = robust_figures.FLOOR
COLUMNS = (
    "epoch", "eps", "image", "right", "outcome", "log_prob", "std", "evaluations", "margin", "certified", "seconds",
)  # fmt: skip
TRAINING = ("phase", "epoch", "eps", "images", "batch", "loss", "test_accuracy", "seconds")


@dataclass(frozen=True)
class Plan:
    standard: int = 100  # epochs
    robust: int = 100  # epochs
    batch: int = 256
    train: int = 60_000  # images of standard training
    hardened: int = 60_000  # images of robust training
    test: int = 10_000  # images for the accuracy
    images: int = 50  # test images with a probability
    every: int = 5  # epochs from one with probabilities to the next
    particles: int = 500
    islands: int = 4


TINY = Plan(
    standard=1, robust=1, batch=32, train=4000, hardened=96, test=200, images=3, every=1, particles=100, islands=2
)


def options(parser: argparse.ArgumentParser) -> None:
    for name, text in (
        ("standard", "epochs of standard training; the paper has 100"),
        ("robust", "epochs of robust training; the paper has 100"),
        ("batch", "images in a step of training"),
        ("every", "epochs from one whose probabilities are estimated to the next (5)"),
        ("particles", "of each island"),
        ("islands", "independent populations of a problem"),
    ):
        parser.add_argument(f"--{name}", type=int, help=text)
    parser.add_argument("--train-only", action="store_true", help="stop when the snapshots are written")


def radius_at(progress: float) -> float:
    """The radius of the training loss: 0.01 to 0.1 over the first half, then constant."""
    return 0.01 + 0.09 * min(1.0, 2 * progress)


# Training ------------------------------------------------------------------------------------------------------------


def train(context: common.Context, plan: Plan, device: torch.device, snapshots: Path) -> None:
    """Write the network after standard training (epoch 0) and after each epoch of robust training into one file."""
    everything = load("mnist", context.data, "train").to(device)
    test = load("mnist", context.data, "test").take(slice(plan.test)).to(device)
    network = seeded(nets.wong_kolter).to(device)
    rows: list[common.Row] = []
    states: list[dict[str, Tensor]] = []

    def fit_phase(phase: str, epochs: int) -> None:
        robust = phase == "robust"
        images = everything.take(slice(plan.hardened if robust else plan.train))
        recipe = Recipe(epochs, rate=1e-3 if robust else 2e-3, batch=plan.batch, optimizer="adam")

        def after(epoch: Epoch) -> None:
            eps = radius_at(epoch.number / epochs) if robust else 0.0
            right = accuracy(network, test)
            rows.append({
                "phase": phase, "epoch": epoch.number, "eps": eps, "images": len(images), "batch": plan.batch,
                "loss": epoch.loss, "test_accuracy": right, "seconds": epoch.seconds,
            })  # fmt: skip
            if robust or epoch.number == epochs:
                states.append({k: v.half().cpu() for k, v in network.state_dict().items()})
            display.done(f"loss {epoch.loss:.3f}, test accuracy {right:.4f}, {epoch.seconds:.1f} s")

        with common.progress(f"{phase} training", epochs) as display:
            if robust:
                fit(network, images, recipe, lambda net, x, y, at: robust_loss(net, x, y, radius_at(at)), after, seed=1)
            else:
                fit(network, images, recipe, after_epoch=after)

    fit_phase("standard", plan.standard)
    fit_phase("robust", plan.robust)
    common.Table(context.out / "training.csv", TRAINING, ("phase", "epoch")).add(rows)
    write_snapshots(snapshots, states)


def write_snapshots(path: Path, states: Sequence[dict[str, Tensor]]) -> None:
    from safetensors.torch import save_file

    partial = path.with_suffix(".partial")
    save_file({name: torch.stack([state[name] for state in states]) for name in states[0]}, partial)
    partial.replace(path)


def read_snapshots(path: Path) -> list[nn.Module]:
    """The networks, one for each epoch from 0."""
    from safetensors.torch import load_file

    stacked = load_file(path)
    networks: list[nn.Module] = []
    for epoch in range(len(next(iter(stacked.values())))):
        network = nets.wong_kolter()
        network.load_state_dict({name: value[epoch] for name, value in stacked.items()})
        networks.append(network.eval().requires_grad_(False))
    return networks


# Probabilities -------------------------------------------------------------------------------------------------------


def spread(last: int, every: int) -> list[int]:
    """Every so many epochs from 0 to `last`: the ends, then halves, quarters, ... so that a cut-off leaves a grid."""
    count = last // every
    order, parts = [0, last], 2
    while len(order) <= count:
        middles = [every * round(count * k / parts) for k in range(1, parts)]
        order += [epoch for epoch in dict.fromkeys(middles) if epoch not in order]
        parts *= 2
    return list(dict.fromkeys(order))


def look(
    plan: Plan, epoch: int, network: nn.Module, test: Images, execution: rarely.Execution, display: common.Display
) -> list[common.Row]:
    """log p and certificate of every image and radius, for the network of one epoch."""
    device = execution.resolve()
    call = nets.on_device(network, device)
    pairs = [(image, eps) for image in range(plan.images) for eps in RADII]
    inputs = torch.stack([test.inputs(image) for image, _ in pairs])
    answers = call(inputs).argmax(1)
    problems = [
        rarely.Problem(call, rarely.Misclassification(int(answer)), rarely.LpBall(x, eps, clip=(0, 1)))
        for x, answer, (_, eps) in zip(inputs, answers, pairs, strict=True)
    ]
    splitting = rarely.Splitting(plan.particles, keep="all", islands=plan.islands, log_p_min=FLOOR)
    found = rarely.estimate(problems, splitting, seed=epoch, execution=execution, progress=display.note)
    worst = least_margins(network, inputs, torch.tensor([eps for _, eps in pairs]), answers, device)
    return [
        {
            "epoch": epoch, "eps": eps, "image": image, "right": int(int(test.labels[image]) == int(answer)),
            "outcome": e.outcome.value, "log_prob": e.log_prob, "std": e.log_prob_std, "evaluations": e.evaluations,
            "margin": margin, "certified": int(margin > 0), "seconds": e.seconds,
        }
        for (image, eps), answer, e, margin in zip(pairs, answers, found, worst.tolist(), strict=True)
    ]  # fmt: skip


@torch.no_grad()
def least_margins(network: nn.Module, x: Tensor, eps: Tensor, label: Tensor, device: torch.device) -> Tensor:
    """Lower bounds (n,) of the margin of `label` over the pixels within eps of x, in double precision."""
    exact = nets.wong_kolter().double().to(device)
    exact.load_state_dict(network.state_dict())
    reach = eps.reshape(-1, 1, 1, 1).double()
    low, high = (x.double() - reach).clamp(0, 1), (x.double() + reach).clamp(0, 1)
    worst = []
    for part in torch.arange(len(x)).split(30):
        bounds = margins(exact, low[part].to(device), high[part].to(device), label[part].to(device)).cpu()
        bounds[torch.arange(len(part)), label[part]] = torch.inf
        worst.append(bounds.amin(1))
    return torch.cat(worst)


def main(argv: Sequence[str] | None = None) -> None:
    context = common.start("robust", __doc__, argv, options)
    given = {name: getattr(context.args, name) for name in vars(TINY) if getattr(context.args, name, None) is not None}
    plan = replace(TINY if context.quick else Plan(), **given)
    if not context.args.figures_only:
        run(context, plan)
    if not context.args.train_only:
        drawing.draw(context, lambda context: robust_figures.figures(context.out / "robust.csv", context.out))


def run(context: common.Context, plan: Plan) -> None:
    execution = rarely.Execution(device=context.device)
    snapshots = context.out / "snapshots.safetensors"
    started = time.monotonic()
    if not snapshots.is_file():
        train(context, plan, execution.resolve(), snapshots)
    networks = read_snapshots(snapshots)
    if context.args.train_only:
        return
    table = common.Table(context.out / "robust.csv", COLUMNS, ("epoch",))
    test = load("mnist", context.data, "test")
    todo = [e for e in context.mine(spread(len(networks) - 1, plan.every)) if not table.has(epoch=e)]
    with common.progress("probabilities", len(todo)) as display:
        for epoch in todo:
            if context.late:
                return
            table.add(look(plan, epoch, networks[epoch], test, execution, display))
            display.done(f"epoch {epoch}, {time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
