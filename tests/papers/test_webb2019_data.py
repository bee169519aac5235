"""CIFAR files in the formats of the original page, written here on a small scale, and what must be refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from papers.webb2019 import densenet
from papers.webb2019.data import TRAIN_BATCHES, Images, load
from rarely import RarelyError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
FINE, COARSE = [5, 99, 0, 42, 7, 13], [1, 19, 0, 4, 2, 3]


def same(images: Images, labels: list[int], pixels: np.ndarray = PIXELS) -> bool:
    expected = torch.tensor(pixels.reshape(-1, 3, 32, 32))
    return torch.equal(images.pixels, expected) and images.labels.tolist() == labels


def python_files(folder: Path, protocol: int) -> None:
    home = folder / "cifar-100-python"
    home.mkdir()
    content = {b"data": PIXELS, b"fine_labels": FINE, b"coarse_labels": COARSE, b"filenames": [b"a.png"] * 6}
    for split in ("train", "test"):
        (home / split).write_bytes(pickle.dumps(content, protocol))


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar100_from_the_python_version(tmp_path: Path, protocol: int) -> None:
    python_files(tmp_path, protocol)
    assert same(load("cifar100", tmp_path, "train"), FINE)
    assert same(load("cifar100", tmp_path, "test"), FINE)


def test_the_dense_net_trains_on_cifar100_by_a_flag(tmp_path: Path) -> None:
    python_files(tmp_path, 2)
    where = ["--data", str(tmp_path), "--out", str(tmp_path), "--device", "cpu"]
    densenet.main(["--quick", "--train-only", "--dataset", "cifar100", *where])
    assert (tmp_path / "densenet-cifar100.safetensors").is_file()
    header, row = (tmp_path / "training.csv").read_text(encoding="utf-8").splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["images"] == "6"


def test_cifar100_from_the_binary_version_takes_the_fine_label(tmp_path: Path) -> None:
    home = tmp_path / "cifar100" / "cifar-100-binary"
    home.mkdir(parents=True)
    rows = np.concatenate([np.array([COARSE, FINE], np.uint8).T, PIXELS], 1)
    rows.tofile(home / "train.bin")
    assert same(load("cifar100", tmp_path, "train"), FINE)
    (home / "test.bin").write_bytes(rows.tobytes()[:-1])
    with pytest.raises(RarelyError, match="cut off"):
        load("cifar100", tmp_path, "test")


def test_cifar10_from_both_original_versions(tmp_path: Path) -> None:
    labels = [3, 9, 0, 1, 2, 4]
    binary, python = tmp_path / "b" / "cifar-10-batches-bin", tmp_path / "p" / "cifar-10-batches-py"
    binary.mkdir(parents=True)
    python.mkdir(parents=True)
    for name in (*TRAIN_BATCHES, "test_batch"):
        np.concatenate([np.array([labels], np.uint8).T, PIXELS], 1).tofile(binary / f"{name}.bin")
        (python / name).write_bytes(pickle.dumps({b"data": PIXELS, b"labels": labels}, 2))
    for folder in (tmp_path / "b", tmp_path / "p"):
        assert same(load("cifar10", folder, "test"), labels)
        assert same(load("cifar10", folder, "train"), labels * 5, np.tile(PIXELS, (5, 1)))


class Intruder:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "cifar-100-python"
    home.mkdir()
    (home / "train").write_bytes(pickle.dumps({b"data": Intruder()}))
    with pytest.raises(RarelyError, match="no CIFAR batch"):
        load("cifar100", tmp_path, "train")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RarelyError, match=str(tmp_path)):
        load(name, tmp_path, "train")


def test_the_stored_mosaics_are_the_images(data_folder: Path) -> None:
    """The label of test image 0 is 3 (a cat), and the means of the channels are the published ones."""
    test = load("cifar10", data_folder, "test")
    assert test.pixels.shape == (10_000, 3, 32, 32)
    assert test.labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert (test.pixels.float() / 255).mean((0, 2, 3)).tolist() == pytest.approx([0.494, 0.485, 0.450], abs=0.001)
