"""Violating inputs for training: a few for every image, spread over what violates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rarely.core.batch import Batch
from rarely.core.errors import InputError
from rarely.core.execution import Execution
from rarely.core.input_model import ArrayLike, array, tensor
from rarely.core.network import Network
from rarely.core.problem import Problem
from rarely.core.properties import Misclassification
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.inputs import LpBall
from rarely.methods.islands import Island
from rarely.methods.splitting import Splitting
from rarely.questions.estimate import finish

_NUMBERS = 2**25  # of all particles that are alive at once: 128 MB


def augment(
    network: Any,
    images: ArrayLike,
    labels: ArrayLike,
    around: float | Callable[[Tensor], Any],
    *,
    per_image: int = 4,
    particles: int = 50,
    log_p_min: float = math.log(1e-10),
    clip: tuple[float, float] | None = (0.0, 1.0),
    seed: int = 0,
    device: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Inputs (n, *event) that the network gets wrong, with the labels (n,) they should have, for training.

    `around` is the radius of an l-infinity ball around every image, cut to `clip`, or a function that makes the input
    model of an image. Each of `per_image` inputs of an image comes from a small splitting population of its own: they
    are independent draws from what violates (as far as the populations mix), not the worst case. Images whose
    violations are rarer than `log_p_min` yield none, and now and then a population dies out. A module keeps its
    training mode; inside it is run in eval mode.
    """
    pictures, targets = tensor(images, "images"), array(labels, "labels").long()
    home = images.device if isinstance(images, Tensor) else pictures.device
    if pictures.ndim < 2 or targets.shape != pictures.shape[:1]:
        raise InputError(
            f"images must be (n, *event) with labels (n,), got {tuple(pictures.shape)} and {tuple(targets.shape)}"
        )
    if per_image < 1:
        raise InputError(f"per_image must be at least 1, got {per_image}")
    splitting = Splitting(particles, 0.1, 1, log_p_min=log_p_min, islands=per_image, keep="all")
    execution = Execution(device=device)
    rng = Rng(seed, execution.resolve())
    group = max(1, _NUMBERS // (per_image * particles * pictures[0].numel()))
    found: list[Tensor] = []
    owners: list[Tensor] = []
    with _evaluating(network), execution.running():
        for start in range(0, len(pictures), group):
            problems = [
                Problem(network, Misclassification(int(y)), _model(x, around, clip))
                for x, y in zip(pictures[start : start + group], targets[start : start + group], strict=True)
            ]
            for batch in execution.place(problems, Spend(len(problems))):
                own = rng.at(batch.device)
                populations = finish(splitting.populations(batch, own))
                x, rows = _one_of_each(batch, populations, own)
                found.append(x.to(home, pictures.dtype))
                owners.append(start + batch.rows[rows])
    owner, order = torch.cat(owners).sort(stable=True)
    return torch.cat(found)[order], targets[owner.to(targets.device)]


def _model(image: Tensor, around: float | Callable[[Tensor], Any], clip: tuple[float, float] | None) -> Any:
    return around(image) if callable(around) else LpBall(image, around, clip=clip)


@torch.no_grad()
def _one_of_each(batch: Batch, populations: list[list[Island]], rng: Rng) -> tuple[Tensor, Tensor]:
    """A random violating particle of every island that has one: inputs (n, *event), and rows of the batch (n,)."""
    arrived = [
        (row, island.survivors)
        for row, islands in enumerate(populations)
        for island in islands
        if island.survivors is not None and len(island.survivors)
    ]
    if not arrived:
        return torch.zeros(0, *batch.inputs.event_shape), torch.zeros(0, dtype=torch.long)
    chance = rng.uniform((len(arrived),)).tolist()
    chosen = torch.stack(
        [particles[int(u * len(particles))] for u, (_, particles) in zip(chance, arrived, strict=True)]
    )
    rows = torch.tensor([row for row, _ in arrived])
    part = batch.take(rows)
    x = chosen.unsqueeze(1)
    if batch.inputs.normal_dim is not None:
        x = part.inputs.from_normal(x)
    kept = (part.score(x) >= 0).squeeze(1)  # replayed: another batch may round a score of 0 the other way
    return x[kept].squeeze(1), rows[kept.cpu()]


@contextmanager
def _evaluating(network: Any) -> Iterator[None]:
    if not isinstance(network, nn.Module):
        yield
        return
    with Network(network, True, torch.float32, network).evaluating():
        yield
