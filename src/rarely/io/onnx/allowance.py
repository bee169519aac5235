"""What a graph may take while its probe runs: each torch operation is asked for its size before it happens.

A mode of torch sees every operation, also those inside of layers. The same operation on the `meta` device, which has
shapes and no numbers, tells how large the result will be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from rarely.core.limits import ENTRIES, MEMORY, OPERATIONS
from rarely.io.onnx.builder import PROBE_BATCH, IllFormed

CHECK_BATCH = 8  # rows that `compare` runs at once, and so the most that are in memory
CHECK_ROWS = 20  # that pass through the network until it is loaded: 3 of the probe, 8 + 8 + 1 of the check
_PER_ENTRY = 40  # multiplications inside a product take as long as one entry of anything else


class Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises `IllFormed` before an operation that would take a probe beyond the limits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[Any, float]] = {}
        self._operations = 0.0
        self._constants = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func.is_view:
            self._ask(func, args, kwargs)
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not func.is_view:
                storage = tensor.untyped_storage()
                self._live[storage._cdata] = (_weak(storage), _checked_bytes(tensor))
        return result

    def _ask(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        results = _planned(func, args, kwargs)
        entries = max((tensor.numel() for tensor in results), default=0)
        _refuse(ENTRIES.excess(max(map(_row_entries, results), default=0), "the result"))
        size = sum(map(_checked_bytes, results)) + _scratch(func, args, entries)
        if size > MEMORY.now / 64:  # else the count is not worth its time: small ones cannot be many enough
            self._live = {key: one for key, one in self._live.items() if not one[0].expired()}
            _refuse(MEMORY.excess(size + sum(held for _, held in self._live.values()), "what it needs at once"))
        self.work(_operations(func, args, kwargs, entries) * CHECK_ROWS / PROBE_BATCH)

    def work(self, operations: float) -> None:
        """Count what will be done."""
        self._operations += operations
        _refuse(OPERATIONS.excess(self._operations, "the work up to here"))

    def keep(self, size: int) -> None:
        """Count a constant that was computed; nobody knows for how long it is held."""
        self._constants += size
        _refuse(MEMORY.excess(self._constants, "all that is computed at import"))


_weak: Any = StorageWeakRef


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise IllFormed(reason)


def _row_entries(tensor: torch.Tensor) -> float:
    """Entries for one row of the probe; a weight has none."""
    return tensor.numel() / PROBE_BATCH if _carries_rows(tensor) else 0.0


def _checked_bytes(tensor: torch.Tensor) -> float:
    """Bytes that it will take in the check, of more rows than the probe."""
    rows = CHECK_BATCH / PROBE_BATCH if _carries_rows(tensor) else 1.0
    return tensor.numel() * tensor.element_size() * rows


def _carries_rows(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] % PROBE_BATCH == 0


def _planned(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The results, without numbers."""
    try:
        shadows = tree_map(_shadow, (args, {**kwargs, "device": "meta"} if kwargs.get("device") else kwargs))
        made = tree_leaves(func(*shadows[0], **shadows[1]))
    except (NotImplementedError, RuntimeError, TypeError):
        # The result depends on numbers, as in nonzero, or the call is wrong, which the real one will say better.
        made = tree_leaves(args)
    return [leaf for leaf in made if isinstance(leaf, torch.Tensor)]


def _shadow(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _scratch(func: Any, args: Sequence[Any], entries: float) -> float:
    """Bytes of the columns that a convolution unfolds where oneDNN does not take it."""
    if func._overloadpacket is not torch.ops.aten.convolution:
        return 0.0
    x, weight, dilated = args[0], args[1], any(n != 1 for n in args[5])
    plain = x.dtype == torch.float32 and not dilated and x.dim() < 5
    places = x.numel() / x.shape[1] if args[6] else entries / weight.shape[0]
    return 0.0 if plain else places * math.prod(weight.shape[1:]) * x.element_size()


def _operations(func: Any, args: Any, kwargs: Any, entries: float) -> float:
    from torch.utils.flop_counter import flop_registry

    name = func._overloadpacket.__name__
    if func._overloadpacket is torch.ops.aten.convolution:
        x, weight, transposed = args[0], args[1], args[6]
        places = x.numel() if transposed else entries
        return float(2 * places * math.prod(weight.shape[1:]))
    if "pool" in name and len(args) > 1 and "adaptive" not in name:
        return entries * math.prod(int(n) for n in args[1]) * _PER_ENTRY
    if func._overloadpacket in flop_registry and "scaled_dot" not in name:
        tensors = [leaf for leaf in args if isinstance(leaf, torch.Tensor)]
        inner = tensors[-2].shape[-1] if len(tensors) > 1 else 1
        return 2.0 * entries * inner
    return entries * _PER_ENTRY
