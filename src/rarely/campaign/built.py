"""What a Python object holds once it is built: weights, constants, the data that its functions use.

Sources say how it was made; files, environment and chance may still decide what came of it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rarely.campaign.sources import installed

_TORCH_OWN = frozenset((*vars(nn.Module()), "training"))
_DEEP = 40  # objects within objects that are followed


class _State:
    """A hash of an object, and what of it is not seen."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.unseen: list[str] = []
        self._seen: dict[int, Any] = {}  # keeps them alive, so that no number is used twice

    def take(self, name: str, value: Any, depth: int = 0) -> None:
        """Add a value, under a name that is the same wherever it is built."""
        self.hash.update(f"{name}\0{type(value).__qualname__}\0".encode(errors="surrogateescape"))
        if isinstance(value, bool | int | float | complex | bytes | type(None) | np.generic | torch.dtype | torch.Size):
            self.hash.update(repr(value).encode())
        elif isinstance(value, str):
            if not os.path.isabs(value):  # where something lies decides nothing
                self.hash.update(value.encode(errors="surrogateescape"))
        elif isinstance(value, torch.Tensor):
            self._tensor(name, value)
        elif isinstance(value, np.ndarray):
            self._array(name, value)
        elif isinstance(value, torch.Generator):
            self._tensor(name, value.get_state())
        elif isinstance(
            value,
            type | types.ModuleType | types.BuiltinFunctionType | types.MemberDescriptorType | Path | logging.Logger,
        ):
            self.hash.update(getattr(value, "__qualname__", "").encode())
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            if depth > _DEEP:
                self.unseen.append(name)
            else:
                self._object(name, value, depth + 1)

    def _tensor(self, name: str, value: torch.Tensor) -> None:
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            self.unseen.append(name)
            return
        plain = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        self.hash.update(f"{plain.dtype} {tuple(plain.shape)}\0".encode())
        if plain.numel():
            self.hash.update(plain.reshape(-1).view(torch.uint8).numpy().data)

    def _array(self, name: str, value: np.ndarray[Any, Any]) -> None:
        if value.dtype.hasobject:
            self.unseen.append(name)
            return
        self.hash.update(f"{value.dtype} {value.shape}\0".encode())
        if value.size:
            self.hash.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _object(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, tuple | list):
            self._all(((f"{name}[{i}]", one) for i, one in enumerate(value)), depth)
        elif isinstance(value, dict):
            shown = ((f"[{key!r}]" if isinstance(key, str | int) else "", one) for key, one in value.items())
            self._all(((name + key, one) for key, one in shown), depth)
        elif isinstance(value, set | frozenset):
            self._all(((name, one) for one in sorted(value, key=repr)), depth)
        elif isinstance(value, nn.Module):
            self._module(name, value, depth)
        elif isinstance(value, types.MethodType):
            self._all([(name, value.__func__), (name, value.__self__)], depth)
        elif isinstance(value, types.FunctionType):
            self._function(name, value, depth)
        elif not installed(type(value).__module__) and hasattr(value, "__dict__"):
            self._all(((f"{name}.{key}", one) for key, one in vars(value).items()), depth)
            self._class(name, type(value), depth)
        else:
            self.unseen.append(f"{name} ({type(value).__qualname__})")

    def _all(self, named: Iterable[tuple[str, Any]], depth: int) -> None:
        for name, one in named:
            self.take(name, one, depth)

    def _module(self, name: str, value: nn.Module, depth: int) -> None:
        held = {key: one for key, one in vars(value).items() if key not in _TORCH_OWN}
        for kind in ("_parameters", "_buffers", "_modules"):
            held |= getattr(value, kind, {})
        if isinstance(value, torch.jit.ScriptModule):
            held = dict(value.state_dict())
        self._all(((f"{name}.{key}", held[key]) for key in sorted(held)), depth)
        self._class(name, type(value), depth)

    def _class(self, name: str, kind: type, depth: int) -> None:
        """The data that the functions of a class use."""
        for one in kind.__mro__:
            if not installed(one.__module__):
                held = {key: _function_in(thing) for key, thing in vars(one).items() if not key.startswith("_abc")}
                kept = (key for key in sorted(held) if not key.startswith("__") or callable(held[key]))
                self._all(((f"{name}.{key}", held[key]) for key in kept), depth)

    def _function(self, name: str, value: types.FunctionType, depth: int) -> None:
        self.hash.update(f"{value.__qualname__}\0".encode())
        if installed(value.__module__ or ""):
            return
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        held = [*zip(value.__code__.co_freevars, cells, strict=False), ("defaults", value.__defaults__)]
        held += [("defaults of names", value.__kwdefaults__), ("attributes", vars(value))]
        held += [
            (word, value.__globals__[word]) for word in sorted(_words(value.__code__)) if word in value.__globals__
        ]
        self._all(((f"{name}: {word}", one) for word, one in held), depth)


def _function_in(thing: Any) -> Any:
    """What stands behind a property, a static method or a method of the class."""
    return thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)


def _words(code: types.CodeType) -> set[str]:
    """Names that a function, or one within it, looks up."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*map(_words, inner))


def state_of(made: Callable[..., Any], name: str) -> tuple[str, tuple[str, ...]]:
    """The hash of what an object holds, and what of it is not seen, in words."""
    state = _State()
    state.take("", made)
    unseen = [f"what {name} keeps in {one.strip('.: ') or 'itself'}" for one in dict.fromkeys(state.unseen)]
    return state.hash.hexdigest(), tuple(unseen)
