"""What an imported ONNX network costs: mnistfc 256x2 against the same network written by hand in torch.

    RARELY_DATA=... python benchmarks/onnx_import.py

Prints a Markdown table. The two networks take turns within one run, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tarfile
import time
from pathlib import Path

import torch
from torch import nn

from rarely.io.onnx.importer import import_onnx


def by_hand(imported: nn.Module) -> nn.Module:
    """The network as a person would write it, with the same weights."""
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    layers = [layer for layer in imported.modules() if isinstance(layer, nn.Linear)]
    for target, source in zip((m for m in net if isinstance(m, nn.Linear)), layers, strict=True):
        target.load_state_dict(source.state_dict())
    return net.requires_grad_(False)


def seconds(network: nn.Module, x: torch.Tensor, gradient: bool) -> float:
    """One forward pass, or one forward and backward pass to the input."""
    x = x.clone().requires_grad_(gradient)
    start = time.perf_counter()
    y = network(x)
    if gradient:
        y.sum().backward()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RARELY_DATA"), help="default: $RARELY_DATA")
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.data is None:
        parser.error("set RARELY_DATA or pass --data")
    torch.set_num_threads(options.threads)
    with tarfile.open(options.data / "mnistfc" / "mnistfc.tar.xz") as archive:
        member = archive.extractfile("mnistfc/mnist-net_256x2.onnx")
        if member is None:
            parser.error("the archive holds no mnist-net_256x2.onnx")
        imported = import_onnx(member.read())
    hand = by_hand(imported)
    x = torch.rand(options.batch, 784, 1)
    gap = float((imported(x) - hand(x)).abs().max())
    print(f"mnistfc 256x2, batch {options.batch}, {options.threads} thread(s), largest difference {gap:.1e}\n")
    print("| pass | imported, ms | by hand, ms | ratio |")
    print("|---|---|---|---|")
    for label, gradient in (("forward", False), ("forward and backward", True)):
        times: dict[str, list[float]] = {"imported": [], "hand": []}
        for _ in range(options.repeats + 2):
            times["imported"].append(seconds(imported, x, gradient))
            times["hand"].append(seconds(hand, x, gradient))
        ours, theirs = (1e3 * statistics.median(times[name][2:]) for name in ("imported", "hand"))
        print(f"| {label} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
