"""Hugging Face: a model as a network, and a callback for `Trainer` around `rarely.monitor`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rarely.core.errors import InputError, MissingExtra
from rarely.questions.monitor import Monitor, made_by_monitor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtra("transformers is not installed: pip install 'rarely[transformers]'") from error


class Logits(nn.Module):
    """A model of transformers as a network: one tensor in, its logits out. It shares the weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        if not hasattr(model, "main_input_name"):
            raise InputError(
                f"Logits takes a model of transformers, not {type(model).__name__}; any other is a network"
            )
        self.model = model
        self.train(model.training)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(**{self.model.main_input_name: x}).logits
        return logits


class MonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Ask `watch` before the training and after every epoch, and log what it saw where the trainer logs.

        watch = rarely.monitor(Logits(model), problems)
        trainer.add_callback(MonitorCallback(watch, trainer))

    The newest values are also among the metrics of every evaluation: `metric_for_best_model="rarely/log_p_max"` keeps
    the checkpoint that fails most rarely.
    """

    def __init__(self, watch: Monitor, trainer: Any) -> None:
        self.watch, self.trainer = made_by_monitor(watch), trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.on_epoch_end(args, state, control)  # whatever `every` is, the first evaluation has values

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        reading = self.watch(round(state.epoch or 0))
        if reading is not None:
            self.trainer.log(reading.values())

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **_: Any) -> None:
        for reading in self.watch.readings[-1:]:
            metrics.update({f"eval_{name}": value for name, value in reading.values().items()})
