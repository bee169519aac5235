"""Images and labels from .npy, .npz or a folder of pictures, in the shape that a network takes.

A data set stays on the disk: rows are read, and become float32, when somebody asks for them.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rarely.core.errors import FormatError, InputError
from rarely.core.limits import MEMORY, UNPACKED
from rarely.io.files import is_file, is_folder, is_zip, one_line, reading, refuse

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
_INPUT_NAMES = ("inputs", "images", "x", "x_test", "X")
_LABEL_NAMES = ("labels", "y", "y_test", "Y")
_BLOCK = 8 << 20  # bytes of float32 that are looked at together
_PIXEL = 30  # bytes that a pixel takes until it is three floats
_EXPANSION = 50  # of a compressed array; those of zeros shrink by 1000


class Rows(Protocol):
    """Raw images, by their number."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Images:
    """Network inputs with the names of their sources; integers 0..255 become 0..1."""

    stored: Rows  # (n, *any)
    names: Sequence[str]
    labels: NDArray[np.int64] | None
    shape: tuple[int, ...] | None = None  # of one network input, None for that of the file
    source: Path = field(default=Path("<images>"))

    def __len__(self) -> int:
        return len(self.stored)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Those from `start` until before `stop`: (n, *event)."""
        with reading(self.source):
            raw = self.stored[start:stop]
        return _fit(_unit(raw, self.source), self.shape, self.source)

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.rows(row, row + 1)[0]
        return found

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All of them, some at a time."""
        step = max(1, _BLOCK // max(self[0].nbytes, 1))
        for start in range(0, len(self), step):
            yield self.rows(start, min(start + step, len(self)))

    def check(self, clip: tuple[float, float] | None = None, said: str = "") -> None:
        """An InputError unless all pixels are numbers and lie in `clip`; `said` is how the user wrote it."""
        low, high = math.inf, -math.inf
        for block in self.blocks():
            if not np.isfinite(block).all():
                raise InputError(f"{self.source} contains NaN or inf")
            low, high = min(low, float(block.min())), max(high, float(block.max()))
        if clip is not None and (low < clip[0] or high > clip[1]):
            raise InputError(f"{self.source}: pixels lie in [{low:g}, {high:g}], outside {said}")

    def check_labels(self, outputs: int) -> None:
        """An InputError unless every label is one of a network with so many outputs."""
        if self.labels is None or int(self.labels.max()) < outputs:
            return
        first = int(np.argmax(self.labels >= outputs))
        one_more = int(self.labels.min()) == 1 and int(self.labels.max()) == outputs
        raise InputError(
            f"the label {self.labels[first]} of image {self.names[first]} is out of range: the network "
            f"has {outputs} outputs, so that labels are 0 to {outputs - 1}"
            + ("; these seem to be counted from 1: subtract 1" if one_more else "")
        )


def load_images(path: Path, shape: tuple[int, ...] | None, labels: Path | None) -> Images:
    """Open a data set; `shape` is that of one network input, None to take the images as they are."""
    if is_folder(path):
        images = _from_folder(path, shape)
    elif path.suffix.lower() in (".npy", ".npz"):
        images = _from_arrays(path, shape)
    else:
        raise InputError(f"{path} is no .npy file, .npz file or folder of pictures")
    if labels is not None:
        images = replace(images, labels=_check_labels(_open(labels, _LABEL_NAMES), labels))
    if images.labels is not None and len(images.labels) != len(images):
        raise InputError(f"{labels or path} has {len(images.labels)} labels for {len(images)} images")
    return images


def _from_arrays(path: Path, shape: tuple[int, ...] | None) -> Images:
    array = _open(path, _INPUT_NAMES)
    if array.ndim < 2 or array.size == 0:
        raise FormatError(path, f"an array (images, ...) is expected, not one of shape {array.shape}")
    found = None
    if path.suffix.lower() == ".npz":
        labels = _open(path, _LABEL_NAMES, optional=True)
        found = None if labels.size == 0 else _check_labels(labels, path)
    refuse(path, MEMORY.excess(array.nbytes / len(array) * 8, "one image"))
    images = Images(array, _Numbers(len(array)), found, shape, path)
    images.rows(0, 1)  # a wrong type or shape is said at once
    return images


@dataclass(frozen=True)
class _Numbers(Sequence[str]):
    """Names of images that have none."""

    total: int

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, i: Any) -> Any:
        return str(range(self.total)[i])


def _open(path: Path, keys: tuple[str, ...], *, optional: bool = False) -> NDArray[Any]:
    """The array of a file, mapped and not read; only a compressed one is in memory, as the type that it has."""
    if not is_file(path):
        raise FormatError(path, "there is no such file")
    try:
        if not is_zip(path):
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            key = next((name for name in keys if name in names), None)
            if key is None and len(names) == 1 and not optional:
                key = names[0]
            if key is None and optional:
                return np.empty(0)
            if key is None:
                shown = ", ".join(names)[:300]
                raise FormatError(path, f"holds {shown}; none of them is called {' or '.join(keys)}")
            part = archive.infolist()[names.index(key)]
            return _mapped(path, part) if part.compress_type == zipfile.ZIP_STORED else _unpacked(path, archive, part)
    except FormatError:
        raise
    except Exception as error:  # headers are parsed as Python, sizes overflow, zip files have passwords
        raise FormatError(path, f"not a numpy file that can be read ({one_line(error)})") from error


