"""Images and labels from .npy, .npz or a folder of pictures, in the shape that a network takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rarely.core.errors import FormatError, InputError

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
_INPUT_NAMES = ("inputs", "images", "x", "x_test", "X")
_LABEL_NAMES = ("labels", "y", "y_test", "Y")


@dataclass(frozen=True)
class Images:
    """Network inputs with the names of their sources; integers 0..255 have become 0..1."""

    inputs: NDArray[np.float32]  # (n, *event)
    names: tuple[str, ...]
    labels: NDArray[np.int64] | None

    def check_range(self, path: Path, clip: tuple[float, float], said: str) -> None:
        """An InputError unless all pixels lie in `clip`; `said` is how the user wrote it."""
        low, high = self.inputs.min(), self.inputs.max()
        if low < clip[0] or high > clip[1]:
            raise InputError(f"{path}: pixels lie in [{low:g}, {high:g}], outside {said}")


def load_images(path: Path, shape: tuple[int, ...] | None, labels: Path | None) -> Images:
    """`shape` is that of one network input, None to take the images as they are."""
    if path.is_dir():
        images = _from_folder(path, shape)
    elif path.suffix.lower() in (".npy", ".npz"):
        images = _from_arrays(path, shape)
    else:
        raise InputError(f"{path} is no .npy file, .npz file or folder of pictures")
    if labels is not None:
        images = replace(images, labels=_check_labels(_read(labels, _LABEL_NAMES), labels))
    if images.labels is not None and len(images.labels) != len(images.inputs):
        raise InputError(f"{labels or path} has {len(images.labels)} labels for {len(images.inputs)} images")
    if not np.isfinite(images.inputs).all():
        raise InputError(f"{path} contains NaN or inf")
    return images


def _from_arrays(path: Path, shape: tuple[int, ...] | None) -> Images:
    array = _read(path, _INPUT_NAMES)
    if array.ndim < 2 or len(array) == 0:
        raise FormatError(path, f"an array (images, ...) is expected, not one of shape {array.shape}")
    found = None
    if path.suffix.lower() == ".npz":
        with np.load(path) as stored:
            key = next((name for name in _LABEL_NAMES if name in stored), None)
            found = None if key is None else _check_labels(stored[key], path)
    names = tuple(str(i) for i in range(len(array)))
    return Images(_fit(_unit(array, path), shape, path), names, found)


def _read(path: Path, keys: tuple[str, ...]) -> NDArray[Any]:
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            return np.asarray(stored)
        with stored:
            key = next((name for name in keys if name in stored), None)
            if key is None and len(stored.files) == 1:
                key = stored.files[0]
            if key is None:
                raise FormatError(path, f"holds {', '.join(stored.files)}; none of them is called {' or '.join(keys)}")
            return np.asarray(stored[key])
    except (OSError, ValueError, EOFError) as error:
        raise FormatError(path, f"not a numpy file that can be read ({error})") from error


def _check_labels(array: NDArray[Any], path: Path) -> NDArray[np.int64]:
    flat = array.ravel()
    if not np.issubdtype(flat.dtype, np.integer) or (flat < 0).any():
        raise FormatError(path, "labels must be whole numbers of at least 0")
    return flat.astype(np.int64)


def _from_folder(folder: Path, shape: tuple[int, ...] | None) -> Images:
    from PIL import Image, UnidentifiedImageError

    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _PICTURES)
    if not files:
        raise InputError(f"the folder {folder} holds no picture ({', '.join(_PICTURES)})")
    rows = []
    for file in files:
        try:
            with Image.open(file) as picture:
                gray = _wants_gray(shape, picture.size)
                pixels = np.asarray(picture.convert("L" if gray else "RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise FormatError(file, f"not a picture that can be read ({error})") from error
        channels_last = shape is not None and len(shape) == 3 and shape[0] not in (1, 3)
        stacked = pixels[..., None] if gray else pixels
        image = stacked if channels_last else np.moveaxis(stacked, -1, 0)
        rows.append(_fit(_unit(image[None], file), shape, file)[0])
    if len({row.shape for row in rows}) > 1:
        raise InputError(f"the pictures in {folder} differ in size; a network takes one size")
    return Images(np.stack(rows), tuple(file.name for file in files), None)


def _wants_gray(shape: tuple[int, ...] | None, size: tuple[int, int]) -> bool:
    return shape is not None and math.prod(shape) == size[0] * size[1]


def _unit(array: NDArray[Any], path: Path) -> NDArray[np.float32]:
    if array.dtype == np.uint8:
        return array.astype(np.float32) / np.float32(255)
    if not np.issubdtype(array.dtype, np.floating):
        raise FormatError(path, f"images of type {array.dtype} are not understood; use uint8 (0 to 255) or floats")
    return array.astype(np.float32)


def _fit(array: NDArray[np.float32], shape: tuple[int, ...] | None, path: Path) -> NDArray[np.float32]:
    if shape is None or array.shape[1:] == shape:
        return array
    squeezed = [size for size in array.shape[1:] if size != 1] == [size for size in shape if size != 1]
    if squeezed or (math.prod(array.shape[1:]) == math.prod(shape) and min(array.ndim - 1, len(shape)) == 1):
        return array.reshape(len(array), *shape)
    raise InputError(f"{path}: images of shape {array.shape[1:]} do not fit the network, which takes {shape}")
