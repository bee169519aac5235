"""MNIST, CIFAR-10 and CIFAR-100 as uint8 tensors, from the formats in which they are handed around."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarely import RarelyError

TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


@dataclass(frozen=True)
class Images:
    pixels: Tensor  # (n, channels, height, width) uint8
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor | slice) -> Images:
        return Images(self.pixels[index], self.labels[index])

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))

    def inputs(self, index: int) -> Tensor:
        """One image as the networks take it, pixels in [0, 1]."""
        return self.pixels[index].float() / 255


def load(name: str, folder: Path, split: str) -> Images:
    """`split` is "train" or "test". CIFAR-10 has as many training images as there are batches in the folder."""
    if name == "mnist":
        return _mnist(folder / "mnist", split)
    if name == "cifar10":
        return _cifar10(folder, split)
    if name == "cifar100":
        return _cifar100(folder, split)
    raise RarelyError(f"there is no data set {name!r} here; use mnist, cifar10 or cifar100")


def _mnist(folder: Path, split: str) -> Images:
    stem = folder / ("train" if split == "train" else "t10k")
    _require(Path(f"{stem}-images-idx3-ubyte.gz"), "the four original MNIST files")
    with gzip.open(f"{stem}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(f"{stem}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return _images(pixels, labels)


def _cifar10(folder: Path, split: str) -> Images:
    names = ("test_batch",) if split == "test" else TRAIN_BATCHES
    binary, python = _home(folder, "cifar10", "cifar-10-batches-bin"), _home(folder, "cifar10", "cifar-10-batches-py")
    if binary is not None:
        return _join([_binary(binary / f"{name}.bin", label_bytes=1) for name in names])
    if python is not None:
        return _join([_pickled(python / name, b"labels") for name in names])
    mosaics = [folder / "cifar10" / f"{name}.webp" for name in names]
    there = [path for path in mosaics if path.is_file()]
    _require(there[0] if there else mosaics[0], "CIFAR-10, as cifar-10-batches-py, cifar-10-batches-bin or mosaics")
    labels = np.load(folder / "cifar10" / "labels.npz")[split]
    return _join(
        [_mosaic(path, labels[10_000 * i : 10_000 * (i + 1)]) for i, path in enumerate(mosaics) if path in there]
    )


def _cifar100(folder: Path, split: str) -> Images:
    binary, python = _home(folder, "cifar100", "cifar-100-binary"), _home(folder, "cifar100", "cifar-100-python")
    if binary is not None:
        return _binary(binary / f"{split}.bin", label_bytes=2)
    if python is not None:
        return _pickled(python / split, b"fine_labels")
    raise RarelyError(
        f"{folder} holds neither cifar-100-python nor cifar-100-binary: unpack cifar-100-python.tar.gz or "
        "cifar-100-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there"
    )


def _home(folder: Path, group: str, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / group / name) if path.is_dir()), None)


def _mosaic(path: Path, labels: np.ndarray[Any, Any]) -> Images:
    """100 x 100 tiles of 32 x 32 pixels, lossless."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3)
    return _images(pixels.reshape(10_000, 3, 32, 32), labels)


def _binary(path: Path, label_bytes: int) -> Images:
    """Rows of label bytes (CIFAR-100: coarse, then fine) and 3072 pixels."""
    _require(path, "the binary version of the data set")
    rows = np.fromfile(path, np.uint8)
    if rows.size % (label_bytes + 3072):
        raise RarelyError(f"{path} is cut off: its size is no multiple of {label_bytes + 3072} bytes; fetch it again")
    rows = rows.reshape(-1, label_bytes + 3072)
    return _images(rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1])


class _ArraysOnly(pickle.Unpickler):
    """Opens the pickles of the CIFAR page and nothing that could run code."""

    ALLOWED = ("_reconstruct", "ndarray", "dtype", "encode")

    def find_class(self, module: str, name: str) -> Any:
        if name in self.ALLOWED and module.split(".")[0] in ("numpy", "_codecs"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise RarelyError(f"this file is no CIFAR batch: its pickle asks for {module}.{name}; fetch the original")


def _pickled(path: Path, key: bytes) -> Images:
    _require(path, "the python version of the data set")
    with path.open("rb") as file:
        content = _ArraysOnly(file, encoding="bytes").load()
    return _images(np.asarray(content[b"data"]).reshape(-1, 3, 32, 32), np.asarray(content[key]))


def _images(pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Images:
    return Images(torch.tensor(pixels), torch.tensor(labels.astype(np.int64)))


def _join(parts: list[Images]) -> Images:
    return Images(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))


def _require(path: Path, what: str) -> None:
    if not path.is_file():
        raise RarelyError(f"{path} is missing: --data (or RARELY_DATA) must name a folder that holds {what}")
