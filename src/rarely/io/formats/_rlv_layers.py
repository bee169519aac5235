"""From the nodes of a `.rlv` file to layers: one module per level of the graph, not one per node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rarely.core.limits import LEVELS, WEIGHTS
from rarely.io.formats._formula import Rejected


class RlvNode(NamedTuple):
    """A Linear, ReLU or MaxPool node; `weights` and `bias` are those of the affine part, if any."""

    kind: str
    line: int
    operands: tuple[str, ...]
    weights: tuple[float, ...] = ()
    bias: float = 0.0


class Pick(nn.Module):
    """The components `index` of the last dimension."""

    index: Tensor  # (m,)

    def __init__(self, index: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("index", torch.tensor(index, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.index)


class PickMax(nn.Module):
    """Max-pooling over arbitrary windows of the last dimension."""

    index: Tensor  # (m * size,)

    def __init__(self, windows: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.size = max(map(len, windows))
        # A short window repeats its first member, which changes neither the maximum nor its gradient.
        padded = [[*window, *[window[0]] * (self.size - len(window))] for window in windows]
        self.register_buffer("index", torch.tensor(padded, dtype=torch.long).flatten())

    def forward(self, x: Tensor) -> Tensor:
        return torch.unflatten(x.index_select(-1, self.index), -1, (-1, self.size)).amax(-1)


class Concatenate(nn.Module):
    """Several layers of the same input side by side: what a level of mixed kinds or a skip needs."""

    def __init__(self, branches: Iterable[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=-1)


def build_layers(
    inputs: Sequence[str], nodes: Mapping[str, RlvNode], outputs: Sequence[str], dtype: torch.dtype
) -> list[nn.Module]:
    """Layers from a vector of `inputs` to a vector of `outputs`; `nodes` are in topological order, without aliases.

    The value between two layers holds every node that is still needed, so each layer reads that one vector
    and the whole is a plain sequence. In a layered network that vector is exactly the previous layer.
    """
    level = dict.fromkeys(inputs, 0)
    for name, node in nodes.items():
        level[name] = 1 + max((level[operand] for operand in node.operands), default=0)
    last_use = dict.fromkeys(outputs, len(level))
    for name in reversed(list(nodes)):
        if name in last_use:  # else the node reaches no output
            for operand in nodes[name].operands:
                last_use[operand] = max(last_use.get(operand, 0), level[name])
    levels: dict[int, list[str]] = {}
    for name in nodes:
        if name in last_use:
            levels.setdefault(level[name], []).append(name)
    too_deep = LEVELS.excess(len(levels), "the network")
    if too_deep is not None:
        raise Rejected(too_deep)

    layers: list[nn.Module] = []
    state = list(inputs)
    weights = 0
    for depth in sorted(levels):
        names = sorted(levels[depth], key=lambda name: nodes[name].line)
        carried = [name for name in state if last_use.get(name, 0) > depth]
        weights += len(state) * len(names) + len(carried)
        too_wide = WEIGHTS.excess(weights, "the network")
        if too_wide is not None:
            raise Rejected(too_wide, nodes[names[0]].line)
        column = {name: i for i, name in enumerate(state)}
        groups = [[n for n in names if nodes[n].kind == kind] for kind in ("Linear", "ReLU", "MaxPool")]
        branches = [_layer([nodes[n] for n in group], column, dtype) for group in groups if group]
        if len(branches) == 1 and not carried:
            layers += branches[0]
        else:
            parallel = [nn.Sequential(*branch) if len(branch) > 1 else branch[0] for branch in branches]
            layers.append(Concatenate([*parallel, *([Pick([column[n] for n in carried])] if carried else [])]))
        state = [name for group in groups for name in group] + carried
    if state != list(outputs):
        layers.append(Pick([state.index(name) for name in outputs]))
    return layers


def _layer(nodes: Sequence[RlvNode], column: Mapping[str, int], dtype: torch.dtype) -> list[nn.Module]:
    """Nodes of one kind that read the vector whose components are named by `column`."""
    columns = [[column[operand] for operand in node.operands] for node in nodes]
    if nodes[0].kind == "MaxPool":
        return [_pool([sorted(set(window)) for window in columns], len(column))]
    weight = np.zeros((len(nodes), len(column)))
    for row, node, window in zip(weight, nodes, columns, strict=True):
        np.add.at(row, window, node.weights)  # add: a node may be listed twice
    bias = np.array([node.bias for node in nodes])
    activation: list[nn.Module] = [nn.ReLU()] if nodes[0].kind == "ReLU" else []
    if activation and not bias.any() and np.array_equal(weight, np.eye(len(column))):
        return activation
    with torch.random.fork_rng(devices=[]):  # reading a file must not draw from the global random state
        linear = nn.Linear(len(column), len(nodes), dtype=dtype, device="cpu")
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
        linear.bias.copy_(torch.from_numpy(bias))
    return [linear, *activation]


def _pool(windows: Sequence[Sequence[int]], width: int) -> nn.Module:
    """`nn.MaxPool1d` when the windows slide evenly over all of the vector.

    A batch (n, width) is a valid unbatched input (channels, length) of it, and (B, N, width) a batched one.
    """
    size = len(windows[0])
    stride = windows[1][0] - windows[0][0] if len(windows) > 1 else size
    even = stride > 0 and (width - size) // stride + 1 == len(windows)
    if even and all(list(w) == list(range(i * stride, i * stride + size)) for i, w in enumerate(windows)):
        return nn.MaxPool1d(size, stride)
    return PickMax(windows)
