"""Checkpoints of torch: tensors alone, or whole objects of files that the user trusts."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from rarely.core.errors import FormatError, NetworkError
from rarely.io.files import one_line
from rarely.io.imports import importable, module_of


def only_tensors(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NetworkError(
            f"{path} is a pickle of more than tensors (or is damaged). Opening it could run any code, so "
            "it is refused. If you trust the file, pass trust_pickle=True (--trust-pickle); better, save the "
            "state dict as .safetensors or export the network to ONNX"
        ) from error
    except Exception as error:  # torch raises RuntimeError, EOFError, KeyError and more for damaged archives
        raise FormatError(path, f"not a checkpoint that torch can read ({one_line(error)})") from error


def unpickled(path: Path, architecture: str | Callable[[], Any] | None) -> Any:
    """All that a trusted file holds.

    Its classes are looked for where it was saved from, as far as one can tell: beside the file, in the working
    directory, and in the module of `architecture`. There those of a script are found, too, which pickle calls
    `__main__`.
    """
    home = _home(architecture)
    folders = [Path.cwd(), path.resolve().parent]
    if home is not None and getattr(home, "__file__", None):
        folders.append(Path(str(home.__file__)).resolve().parent)
    try:
        with importable(*folders):
            return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_pickle_with(path, home))
    except NetworkError:
        raise
    except pickle.UnpicklingError as error:
        raise FormatError(path, f"a damaged checkpoint ({one_line(error)})") from error
    except Exception as error:  # torch raises RuntimeError, EOFError, KeyError and more for damaged archives
        raise FormatError(path, f"not a checkpoint that torch can read ({one_line(error)})") from error


def _home(architecture: str | Callable[[], Any] | None) -> ModuleType | None:
    """The module in which an architecture stands."""
    if isinstance(architecture, str):
        return module_of(architecture)
    return sys.modules.get(getattr(architecture, "__module__", ""))


def _pickle_with(path: Path, home: ModuleType | None) -> Any:
    """A pickle module, as torch asks for one, that finds classes in `home` which have no other."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError) as error:
                target: Any = home
                for part in name.split("."):
                    target = getattr(target, part, None)
                if target is not None:
                    return target
                raise NetworkError(f"{path} {_lost(module, name, error)}") from error

    made = ModuleType("pickle")
    made.__dict__.update(pickle.__dict__, Unpickler=Unpickler)
    return made


def _lost(module: str, name: str, error: Exception) -> str:
    if module == "__main__":
        return (
            f"holds an object of the class {name} of the script that saved it; name that script: "
            f"architecture='script.py:{name}' (--architecture script.py:{name})"
        )
    file = f"{module.rpartition('.')[2]}.py:{name}"
    return (
        f"holds an object of {module}.{name}, which cannot be imported here ({one_line(error)}); run where {module} "
        f"can be found, or name its file: architecture='{file}' (--architecture {file})"
    )
