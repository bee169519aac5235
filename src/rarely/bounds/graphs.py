"""What is read of networks once, for all the proofs of a run."""

from __future__ import annotations

import torch
from torch import nn

from rarely.bounds.graph import Graph, Unprovable
from rarely.bounds.operators import Interval
from rarely.bounds.placing import CPU
from rarely.bounds.trace import CHECKED, INSIDE, build
from rarely.core.problem import Problem
from rarely.core.stacking import place


class Graphs:
    """Modules and graphs of networks while they do not change: each is read once, and moved once to another device."""

    def __init__(self) -> None:
        self._modules: dict[int, tuple[Problem, nn.Module]] = {}
        self._known: dict[tuple[nn.Module, tuple[int, ...]], Graph | Unprovable] = {}
        self._moved: dict[tuple[int, torch.device], Graph] = {}

    def module(self, problem: Problem) -> nn.Module:
        """The network as a module on the CPU, a copy where it lives elsewhere. Unprovable for a black box."""
        key = id(problem.network)
        if key not in self._modules:
            if not isinstance(problem.network, nn.Module):
                raise Unprovable("the network is a black box, not a torch module")
            module = problem.adapted.placed(CPU, None).module
            assert module is not None
            self._modules[key] = problem, module  # the problem keeps its network, whose number nothing else gets then
        return self._modules[key][1]

    def of(self, module: nn.Module, shape: tuple[int, ...], box: Interval | None = None) -> Graph:
        """Read a module, for inputs of a box (*event) among others, or raise Unprovable again."""
        if (module, shape) not in self._known:
            try:
                self._known[module, shape] = build(module, shape, box)
            except Unprovable as reason:
                self._known[module, shape] = reason
        known = self._known[module, shape]
        if isinstance(known, Unprovable):
            raise known
        return known

    def on(self, device: torch.device, graph: Graph) -> Graph:
        """One of these graphs with its weights on a device."""
        if device == CPU:
            return graph
        key = id(graph), device
        if key not in self._moved:
            self._moved[key] = place(graph, device, torch.float64)
        return self._moved[key]

    @property
    def calls(self) -> int:
        """Of networks, to compare their graphs with them."""
        return (CHECKED + INSIDE) * len(self._known)
