"""Tables as pandas frames, for those who have pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rarely.core.errors import MissingExtra


def frame(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """A pandas frame of rows by the names of their columns."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("a frame needs pandas: pip install 'rarely[tables]'") from error
    return pandas.DataFrame(list(rows), columns=None if columns is None else list(columns))
