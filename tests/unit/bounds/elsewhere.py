"""A device that pretends: its tensors hold tensors of the CPU, which are foreign to it.

An operation on both is an error, as it is on a GPU, so that a proof fails where a tensor is made without saying where.
A process that imports this has the device for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

backend_registration._setup_privateuseone_for_python_backend("elsewhere")
DEVICE, CPU, aten = torch.device("elsewhere:0"), torch.device("cpu"), torch.ops.aten
COPIES = {aten._copy_from.default: (0, 1), aten.copy_.default: (1, 0)}  # from which argument to which
# Places may be given on the CPU, which a GPU moves.
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


class There(Tensor):
    """A tensor of the device, which computes with what it holds."""

    @staticmethod
    def __new__(cls, held: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def tolist(self) -> Any:
        return self.held.tolist()

    def new_tensor(self, data: Any) -> Tensor:
        return There(self.held.new_tensor(data))

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(op, *args, **(kwargs or {}))


def held_by(x: Any) -> Any:
    return x.held if isinstance(x, There) else x


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation that the device takes part in."""
    if op in COPIES:
        source, target = (args[k] for k in COPIES[op])
        held_by(target).copy_(held_by(source))
        return target
    if op is aten._to_copy.default and kwargs.get("device") is not None:
        copied = op(held_by(args[0]), **{**kwargs, "device": CPU})
        return There(copied) if kwargs["device"].type == DEVICE.type else copied
    indexing, own = op in INDEXING and isinstance(args[0], There), dict[int, There]()

    def opened(x: Any) -> Any:
        if isinstance(x, There):
            own[id(x.held)] = x
            return x.held
        if isinstance(x, Tensor) and x.ndim and not (indexing and not x.is_floating_point()):
            raise RuntimeError(f"{op} of tensors on two devices")
        return CPU if isinstance(x, torch.device) else x

    def closed(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return own[id(x)] if id(x) in own else There(x)  # itself, where it was written over

    return tree_map(closed, op(*tree_map(opened, args), **tree_map(opened, kwargs)))


def _moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, device=None, **kwargs: make(*args, **kwargs).to(device)


# What these do on a device no wrapper can see.
torch.tensor, torch.arange = _moved(torch.tensor), _moved(torch.arange)
library = torch.library.Library("_", "IMPL")
library.fallback(run, "PrivateUse1")
