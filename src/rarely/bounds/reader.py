"""Reading a network: values while they are read, the nodes that they leave, and who reads what."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rarely.bounds.graph import Node, Unprovable
from rarely.bounds.operators import Affine, Arithmetic, Relaxed

PROBE = 2  # batch size that shapes are worked out with
_FLUSHED = ("bfloat16",)  # of which processors read denormal numbers as zero in some products (AVX-512 does)

# Names of torch's functions and methods, and classes of modules, to the function that turns a call into nodes.
READINGS: dict[str | type[nn.Module], Callable[..., Any]] = {}
Reading = TypeVar("Reading", bound=Callable[..., Any])


@dataclass(frozen=True)
class Handle:
    """Stands for a value of the network while its graph is read."""

    index: int
    shape: tuple[int, ...]  # without the batch


class Reader:
    """Collects nodes. Weights are kept in float64, which holds float32 weights exactly."""

    def __init__(self, input_shape: tuple[int, ...], device: torch.device, arithmetic: Arithmetic) -> None:
        self.nodes: list[Node] = [Node(None, (), input_shape)]
        self.device, self.arithmetic = device, arithmetic

    def real(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            tensor = value.detach().to(self.device, torch.float64)
        else:
            tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        if not bool(tensor.isfinite().all()):
            raise Unprovable("a weight or constant of the network is not finite")
        self._check_range(tensor)
        return tensor

    def _check_range(self, tensor: Tensor) -> None:
        """What the network's numbers do not hold to relative precision is another number when it runs."""
        size, arithmetic = tensor.abs(), self.arithmetic
        held = tensor.to(getattr(torch, arithmetic.name)).double()
        if not bool(((held - tensor).abs() <= arithmetic.eps * size).all()):
            raise Unprovable(f"a constant that {arithmetic.name} does not hold")
        if arithmetic.name in _FLUSHED and bool(((size > 0) & (size < arithmetic.tiny)).any()):
            raise Unprovable(f"a weight below the smallest normal {arithmetic.name}, which may be read as zero")

    def weights(self, weight: Any, bias: Any) -> tuple[Tensor, Tensor]:
        """A layer's weight and its bias, zero where it has none."""
        W = self.real(weight)
        return W, W.new_zeros(W.shape[0]) if bias is None else self.real(bias)

    def add(self, op: Affine | Relaxed, shape: Sequence[int], *inputs: Handle) -> Handle:
        if not shape:
            raise Unprovable("a value without an axis beside the batch; keepdim=True or unsqueeze(1) keeps one")
        self.nodes.append(Node(op, tuple(h.index for h in inputs), tuple(shape)))
        return Handle(len(self.nodes) - 1, tuple(shape))


def reads(*what: str | type[nn.Module]) -> Callable[[Reading], Reading]:
    """Register how calls of torch's functions and methods (by name) and of modules (by class) become nodes.

    The decorated function takes a `Reader` and then what torch's own takes, with handles for values of the network.
    Of a module, the arguments after the value are its attributes of the same names.
    """

    def register(function: Reading) -> Reading:
        taken = [key for key in what if key in READINGS]
        if taken:
            raise ValueError(f"read by another layer already: {taken}")
        READINGS.update(dict.fromkeys(what, function))
        return function

    return register


def read_module(reading: Callable[..., Any], r: Reader, module: nn.Module, x: Handle) -> Any:
    """Call a reading with a module's attributes for its arguments."""
    names = list(inspect.signature(reading).parameters)[2:]
    return reading(r, x, **{name: getattr(module, name) for name in names if hasattr(module, name)})


def per_axis(value: Any, rank: int) -> tuple[int, ...]:
    """A number for each of `rank` spatial axes, from one for all of them or one for each."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    return tuple(int(v) for v in (values * rank if len(values) == 1 else values))
