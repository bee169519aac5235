"""A Lightning callback: `rarely.monitor` at the end of every epoch, with its values among the trainer's own metrics."""

from __future__ import annotations

from typing import Any

from rarely.core.errors import MissingExtra
from rarely.questions.monitor import Monitor, made_by_monitor

try:
    try:
        from lightning.pytorch import Callback
    except ImportError:  # the same code under its other name
        from pytorch_lightning import Callback
except ImportError as error:
    raise MissingExtra("Lightning is not installed: pip install 'rarely[lightning]'") from error


class MonitorCallback(Callback):  # type: ignore[misc]
    """Ask `watch` after every training epoch, and log what it saw.

        watch = rarely.monitor(model, problems, every=5)
        Trainer(callbacks=[MonitorCallback(watch), ModelCheckpoint(monitor="rarely/log_p_max")])

    Loggers, checkpoints and early stopping of the trainer see the values; name them after this callback. Every process
    of a distributed run estimates, with the same seed and weights, so that all of them log the same.
    """

    def __init__(self, watch: Monitor) -> None:
        self.watch = made_by_monitor(watch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        reading = self.watch(trainer.current_epoch)
        if reading is not None:
            pl_module.log_dict(reading.values(), sync_dist=True)
