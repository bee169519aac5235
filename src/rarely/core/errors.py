"""Every error that a user can cause, each with a sentence that says what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

_LONGEST = 4000  # characters of a sentence: files choose names, keys and values that are quoted


class RarelyError(Exception):
    """Base class of all errors raised on purpose by rarely."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


class InputError(RarelyError, ValueError):
    """An argument, shape, bound, label or setting that cannot be used."""


class NetworkError(RarelyError):
    """A network that cannot be loaded, does not match its reference, or returns unusable values."""


class FormatError(RarelyError):
    """A malformed file: carries the path, the line (1-based, None when it has none) and the reason."""

    def __init__(self, path: str | Path, reason: str, line: int | None = None) -> None:
        self.path, self.reason, self.line = Path(path), reason, line
        where = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {reason}")


class UnsupportedOperator(NetworkError):
    """An ONNX operator (or attribute of one) that the importer does not know."""


class StoreError(RarelyError):
    """A campaign's folder that cannot be read or written, is in use, or belongs to other settings."""


class MissingExtra(RarelyError):
    """An optional dependency is needed; the message names the extra to install."""
