"""The files of VNN-COMP: a benchmark's `instances.csv` and the result file of one instance."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from rarely.core.errors import FormatError, InputError
from rarely.io.files import read_text

VERDICTS = ("sat", "unsat", "unknown", "timeout", "error")
_PAIR = re.compile(r"\(\s*([XY])_([0-9]{1,9})\s+([^\s()]+)\s*\)")


@dataclass(frozen=True)
class Instance:
    """One row of `instances.csv`, with the files found."""

    network: Path
    property: Path
    timeout: float  # seconds


@dataclass(frozen=True, eq=False)
class Result:
    """A verdict and, for `sat`, the counterexample as flat float64 arrays (None when the file has none)."""

    verdict: str
    x: np.ndarray | None = None
    y: np.ndarray | None = None


def read_instances(csv_path: str | Path) -> list[Instance]:
    """Read rows of network, property, timeout.

    Files are looked for beside the csv and in its folders `onnx/` and `vnnlib/`, compressed or not: the
    benchmarks were published in all of these layouts.

    Raises:
        FormatError: with the line of the row that is malformed or names a file that is not there.
    """
    text = read_text(csv_path)
    folder = Path(csv_path).parent
    instances = []
    reader = csv.reader(text.splitlines())
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != 3:
                raise FormatError(csv_path, f"3 columns are expected, not {len(row)}", reader.line_num)
            network, prop = (_find(folder, cell.strip(), csv_path, reader.line_num) for cell in row[:2])
            instances.append(Instance(network, prop, _timeout(row[2], csv_path, reader.line_num)))
    except csv.Error as error:
        raise FormatError(csv_path, str(error), reader.line_num) from None
    return instances


def instance_name(instance: Instance) -> str:
    """Network and property without folders and endings."""
    return "_".join(Path(path.name.removesuffix(".gz")).stem for path in (instance.network, instance.property))


def _find(folder: Path, name: str, csv_path: str | Path, line: int) -> Path:
    names = [name, name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"]
    try:
        for place in (folder, folder / "onnx", folder / "vnnlib"):
            for candidate in (place / spelling for spelling in names):
                if candidate.is_file():
                    return candidate
    except (OSError, ValueError):  # a name that no file system takes
        pass
    raise FormatError(csv_path, f"no file '{name[:120]}' beside it, in onnx/ or in vnnlib/", line)


def _timeout(cell: str, csv_path: str | Path, line: int) -> float:
    try:
        timeout = float(cell)
    except ValueError:
        timeout = math.nan
    if not 0 < timeout < math.inf:
        raise FormatError(csv_path, f"the timeout '{cell.strip()[:40]}' is not a positive number", line)
    return timeout


def write_result(path: str | Path, verdict: str, x: ArrayLike | None = None, y: ArrayLike | None = None) -> None:
    """Write a result file. Numbers are written so that reading them gives the same bits back.

    Raises:
        InputError: an unknown verdict, a `sat` without counterexample, or a counterexample without `sat`.
    """
    if verdict not in VERDICTS:
        raise InputError(f"verdict '{verdict}' is none of {', '.join(VERDICTS)}")
    if (verdict == "sat") != (x is not None and y is not None) or (x is None) != (y is None):
        raise InputError("x and y are given with the verdict sat, and only with it")
    lines = [verdict]
    if x is not None and y is not None:
        pairs = [*_pairs("X", x), *_pairs("Y", y)]
        lines.append(f"({pairs[0]}")
        lines.extend(pairs[1:])
        lines[-1] += ")"
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pairs(letter: str, values: ArrayLike) -> list[str]:
    flat = np.asarray(values, dtype=np.float64).ravel()
    if flat.size == 0 or not np.isfinite(flat).all():
        raise InputError(f"the counterexample's {letter} must be finite numbers, at least one")
    return [f"({letter}_{i} {value!r})" for i, value in enumerate(flat.tolist())]


def read_result(path: str | Path) -> Result:
    """Read a result file of any tool that follows the format.

    Raises:
        FormatError: with the line and the reason.
    """
    verdict, _, rest = read_text(path).partition("\n")
    verdict = verdict.strip()
    if verdict not in VERDICTS:
        raise FormatError(path, f"verdict '{verdict[:40]}' is none of {', '.join(VERDICTS)}", 1)
    if not rest.strip():
        return Result(verdict)
    if verdict != "sat":
        raise FormatError(path, f"a counterexample after the verdict {verdict}", 2)

    found: dict[str, list[float]] = {"X": [], "Y": []}
    position = _skip(rest, 0, "(", path)
    while pair := _PAIR.match(rest, position):
        letter, index, number = pair.groups()
        line = rest.count("\n", 0, pair.start()) + 2
        if int(index) != len(found[letter]):
            reason = f"{letter}_{len(found[letter])} is expected in place of {letter}_{index}"
            raise FormatError(path, reason, line)
        try:
            found[letter].append(float(number))
        except ValueError:
            raise FormatError(path, f"'{number[:40]}' is not a number", line) from None
        position = _space(rest, pair.end())
    position = _skip(rest, position, ")", path)
    if position != len(rest):
        raise FormatError(path, "text after the counterexample", rest.count("\n", 0, position) + 2)
    if not found["X"] or not found["Y"]:
        raise FormatError(path, "a counterexample has values of X and of Y", 2)
    return Result(verdict, np.array(found["X"]), np.array(found["Y"]))


def _space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _skip(text: str, position: int, character: str, path: str | Path) -> int:
    """Past `character` and the space around it, or the error that it is missing."""
    position = _space(text, position)
    if text[position : position + 1] != character:
        line = text.count("\n", 0, position) + 2
        raise FormatError(path, f"'{character}' is expected: the form is ((X_0 v) ... (Y_0 v) ...)", line)
    return _space(text, position + 1)
