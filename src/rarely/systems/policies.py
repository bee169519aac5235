"""Policies from files: networks, and what stable-baselines3 saves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rarely.core.errors import FormatError, InputError, MissingExtra
from rarely.io.files import exists
from rarely.io.networks import load_network


def load_policy(path: str | Path, algorithm: str = "", *, trust_pickle: bool = False) -> Callable[[Any], Any]:
    """A function from observations (n, O) to actions, from the file of a network or of stable-baselines3.

    A `.zip` of stable-baselines3 needs the name of its `algorithm`, such as "PPO" (of sb3_contrib, too), and acts
    without exploring. Loading one unpickles objects, which can run any code: it is done only with `trust_pickle`, for
    files whose origin you know. Everything else is what `load_network` reads.
    """
    if Path(path).suffix.lower() != ".zip":
        return load_network(path, trust_pickle=trust_pickle)
    if not algorithm:
        raise InputError(f"{path}: say which algorithm of stable-baselines3 it is, such as load_policy(path, 'PPO')")
    if not trust_pickle:
        raise InputError(
            f"{path}: a file of stable-baselines3 holds pickles, which can run any code; if you know where it comes "
            "from, say trust_pickle=True"
        )
    if not exists(str(path)):
        raise FormatError(path, "there is no such file")
    model = _algorithm(algorithm).load(path)

    def act(observations: Any) -> Any:
        return model.predict(np.asarray(observations), deterministic=True)[0]

    return act


def _algorithm(name: str) -> Any:
    """A class of stable-baselines3, or of the package of its contributors."""
    try:
        modules = [importlib.import_module("stable_baselines3")]
    except ImportError as error:
        raise MissingExtra("policies of stable-baselines3 need it: pip install 'rarely[policies]'") from error
    with suppress(ImportError):
        modules.append(importlib.import_module("sb3_contrib"))
    for module in modules:
        if hasattr(module, name):
            return getattr(module, name)
    raise InputError(f"stable-baselines3 has no algorithm {name!r}; it is written as there, such as PPO, SAC or DQN")
