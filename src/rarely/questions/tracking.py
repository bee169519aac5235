"""Loggers for `rarely.monitor` and for `Campaign.run`: any function of a step and named values is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rarely.core.errors import MissingExtra
from rarely.questions.monitor import Logger


def to_tensorboard(where: str | Path | Any) -> Logger:
    """Scalars for TensorBoard: into a folder, or by a `SummaryWriter` that you have."""
    writer: Any = where
    if isinstance(where, str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("TensorBoard is not installed: pip install 'rarely[tracking]'") from error
        writer = SummaryWriter(str(where))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def to_mlflow() -> Logger:
    """Metrics of the active MLflow run; one is started if there is none."""
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtra("MLflow is not installed: pip install 'rarely[tracking]'") from error

    def log(step: int, values: Mapping[str, float]) -> None:
        mlflow.log_metrics(dict(values), step=step)

    return log
