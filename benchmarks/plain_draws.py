"""Reference probabilities of real networks by plain draws, a billion each: for a GPU.

    python benchmarks/plain_draws.py --data $RARELY_DATA --draws 1e9

Prints what `trust_families.real_networks` holds: network, threshold or radius, violations and draws. Thresholds are
chosen from ten million draws, so that three in a million violate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from common import machine, mnist_image, mnistfc_network, onnx_network, parser
from rarely import Box, LinearConstraint, Misclassification, MonteCarlo, Problem, estimate
from rarely.core.evidence import pooled

ACAS = ("1_3", "2_7", "4_5", "5_9")
MNIST = ((1, "256x4"), (5, "256x4"), (7, "256x6"))
_FIRST = 10_000_000


def acas_outputs(data: Path, name: str, threshold: float) -> Problem:
    """The network advises "clear of conflict" this strongly somewhere in a box near an intruder ahead."""
    network = onnx_network(data / "acasxu" / "onnx" / f"ACASXU_run2a_{name}_batch_2000.onnx", [5, *[50] * 6, 5])
    shape = tuple(getattr(network, "input_shape", (5,)))
    low, high = torch.tensor([-0.3, -0.1, 0.3, 0.2, 0.2]), torch.tensor([0.1, 0.1, 0.5, 0.5, 0.5])
    box = Box(low.reshape(shape), high.reshape(shape))
    return Problem(network, LinearConstraint([[-1.0, 0, 0, 0, 0]], [-threshold]), box, name=f"acasxu {name}")


def mnist_noise(data: Path, index: int, widths: str, eps: float) -> Problem:
    network = mnistfc_network(data, widths)
    image, _ = mnist_image(data, index)
    image = image.reshape(tuple(getattr(network, "input_shape", (784,))))
    box = Box((image - eps).clamp(0, 1), (image + eps).clamp(0, 1))
    return Problem(network, Misclassification(), box, name=f"mnist {widths} image {index}")


def draw(problem: Problem, draws: int) -> int:
    """Violations among plain draws."""
    return pooled(estimate(problem, MonteCarlo(draws, chunk=1_000_000), device="auto").evidence).hits


def nearest(make: Callable[[float], Problem], low: float, high: float) -> float:
    """Where about 30 of the first draws violate, by halving."""
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if draw(make(middle), _FIRST) < 30 else (low, middle)
    return round(0.5 * (low + high), 4)


def main() -> None:
    wanted = parser(__doc__)
    wanted.add_argument("--draws", type=float, default=1e9)
    args = wanted.parse_args()
    print(machine("cuda" if torch.cuda.is_available() else "cpu"), flush=True)
    for name in ACAS:
        threshold = nearest(lambda t, n=name: acas_outputs(args.data, n, t), 3.0, -1.0)  # type: ignore[misc]
        report(f'"{name}": ({threshold}, %d, %d)', acas_outputs(args.data, name, threshold), args.draws)
    for index, widths in MNIST:
        eps = nearest(lambda e, i=index, w=widths: mnist_noise(args.data, i, w, e), 0.01, 0.2)  # type: ignore[misc]
        report(f'({index}, "{widths}"): ({eps}, %d, %d)', mnist_noise(args.data, index, widths, eps), args.draws)


def report(line: str, problem: Problem, draws: float) -> None:
    begun = time.monotonic()
    hits = draw(problem, int(draws))
    print(line % (hits, draws), f" # {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
