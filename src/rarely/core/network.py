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
    whole: bool = False  # inputs are whole numbers, such as those of words, and not a matter of precision
    laid: bool = False  # its convolutions say the same of channels that are last in memory

    def taken(self, x: Tensor) -> Tensor:
        """Inputs as the network takes them: whole numbers as such, all others in its precision."""
        return x.long() if self.whole else x.to(self.dtype)

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

    def laid_out(self) -> Network:
        """A copy with channels last in memory, where that is known to say the same.

        A core takes half the time for a ResNet-20, two thirds with the gradient; a GPU takes longer in float32.
        """
        if not self.laid or self.module is None or next(self.module.parameters()).device.type != "cpu":
            return self
        module = _channels_last(self.module)
        return replace(self, call=module, module=module)

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
    """Find out how to call `network` by calling it once on `probe` (n, *event); also gives its outputs.

    A probe of whole numbers is passed on as such: what looks words up has no gradient in their numbers.
    """
    if isinstance(network, type) and issubclass(network, nn.Module):
        raise InputError(f"the network is {kind(network)}; make an object of it: {network.__name__}(...)")
    if not isinstance(network, Network | nn.Module) and not callable(network):
        file = isinstance(network, str | Path)
        hint = f"; load a file with rarely.load_network({str(network)!r})" * file
        raise InputError(f"a network must be a torch module or a function of a batch, not {kind(network)}{hint}")
    started, whole = time.monotonic(), not probe.is_floating_point()
    if isinstance(network, Network):
        network = replace(network, whole=whole, differentiable=network.differentiable and not whole)
        with torch.no_grad(), network.evaluating():
            return network, network.call(network.taken(probe))
    adapted, y = (_adapt_module if isinstance(network, nn.Module) else _adapt_function)(network, probe)
    adapted = replace(adapted, seconds=(time.monotonic() - started) / len(probe), whole=whole)
    if not y.is_floating_point():  # a count, say: levels between whole numbers are none
        adapted, y = replace(adapted, call=partial(_in_precision, adapted.call, adapted.dtype)), y.to(adapted.dtype)
    return adapted, y.detach()


def altered(module: nn.Module) -> bool:
    """Whether a module, or a part of it, does more than its class says: what reads its code would not see that."""
    added = ("forward", "_forward_hooks", "_forward_pre_hooks")
    return any(vars(part).get(name) for part in module.modules() for name in added)


def _in_precision(call: Callable[[Tensor], Tensor], dtype: torch.dtype, x: Tensor) -> Tensor:
    return call(x).to(dtype)


def _adapt_function(function: Callable[[Any], Any], probe: Tensor) -> tuple[Network, Tensor]:
    if getattr(function, "differentiable", True):
        tracked = _tracked(probe.detach().clone())
        try:
            with torch.enable_grad():
                y = function(tracked)
        except Exception as error:  # a numpy-only function may raise anything on a tensor
            return _adapt_numpy(function, probe, error)
        if isinstance(y, Tensor):
            return Network(function, tracked.requires_grad and y.requires_grad, _precision(probe), None), y
        return _adapt_numpy(function, probe, None)
    return Network(function, False, _precision(probe), None), function(probe)


def _tracked(x: Tensor) -> Tensor:
    """With a gradient, where there is any."""
    return x.requires_grad_() if x.is_floating_point() else x


def _precision(x: Tensor) -> torch.dtype:
    """That of x; of whole numbers none is known, and the usual one is taken for what is made of them."""
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


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
    dtype = floats[0].dtype if floats else _precision(probe)
    device = floats[0].device if floats else probe.device
    network = Network(module if device.type == "cpu" else partial(_call_at, device, module), True, dtype, module)
    tracked = _tracked(probe.detach().to(device, dtype if probe.is_floating_point() else probe.dtype))
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
    differentiable = tracked.requires_grad and y.requires_grad
    laid = device.type == "cpu" and _says_the_same(module, tracked.detach(), y.detach())
    return replace(network, differentiable=differentiable, numbers=held, laid=laid), y.to(probe.device)


def _channels_last(module: nn.Module) -> nn.Module:
    copied: Any = copy.deepcopy(module).eval()
    last: nn.Module = copied.to(memory_format=torch.channels_last)
    return last


def _says_the_same(module: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Whether convolutions can have channels last in memory: not where activations are viewed in their usual order."""
    if not any(isinstance(part, nn.Conv2d) for part in module.modules()):
        return False
    try:
        with torch.no_grad():
            own = _channels_last(module)(x)
    except Exception:  # the user's own code, or a module that cannot be copied
        return False
    return own.shape == y.shape and torch.allclose(own, y, rtol=1e-4, atol=1e-5 * float(y.abs().max()))


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
            return Network(call, False, _precision(probe), None), call(probe)
        except Exception as failed:  # the user's own code
            second = failed
    raise NetworkError(
        f"the network failed on a batch of shape {tuple(probe.shape)}, as a tensor ({error}) and as an array ({second})"
    ) from second


def _tensor_like(y: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(np.asarray(y), dtype=_precision(x), device=x.device)
