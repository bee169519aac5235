"""Python objects by name, as a user writes them: `module:attribute` or `file.py:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rarely.core.errors import InputError, NetworkError


def import_object(name: str) -> Any:
    """The object behind `module:attribute` or `file.py:attribute`; the working directory is searched."""
    target: Any = module_of(name)
    for part in name.rpartition(":")[2].split("."):
        try:
            target = getattr(target, part)
        except Exception as error:  # the user's module may answer for itself, and raise anything
            raise _failed(name, error) from error
    return target


def module_of(name: str) -> ModuleType:
    """The module of such a name."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise InputError(f"{name!r} is not of the form module:attribute")
    try:
        return _script(module_name) if module_name.endswith(".py") else _module(module_name)
    except (Exception, SystemExit) as error:  # the user's module runs on import and may raise anything
        raise _failed(name, error) from error


def _module(name: str) -> ModuleType:
    with importable(Path.cwd()):
        return importlib.import_module(name)


def _script(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    with importable(Path(file).resolve().parent):  # what stands beside it, as when it is run
        spec.loader.exec_module(module)
    return module


def _failed(name: str, error: BaseException) -> NetworkError:
    return NetworkError(f"{name} cannot be imported ({type(error).__name__}: {error})")


@contextmanager
def importable(*folders: Path) -> Iterator[None]:
    """Inside, modules in these folders can be imported, too."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path += added
    try:
        yield
    finally:
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)
