"""The layers that can be bounded, one file for each family: its operators, and how torch's calls become them.

Every module here is imported with the package, so a file is all that a new layer needs.
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of the package, which registers what it reads."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")


load()
