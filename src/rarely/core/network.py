"""One way to call any network: torch modules, functions of tensors, functions of numpy arrays."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rarely.core.arguments import kind
from rarely.core.errors import InputError, NetworkError


@dataclass(frozen=True)
class Network:
    """A batched function (n, *event) -> (n, *out) and what is known of it."""

    call: Callable[[Tensor], Tensor]
    differentiable: bool
    dtype: torch.dtype
    module: nn.Module | None  # for moving to a device; None for a plain function
    numbers: int = 0  # held at once for one input: itself and the outputs of all modules; 0 when not known
    seconds: float = 0.0  # that one input of the first call took

    def placed(self, device: torch.device, dtype: torch.dtype | None) -> Network:
        """The network on a device, a copy where it must move: the user's module stays where it is."""
        wanted = dtype or self.dtype
        if self.module is None:
            return replace(self, dtype=wanted)
        first = next(iter([*self.module.parameters(), *self.module.buffers()]), None)
        if first is None:
            return replace(self, dtype=wanted)
        if first.device == device and wanted == self.dtype:
            return self
        module = copy.deepcopy(self.module).eval().to(device=device, dtype=wanted)
        return replace(self, call=module, dtype=wanted, module=module)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The module in eval mode, every part of it put back into its own mode afterwards."""
        training = [m for m in self.module.modules() if m.training] if self.module is not None else []
        try:
            for part in training:
                part.training = False
            yield
        finally:
            for part in training:
                part.training = True


def adapt_network(network: Any, probe: Tensor) -> tuple[Network, Tensor]:
    """Find out how to call `network` by calling it once on `probe` (n, *event); also gives its outputs."""
    if isinstance(network, type) and issubclass(network, nn.Module):
        raise InputError(f"the network is {kind(network)}; make an object of it: {network.__name__}(...)")
    if not isinstance(network, Network | nn.Module) and not callable(network):
        file = isinstance(network, str | Path)
        hint = f"; load a file with rarely.load_network({str(network)!r})" * file
        raise InputError(f"a network must be a torch module or a function of a batch, not {kind(network)}{hint}")
    started = time.monotonic()
    if isinstance(network, Network):
        with torch.no_grad(), network.evaluating():
            return network, network.call(probe.to(network.dtype))
    adapted, y = (_adapt_module if isinstance(network, nn.Module) else _adapt_function)(network, probe)
    return replace(adapted, seconds=(time.monotonic() - started) / len(probe)), y.detach()


def _adapt_function(function: Callable[[Any], Any], probe: Tensor) -> tuple[Network, Tensor]:
    if getattr(function, "differentiable", True):
        tracked = probe.detach().clone().requires_grad_()
        try:
            with torch.enable_grad():
                y = function(tracked)
        except Exception as error:  # a numpy-only function may raise anything on a tensor
            return _adapt_numpy(function, probe, error)
        if isinstance(y, Tensor):
            return Network(function, y.requires_grad, probe.dtype, None), y
        return _adapt_numpy(function, probe, None)
    return Network(function, False, probe.dtype, None), function(probe)


def _adapt_module(module: nn.Module, probe: Tensor) -> tuple[Network, Tensor]:
    floats = [p for p in [*module.parameters(), *module.buffers()] if p.is_floating_point()]
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise NetworkError(f"the network's {name} contains NaN or inf")
    if module.training:
        warnings.warn(
            "the network is in training mode (dropout and batch-norm behave differently there); "
            "it is run in eval mode and left as it is. Call network.eval() to silence this",
            stacklevel=4,
        )
    dtype = floats[0].dtype if floats else probe.dtype
    device = floats[0].device if floats else probe.device
    network = Network(module if device.type == "cpu" else partial(_call_at, device, module), True, dtype, module)
    tracked = probe.detach().to(device, dtype).requires_grad_()
    try:
        with torch.enable_grad(), network.evaluating(), _counting(module) as numbers:
            y = module(tracked)
    except Exception as error:  # the user's own code
        raise NetworkError(
            f"the network failed on a batch of inputs of shape {tuple(probe.shape)}: {error}; "
            "check that the input model has the shape of one network input"
        ) from error
    if not isinstance(y, Tensor):
        raise NetworkError(f"the network returns {type(y).__name__}, expected one tensor (n, outputs)")
    held = probe[0].numel() + sum(numbers) // len(probe)
    return replace(network, differentiable=y.requires_grad, numbers=held), y.to(probe.device)


@contextmanager
def _counting(module: nn.Module) -> Iterator[list[int]]:
    """The sizes of what the leaves of a module put out."""
    sizes: list[int] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    hooks = [m.register_forward_hook(note) for m in module.modules() if not list(m.children())]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


def _call_at(device: torch.device, module: nn.Module, x: Tensor) -> Tensor:
    """Call a module where it is: checks and replays come from the CPU, wherever the user keeps the network."""
    y: Tensor = module(x.to(device))
    return y.to(x.device)


def _adapt_numpy(function: Callable[[Any], Any], probe: Tensor, error: Exception | None) -> tuple[Network, Tensor]:
    """`error` is what the function said to a tensor; None where it turned one into something else."""

    def of_arrays(x: Tensor) -> Tensor:
        return _tensor_like(function(x.detach().cpu().numpy()), x)

    def of_tensors(x: Tensor) -> Tensor:
        return _tensor_like(function(x.detach().cpu()), x)

    for call in (of_arrays, *([of_tensors] if error is None else [])):
        try:
            return Network(call, False, probe.dtype, None), call(probe)
        except Exception as failed:  # the user's own code
            second = failed
    raise NetworkError(
        f"the network failed on a batch of shape {tuple(probe.shape)}, as a tensor ({error}) and as an array ({second})"
    ) from second


def _tensor_like(y: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(np.asarray(y), dtype=x.dtype, device=x.device)
