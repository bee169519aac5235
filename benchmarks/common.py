"""What the benchmarks share: data, problems, Markdown tables, the machine in words."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import platform
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import models
import rarely
from rarely import Box, LinearConstraint, Misclassification, Problem
from rarely.io.formats.rlv import parse_rlv


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    result = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    result.add_argument("--device", default="cpu", help="cpu or cuda")
    result.add_argument("--threads", type=int, help="threads of torch; its own choice unless given")
    result.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    result.add_argument("--data", type=Path, default=Path(os.environ.get("RARELY_DATA", "data")))
    result.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return result


def options(result: argparse.ArgumentParser) -> argparse.Namespace:
    args = result.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"{machine(args.device)}\n")
    return args


def machine(device: str) -> str:
    load = f"load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else "load unknown"
    parts = [f"{os.cpu_count()} CPU cores", f"{torch.get_num_threads()} threads", load]
    if device.startswith("cuda"):
        parts.append(torch.cuda.get_device_name())
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, rarely {rarely.__version__}"
    return f"{', '.join(parts)}; {versions}; {datetime.now(UTC):%Y-%m-%d}"


def sync(device: str | torch.device) -> None:
    if str(device).startswith("cuda"):
        torch.cuda.synchronize()


def timed(function: Callable[[], Any], device: str | torch.device = "cpu") -> float:
    sync(device)
    start = time.perf_counter()
    function()
    sync(device)
    return time.perf_counter() - start


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(table_row(row) for row in rows)])


def table_row(row: Sequence[object]) -> str:
    return "| " + " | ".join(_cell(value) for value in row) + " |"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def write_json(path: Path | None, device: str, results: Any) -> None:
    if path is not None:
        path.write_text(json.dumps({"machine": machine(device), "results": results}, indent=1, default=float) + "\n")


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Median of a / b over turns taken in one run: a busy machine slows both sides of a turn."""
    return statistics.median(a / b for a, b in pairs)


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of log y on log x by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# Problems -----------------------------------------------------------------------------------------------------------


@lru_cache
def _collision_texts(data: Path) -> dict[str, str]:
    with tarfile.open(data / "collision_detection" / "collisionDetection.tar.gz") as tar:
        members = [member for member in tar if member.name.endswith(".rlv")]
        return {Path(m.name).name: tar.extractfile(m).read().decode() for m in members}  # type: ignore[union-attr]


def collision_problems(data: Path, count: int | None = None, verdict: str = "") -> list[Problem]:
    """CollisionDetection properties in the order of the manifest; verdict "SAT" or "UNSAT" for one kind only."""
    texts = _collision_texts(data)
    with (data / "collision_detection" / "manifest.csv").open() as lines:
        names = [row["file"] for row in csv.DictReader(lines) if verdict in ("", row["verdict"])]
    found = []
    for name in names[:count]:
        read = parse_rlv(texts[name], name)
        (case,) = read.specification.cases
        violated = LinearConstraint.any_of([(outputs.A, outputs.b) for outputs in case.outputs])
        found.append(Problem(read.network, violated, Box(case.low, case.high), name=name))
    return found


def collision_references(path: Path) -> dict[str, float]:
    with path.open() as lines:
        return {row["file"]: float(row["log_prob"]) for row in csv.DictReader(lines)}


def onnx_network(path: Path, otherwise: Sequence[int]) -> nn.Module:
    """An ONNX network; a random one of the same widths where onnx or the file is missing (the speed is the same)."""
    try:
        from rarely.io.onnx.importer import import_onnx

        network: nn.Module = import_onnx(path)
    except (ImportError, FileNotFoundError) as error:
        print(f"*{path.name}: {error}; a random network of the same widths instead*\n")
        network = models.perceptron(otherwise)
    return network.eval().requires_grad_(False)


def acas_problem(data: Path) -> Problem:
    path = data / "acasxu" / "onnx" / "ACASXU_run2a_1_1_batch_2000.onnx"
    network = onnx_network(path, [5, *[50] * 6, 5])
    shape = tuple(getattr(network, "input_shape", (5,)))
    low = torch.tensor([0.6, -0.5, -0.5, 0.45, -0.5]).reshape(shape)
    high = torch.tensor([0.679857769, 0.5, 0.5, 0.5, -0.45]).reshape(shape)
    # Property 1: the first output is at least 3.99, rare in this box.
    return Problem(network, LinearConstraint([[-1.0, 0, 0, 0, 0]], [-3.991125645861615]), Box(low, high), name="acasxu")


def mnist_image(data: Path, index: int) -> tuple[torch.Tensor, int]:
    folder = data / "mnist"
    try:
        with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)[index]
        with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
            label = int(np.frombuffer(file.read(), np.uint8, offset=8)[index])
        return torch.from_numpy(pixels.copy()).float() / 255, label
    except FileNotFoundError:
        return torch.rand(784, generator=torch.Generator().manual_seed(0)), 0


def mnist_network(data: Path) -> nn.Module:
    return mnistfc_network(data, "256x2")


def mnistfc_network(data: Path, widths: str) -> nn.Module:
    """One of the networks of the VNN-COMP benchmark: 256x2, 256x4 or 256x6."""
    archive = data / "mnistfc" / "mnistfc.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mnist-net_{widths}.onnx"
        if archive.exists():
            with tarfile.open(archive) as tar:
                source = tar.extractfile(f"mnistfc/{path.name}")
                assert source is not None
                path.write_bytes(source.read())
        return onnx_network(path, [784, *[256] * int(widths.split("x")[1]), 10])


def mnist_problem(data: Path, index: int = 3, eps: float = 0.0956) -> Problem:
    network = mnist_network(data)
    image, _ = mnist_image(data, index)
    image = image.reshape(tuple(getattr(network, "input_shape", (784,))))
    return Problem(network, Misclassification(), _around(image, eps), name="mnist")


def cifar_image(data: Path, index: int = 0) -> torch.Tensor:
    path = data / "cifar10" / "test_batch.webp"
    try:
        from PIL import Image

        mosaic = np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"))
    except (ImportError, FileNotFoundError):
        return torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    row, column = divmod(index, 100)
    tile = mosaic[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
    return torch.from_numpy(tile.copy()).permute(2, 0, 1).float() / 255


def cifar_problem(data: Path, network: nn.Module, eps: float = 8 / 255, name: str = "") -> Problem:
    image = cifar_image(data)
    return Problem(network, Misclassification(), _around(image, eps), name=name)


def _around(image: torch.Tensor, eps: float) -> Box:
    return Box((image - eps).clamp(0, 1), (image + eps).clamp(0, 1))