def _mapped(path: Path, part: zipfile.ZipInfo) -> NDArray[Any]:
    """A stored part of an archive is an .npy file at an offset: behind a header that says how long it is."""
    with path.open("rb") as stream:
        stream.seek(part.header_offset)
        header = stream.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise ValueError("a part of the archive does not begin where it should")
        lengths = np.frombuffer(header[26:30], dtype="<u2")
        stream.seek(int(lengths.sum()), 1)
        shape, fortran, dtype = _header(stream)
        return np.memmap(stream, dtype, "r", stream.tell(), shape, "F" if fortran else "C")


def _unpacked(path: Path, archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> NDArray[Any]:
    limit = replace(UNPACKED, most=max(UNPACKED.most, min(_EXPANSION * part.compress_size, MEMORY.most)))
    with archive.open(part) as stream:
        shape, fortran, dtype = _header(stream)
        size = math.prod(shape) * dtype.itemsize
        refuse(path, limit.excess(max(size, part.file_size), f"its array {part.filename!r}, unpacked,"))
        array = np.empty(math.prod(shape), dtype)
        view, place = memoryview(array.data).cast("B"), 0
        while piece := stream.read(min(1 << 20, size - place)):
            view[place : place + len(piece)] = piece
            place += len(piece)
    if place != size:
        raise EOFError("an array is shorter than it says")
    return array.reshape(shape, order="F" if fortran else "C")


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of numpy's format")
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    return shape, fortran, dtype


def _check_labels(array: NDArray[Any], path: Path) -> NDArray[np.int64]:
    if not np.issubdtype(array.dtype, np.integer):
        raise FormatError(path, "labels must be whole numbers of at least 0")
    refuse(path, MEMORY.excess(8 * array.size, "its labels"))
    flat = np.asarray(array).ravel()
    if (flat < 0).any():
        raise FormatError(path, "labels must be whole numbers of at least 0")
    return flat.astype(np.int64)


@dataclass(frozen=True)
class _Pictures:
    """Files that are opened when asked for."""

    files: tuple[Path, ...]
    shape: tuple[int, ...] | None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        pixels = [self._open(file) for file in self.files[rows]]
        if len({one.shape for one in pixels}) > 1:
            raise InputError(f"the pictures in {self.files[0].parent} differ in size; a network takes one size")
        return np.stack(pixels)

    def _open(self, file: Path) -> NDArray[np.uint8]:
        from PIL import Image

        try:
            with _no_other_limit():
                picture = Image.open(file)  # the header alone
            with picture:
                refuse(file, MEMORY.excess(picture.width * picture.height * _PIXEL, "the picture, unpacked,"))
                gray = _wants_gray(self.shape, picture.size)
                pixels = np.asarray(picture.convert("L" if gray else "RGB"))
        except (FormatError, KeyboardInterrupt):
            raise
        except Exception as error:  # decoders raise whatever a damaged picture makes them, also warnings
            raise FormatError(file, f"not a picture that can be read ({one_line(error)})") from error
        channels_last = self.shape is not None and len(self.shape) == 3 and self.shape[0] not in (1, 3)
        stacked = pixels[..., None] if gray else pixels
        return stacked if channels_last else np.moveaxis(stacked, -1, 0)


@contextmanager
def _no_other_limit() -> Iterator[None]:
    """Pillow has a limit of its own, which our variable could not raise."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _from_folder(folder: Path, shape: tuple[int, ...] | None) -> Images:
    with reading(folder):
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _PICTURES)
    if not files:
        raise InputError(f"the folder {folder} holds no picture ({', '.join(_PICTURES)})")
    return Images(_Pictures(tuple(files), shape), tuple(file.name for file in files), None, shape, folder)


def _wants_gray(shape: tuple[int, ...] | None, size: tuple[int, int]) -> bool:
    return shape is not None and math.prod(shape) == size[0] * size[1]


def _unit(array: NDArray[Any], path: Path) -> NDArray[np.float32]:
    if array.dtype == np.uint8:
        return array.astype(np.float32) / np.float32(255)
    if not np.issubdtype(array.dtype, np.floating):
        raise FormatError(path, f"images of type {array.dtype} are not understood; use uint8 (0 to 255) or floats")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, which is refused
        return array.astype(np.float32)


def _fit(array: NDArray[np.float32], shape: tuple[int, ...] | None, path: Path) -> NDArray[np.float32]:
    if shape is None or array.shape[1:] == shape:
        return array
    squeezed = [size for size in array.shape[1:] if size != 1] == [size for size in shape if size != 1]
    if squeezed or (math.prod(array.shape[1:]) == math.prod(shape) and min(array.ndim - 1, len(shape)) == 1):
        return array.reshape(len(array), *shape)
    raise InputError(f"{path}: images of shape {array.shape[1:]} do not fit the network, which takes {shape}")
