"""Which input model has which tails and which masses of boxes, or Unprovable."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.special import log_ndtr

from rarely.bounds.graph import Unprovable
from rarely.bounds.marginals import CellTails, ClippedTails, OneHotTails, SeveralTails, TruncatedTails, log_mass
from rarely.bounds.measure import GaussianMeasure, Measure, UniformMeasure
from rarely.bounds.operators import EPS
from rarely.bounds.tails import NormalTails, Tails, UniformTails
from rarely.core.input_model import InputModel
from rarely.inputs import Box, Gaussian, GaussianNoise, LpBall, PixelDropout, Tabular, TruncatedGaussian
from rarely.inputs.laws import Choice, Empirical, Fixed, Law, Normal, OneHot, Uniform

_LARGE = 1e100  # beyond it, and below its inverse, squares leave the range of numbers


def _flat(t: Tensor) -> Tensor:
    return t.detach().double().flatten()


def _normal(mean: Tensor, factor: Tensor) -> NormalTails:
    end = torch.full_like(mean, torch.inf)
    return NormalTails(mean, factor, -end, end)


def _log_weights(edges: Tensor) -> Tensor:
    """Of the pieces of a normal between edges, rounded up."""
    ends = torch.tensor([torch.inf], dtype=torch.float64, device=edges.device)
    return log_mass(torch.cat([-ends, _flat(edges)]), torch.cat([_flat(edges), ends]))[1]


def _column(law: Law) -> Tails:
    if isinstance(law, Uniform):
        return UniformTails(_flat(law.low), _flat(law.high))
    if isinstance(law, Normal):
        return _normal(_flat(law.mean), _flat(law.std))
    if isinstance(law, Fixed):
        return UniformTails(_flat(law.value), _flat(law.value))
    if isinstance(law, Empirical):
        knots = _flat(law.knots)
        middle, half = (knots[1:] + knots[:-1]) / 2, (knots[1:] - knots[:-1]) / 2 * (1 + 4 * EPS)
        return CellTails(middle[None], half[None], torch.full_like(middle, -math.log(len(middle)))[None])
    if isinstance(law, Choice):
        values = _flat(law.values)
        return CellTails(values[None], torch.zeros_like(values)[None], _log_weights(law.edges)[None])
    if isinstance(law, OneHot):
        return OneHotTails(_log_weights(law.edges))
    raise Unprovable(f"no cumulant is known for a column of kind {type(law).__name__}")


def tails_of(model: InputModel) -> Tails:
    """The tails of an input model, or Unprovable."""
    tails = _tails_of(model)
    widths = [tails.centre, tails.high - tails.low, *(getattr(tails, name, tails.centre) for name in ("std", "factor"))]
    sizes = torch.cat([width.abs().flatten() for width in widths])
    sizes = sizes[torch.isfinite(sizes) & (sizes > 0)]
    if not bool(((sizes < _LARGE) & (sizes > 1 / _LARGE)).all()):
        raise Unprovable(f"inputs are larger than {_LARGE:g}, or vary by less than {1 / _LARGE:g}")
    return tails


def _tails_of(model: InputModel) -> Tails:
    if isinstance(model, Box) or (isinstance(model, LpBall) and model.norm == math.inf):
        return UniformTails(_flat(model.low), _flat(model.high))
    if isinstance(model, LpBall) and model.norm == 2 and not model.cut:
        return NormalTails.ball(_flat(model.middle), float(model.radius))
    if isinstance(model, Gaussian):
        return _normal(_flat(model.mean), _flat(model.std) if model.independent else model.factor.double())
    if isinstance(model, TruncatedGaussian):
        return TruncatedTails(*map(_flat, (model.mean, model.std, model.low, model.high)))
    if isinstance(model, GaussianNoise) and bool((model.std > 0).all()):
        return ClippedTails(*map(_flat, (model.image, model.std, model.low, model.high)))
    if isinstance(model, PixelDropout) and model.edge.shape == model.image.shape:
        sides = torch.stack([_flat(model.image), _flat(model.value)], 1)
        edge = _flat(model.edge)
        weights = torch.stack([log_ndtr(edge), log_ndtr(-edge)], 1) + 1e-13 * (1 + edge.square()).unsqueeze(1)
        return CellTails(sides, torch.zeros_like(sides), weights)
    if isinstance(model, Tabular) and bool((model.factor == torch.eye(len(model.factor))).all()):
        return SeveralTails(tuple(_column(law) for law in model.laws))
    raise Unprovable(f"no cumulant is known for inputs of kind {type(model).__name__}")


def measure_of(model: InputModel) -> Measure:
    """The masses of boxes under an input model, or Unprovable."""
    if isinstance(model, Box) or (isinstance(model, LpBall) and model.norm == math.inf):
        return UniformMeasure(model.low.double(), model.high.double())
    if isinstance(model, Gaussian) and model.independent and bool((model.std > 0).all()):
        return GaussianMeasure(model.mean.double(), model.std.double()).usable()
    if isinstance(model, TruncatedGaussian):
        ends = model.low.double(), model.high.double()
        return GaussianMeasure(model.mean.double(), model.std.double(), *ends).usable()
    raise Unprovable(f"no exact masses of boxes are known for inputs of kind {type(model).__name__}")
