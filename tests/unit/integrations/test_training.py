"""The callbacks for Lightning and transformers, in real trainings of a few steps."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rarely
from rarely.core.errors import InputError, MissingExtra


def data() -> tuple[Tensor, Tensor]:
    """Points on a plane, and the side of a line they lie on."""
    x = torch.randn(64, 2)
    return x, (x[:, 0] > 0).long()


def problem(network: nn.Module) -> rarely.Problem:
    """Near a point of class 1; what the network answers there changes while it is trained."""
    inputs = rarely.Gaussian(torch.tensor([1.5, 0.0]), 0.5)
    return rarely.Problem(copy.deepcopy(network).eval(), rarely.Misclassification(1), inputs)


@pytest.mark.filterwarnings("default")  # of Lightning itself: too few batches, too few workers, ...
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(package: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    pl = importlib.import_module(package)
    from rarely.integrations.lightning import MonitorCallback

    class Line(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    line = Line()
    watch = rarely.monitor(line, [problem(line)], every=2)
    best = pl.callbacks.ModelCheckpoint(tmp_path, monitor="rarely/log_p_max")
    trainer = pl.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[MonitorCallback(watch), best],
    )  # fmt: skip
    trainer.fit(line, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16))

    assert [reading.step for reading in watch.readings] == [0, 2, 4]
    values = [reading.values()["rarely/log_p_max"] for reading in watch.readings]
    assert trainer.callback_metrics["rarely/log_p_max"] == pytest.approx(values[-1])
    assert best.best_model_score == pytest.approx(min(values))
    assert line.training  # as it was
    # The weights of the moment were asked about: those of the end are the last reading, those of the start are not.
    (now,) = rarely.monitor(line, watch.problems)(0).estimates  # type: ignore[union-attr]
    assert now.log_prob == watch.readings[-1].estimates[0].log_prob != watch.readings[0].estimates[0].log_prob


@pytest.mark.filterwarnings("default")
def test_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

    from rarely.integrations.transformers import Logits, MonitorCallback

    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=4, patch_size=2,
        num_channels=1, num_labels=2,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    images = torch.rand(32, 1, 4, 4) + torch.tensor([0.0, 1.0]).repeat(16).view(32, 1, 1, 1)
    rows = [{"pixel_values": image, "labels": i % 2} for i, image in enumerate(images)]
    network = Logits(model)
    assert network.training == model.training  # else a problem would be told that it is not in eval mode
    assert torch.equal(network(images), model(pixel_values=images).logits)
    inputs = rarely.Gaussian(images[1], 0.3)
    watch = rarely.monitor(network, [rarely.Problem(network.eval(), rarely.Misclassification(1), inputs)], every=2)
    settings = TrainingArguments(
        str(tmp_path), num_train_epochs=3, learning_rate=0.02, eval_strategy="epoch", save_strategy="epoch",
        metric_for_best_model="rarely/log_p_max", greater_is_better=False, report_to=[], disable_tqdm=True,
        use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=rows, eval_dataset=rows)
    trainer.add_callback(MonitorCallback(watch, trainer))
    trainer.train()

    assert [reading.step for reading in watch.readings] == [0, 2]
    values = [reading.values()["rarely/log_p_max"] for reading in watch.readings]
    assert len(set(values)) == 2
    logged = [entry["rarely/log_p_max"] for entry in trainer.state.log_history if "rarely/log_p_max" in entry]
    assert logged == values
    assert trainer.state.best_metric == min(values)

    with pytest.raises(InputError, match="takes what"):
        MonitorCallback(watch.problems, trainer)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not Linear"):
        Logits(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("module", "packages", "told"),
    [
        ("lightning", ["lightning", "pytorch_lightning"], r"rarely\[lightning\]"),
        ("transformers", ["transformers"], r"rarely\[transformers\]"),
        ("verona", ["ada_verona"], "integrations.md"),
    ],
)
def test_a_missing_package_is_told(
    module: str, packages: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in packages:
        for name in [package, *[name for name in sys.modules if name.startswith(f"{package}.")]]:
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"rarely.integrations.{module}", raising=False)
    with pytest.raises(MissingExtra, match=told):
        importlib.import_module(f"rarely.integrations.{module}")


@pytest.mark.filterwarnings("default")  # VERONA names what else could be installed
def test_verona(tmp_path: Path) -> None:
    verona: Any = pytest.importorskip("ada_verona")
    from rarely.demo import assets, images
    from rarely.integrations.verona import ProbabilityModule

    pictures, labels, names = images()
    context = verona.VerificationContext(
        verona.ONNXNetwork(assets() / "signs.onnx"),
        verona.DataPoint("square", int(labels[2]), torch.from_numpy(pictures[2])),
        tmp_path,
        verona.One2AnyPropertyGenerator(number_classes=len(names)),
    )
    search = verona.BinarySearchEpsilonValueEstimator([0.05, 0.1, 0.2, 0.3], ProbabilityModule(1e-3))
    found = search.compute_epsilon_value(context)
    assert (found.epsilon, found.smallest_sat_value) == (0.1, 0.2)  # p is 2e-7 and 0.02 there
