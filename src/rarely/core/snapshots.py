"""Networks of one architecture, such as the epochs of a training run, in one batch.

On a GPU their weights are stacked and `torch.func` runs them as one; on a CPU, where that is no faster for dense layers
and three times slower for convolutions (measured), each runs its own rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rarely.core.network import Network

Rows = Callable[[Tensor], Tensor]  # (n, *event) -> (n, *out)
Groups = Callable[[Sequence[int], Sequence[Tensor]], Sequence[Tensor]]  # networks and the rows of each -> outputs


def architecture(network: Network) -> Hashable:
    """Equal for networks that differ in their weights alone. A plain function is only ever equal to itself."""
    if network.module is None:
        return id(network.call)
    state = network.module.state_dict().items()  # of a quantised network some are no tensors
    shapes = tuple((name, tuple(getattr(value, "shape", ()))) for name, value in state)
    return str(network.module), shapes, network.dtype, network.differentiable


@dataclass(frozen=True)
class Snapshots:
    """Outputs (B, N, *out) of inputs (B, N, *event) whose rows belong to different networks."""

    owner: Tensor  # (problems,) the network of each problem of the original list, on the CPU
    groups: Groups

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        order = torch.argsort(self.owner[rows], stable=True)
        which, sizes = torch.unique_consecutive(self.owner[rows][order], return_counts=True)
        sorted_already = bool((order[1:] > order[:-1]).all())
        parts = torch.split(x if sorted_already else x[order.to(x.device)], sizes.tolist())
        found = self.groups(which.tolist(), [part.flatten(0, 1) for part in parts])
        y = torch.cat(list(found))
        y = y.reshape(*x.shape[:2], *y.shape[1:])
        return y if sorted_already else y[torch.argsort(order).to(x.device)]


def one_by_one(calls: Sequence[Rows]) -> Groups:
    return lambda which, parts: [calls[i](part) for i, part in zip(which, parts, strict=True)]


def together(modules: Sequence[nn.Module], dtype: torch.dtype) -> Callable[..., Sequence[Tensor]]:
    """All networks in one call in `dtype`; the `Groups` takes a `chunk`, too, the rows of all of them at a time."""
    # Not stack_module_state: every module that fx made, ours from ONNX too, is of a class of its own.
    weights = _stacked([dict(module.named_parameters()) for module in modules])
    buffers = _stacked([dict(module.named_buffers()) for module in modules])
    template = modules[0]

    @lru_cache(1)  # finished problems drop out seldom
    def chosen(which: tuple[int, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        index = torch.tensor(which)
        pick = [{name: value[index.to(value.device)] for name, value in part.items()} for part in (weights, buffers)]
        return pick[0], pick[1]

    def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = functional_call(template, (weights, buffers), (x.to(dtype) if x.is_floating_point() else x,))
        return y.to(x.dtype) if x.is_floating_point() else y

    def groups(which: Sequence[int], parts: Sequence[Tensor], chunk: int | None = None) -> Sequence[Tensor]:
        most = max(len(part) for part in parts)
        padded = [part if len(part) == most else torch.cat([part, part[:1].expand(most - len(part), *part.shape[1:])])
                  for part in parts]  # fmt: skip
        per = most if chunk is None else max(1, chunk // len(parts))
        stacked = torch.split(torch.stack(padded), per, 1)
        y = torch.cat([vmap(one)(*chosen(tuple(which)), piece) for piece in stacked], 1)
        return [rows[: len(part)] for rows, part in zip(y, parts, strict=True)]

    return groups


def _stacked(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name].detach() for part in parts]) for name in parts[0]}


def agree(groups: Groups, calls: Sequence[Rows], probe: Tensor) -> bool:
    """Whether the networks run together say what they say alone: same shapes of weights need not be the same code."""
    which = range(len(calls))
    with torch.no_grad():
        try:
            found = groups(which, [probe] * len(calls))
        except RuntimeError:  # an operation that torch.func cannot batch
            return False
        alone = [calls[i](probe) for i in which]
    tolerance = 1e-3 * max(float(y.abs().max()) for y in alone)
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=tolerance)
        for a, b in itertools.zip_longest(found, alone)
    )
