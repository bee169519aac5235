"""Programs saved by torch.export (.pt2), made to accept any batch size."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rarely.core.errors import FormatError, NetworkError, RarelyError
from rarely.io.files import check_archive, one_line
from rarely.io.pickle_names import check_names

PROBE_ROWS = 3
FORCE_SAFE_LOAD = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class ExportedNetwork(nn.Module):
    """An exported program as (n, *input_shape) to (n, *output_shape).

    An export usually freezes the batch size of its example. If that size was 1, the program is mapped over
    the rows with torch.vmap, which is exact, differentiable and still one batched computation.
    """

    def __init__(self, program: torch.export.ExportedProgram, source: str) -> None:
        super().__init__()
        self.source = source
        # The stored guards are Python source that would be executed, and insist on the frozen batch size.
        self.program = program.module(check_guards=False)
        example, is_symbolic = _example_input(program, source)
        self.training = False
        self._has_batch = is_symbolic or (example.shape[:1] == (1,) and example.dim() > 1)
        self.input_shape = tuple(example.shape[1:] if self._has_batch else example.shape)
        self._mapped = False
        rows = torch.rand(PROBE_ROWS, *self.input_shape, generator=torch.Generator().manual_seed(0)).to(example)
        with torch.no_grad():
            expected = torch.stack([self._one(row) for row in rows])
            self._mapped = not (self._has_batch and _agrees(self, rows, expected))
            if self._mapped and not _agrees(self, rows, expected):
                raise NetworkError(
                    f"{source}: this export works at its own batch size only; export it again with a dynamic "
                    "batch dimension: export(net, (x,), dynamic_shapes=({0: torch.export.Dim('batch')},))"
                )
        self.output_shape = tuple(expected.shape[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run a batch."""
        if not self._mapped:
            return self._tensor(self.program(x))
        result: torch.Tensor = torch.vmap(self._one)(x)
        return result

    def train(self, mode: bool = True) -> ExportedNetwork:
        """An exported program has no modes; it computes what it was exported as."""
        return self

    def _one(self, row: torch.Tensor) -> torch.Tensor:
        if not self._has_batch:
            return self._tensor(self.program(row))
        result = self._tensor(self.program(row[None]))
        return result[0] if result.shape[:1] == (1,) else result

    def _tensor(self, result: Any) -> torch.Tensor:
        if isinstance(result, tuple | list):
            if len(result) != 1:
                raise NetworkError(
                    f"{self.source}: the program returns {len(result)} values; export one that returns what is meant"
                )
            (result,) = result
        if not isinstance(result, torch.Tensor):
            raise NetworkError(f"{self.source}: the program returns {type(result).__name__}, expected a tensor")
        return result


def load_exported(path: Path, *, trust_pickle: bool) -> ExportedNetwork:
    """Load a `.pt2` archive without letting it run code of its own."""
    check_archive(path)
    if not trust_pickle:
        _refuse_code(path)
    check_names(path)
    try:
        with nullcontext() if trust_pickle else _only_weights():
            program = torch.export.load(path)
    except pickle.UnpicklingError as error:
        raise NetworkError(
            f"{path} holds a pickle of more than tensors, whose loading could run any code, so it is refused; if "
            "you trust the file, pass trust_pickle=True (--trust-pickle)"
        ) from error
    except Exception as error:  # zip, JSON, schema and pickle errors have nothing in common
        raise FormatError(path, f"not a torch.export archive that can be loaded ({one_line(error)})") from error
    try:
        return ExportedNetwork(program, str(path))
    except RarelyError:
        raise
    except Exception as error:  # a damaged program lacks whatever torch looks for
        raise NetworkError(f"{path}: the exported program cannot be run ({one_line(error)})") from error


def _refuse_code(path: Path) -> None:
    """Archives may hold raw pickles and compiled libraries beside the graph and the weights."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise FormatError(path, f"not a torch.export archive ({error})") from error
    for name in names:
        if "opaque_obj" in name or "/aotinductor/" in name:
            raise NetworkError(
                f"{path}: its member {name!r} would execute code on loading, which is refused; if you trust "
                "the file, pass trust_pickle=True (--trust-pickle)"
            )


@contextmanager
def _only_weights() -> Iterator[None]:
    """Protect the bare torch.load calls inside torch.export.load, by torch's own override."""
    before = os.environ.get(FORCE_SAFE_LOAD)
    os.environ[FORCE_SAFE_LOAD] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCE_SAFE_LOAD]
        else:
            os.environ[FORCE_SAFE_LOAD] = before


def _example_input(program: torch.export.ExportedProgram, source: str) -> tuple[torch.Tensor, bool]:
    """A tensor with the shape and type of the program's one input, and whether its first size is free."""
    names = program.graph_signature.user_inputs
    if len(names) != 1:
        raise NetworkError(f"{source}: a network must have exactly one input; this program has {len(names)}")
    fake = next(node.meta["val"] for node in program.graph.nodes if node.name == names[0])
    if not isinstance(fake, torch.Tensor) or not fake.is_floating_point() or fake.dim() == 0:
        raise NetworkError(f"{source}: the program's input is not a tensor of floats")
    free = [not isinstance(size, int) for size in fake.shape]
    if any(free[1:]):
        raise NetworkError(f"{source}: a dimension other than the batch is open; export it with fixed sizes")
    shape = [1 if is_free else int(size) for size, is_free in zip(fake.shape, free, strict=True)]
    if not free[0] and shape[0] > 1 and len(shape) > 1:
        raise NetworkError(
            f"{source}: exported with the batch size fixed to {shape[0]}; "
            "export it with batch size 1 or a dynamic batch dimension"
        )
    return torch.empty(shape, dtype=fake.dtype), free[0]


def _agrees(call: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, expected: torch.Tensor) -> bool:
    try:
        actual = call(rows)
    except (RuntimeError, ValueError, AssertionError, TypeError, IndexError):
        return False
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
