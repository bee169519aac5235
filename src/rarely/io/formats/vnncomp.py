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
_OPEN, _CLOSE = re.compile(r"\s*\("), re.compile(r"\s*\)\s*")
_PAIR = re.compile(r"\s*\(\s*([XY])_([0-9]{1,9})\s+([^\s()]+)\s*\)")


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
    """Write a result file. Numbers are written so that reading them gives the same bits back."""
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
    """Read a result file of any tool that follows the format."""
    verdict, _, rest = read_text(path).partition("\n")
    verdict = verdict.strip()
    if verdict not in VERDICTS:
        raise FormatError(path, f"verdict '{verdict[:40]}' is none of {', '.join(VERDICTS)}", 1)
    if not rest.strip():
        return Result(verdict)
    if verdict != "sat":
        raise FormatError(path, f"a counterexample after the verdict {verdict}", 2)

    def wrong(reason: str, position: int) -> FormatError:
        first = len(rest) - len(rest[position:].lstrip())  # behind the space that may stand there
        return FormatError(path, reason, rest.count("\n", 0, first) + 2)

    found: dict[str, list[float]] = {"X": [], "Y": []}
    opened = _OPEN.match(rest)
    position = opened.end() if opened else 0
    while opened and (pair := _PAIR.match(rest, position)):
        letter, index, number = pair.groups()
        if int(index) != len(found[letter]):
            raise wrong(f"{letter}_{len(found[letter])} is expected in place of {letter}_{index}", position)
        try:
            found[letter].append(float(number))
        except ValueError:
            raise wrong(f"'{number[:40]}' is not a number", position) from None
        position = pair.end()
    closed = _CLOSE.match(rest, position)
    if opened is None or closed is None:
        raise wrong(f"'{')' if opened else '('}' is expected: the form is ((X_0 v) ... (Y_0 v) ...)", position)
    if closed.end() != len(rest):
        raise wrong("text after the counterexample", closed.end())
    if not found["X"] or not found["Y"]:
        raise FormatError(path, "a counterexample has values of X and of Y", 2)
    return Result(verdict, np.array(found["X"]), np.array(found["Y"]))
