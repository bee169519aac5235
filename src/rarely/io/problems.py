"""`load_problem`: a network file and a property file, or one `.rlv`, as a Problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import FormatError, InputError
from rarely.core.input_model import Shape
from rarely.core.problem import Problem
from rarely.core.properties import LinearConstraint, Property, Within
from rarely.inputs import Constrained, InputModel, Mixture, adapt_inputs
from rarely.io.files import is_file, is_folder
from rarely.io.formats.rlv import read_rlv
from rarely.io.formats.specification import Polytope, PropertyCase, Specification
from rarely.io.formats.vnnlib import read_vnnlib
from rarely.io.imports import import_object
from rarely.io.networks import load_network
from rarely.io.onnx.model import split_output
from rarely.registry import input_model_names, make_box_law

MakeInputs = Callable[[Tensor, Tensor], InputModel]


def load_problem(
    path: str | Path,
    property: str | Path | None = None,
    *,
    input_model: str | None = None,
    architecture: str | None = None,
    trust_pickle: bool = False,
    name: str = "",
) -> Problem:
    """The problem of a network file with a `.vnnlib` file, or of one `.rlv` file that holds both.

    `input_model` says how inputs fall in the property's box: None for uniform; "gaussian:SIGMA" for a normal law of
    standard deviation SIGMA, in units of the network's inputs, centred in the box and truncated to it;
    "module:attribute" for a Python object, either an input model or a function (low, high) -> input model.
    `architecture` and `trust_pickle` are those of `load_network`. Problems of one network file share the network, so
    that a list of them runs as one batch.
    """
    network, specification = load_pair(path, property, architecture=architecture, trust_pickle=trust_pickle)
    return problem_from(network, specification, input_model=input_model, name=name)


def load_pair(
    path: str | Path,
    property: str | Path | None = None,
    *,
    architecture: str | None = None,
    trust_pickle: bool = False,
) -> tuple[Any, Specification]:
    """The network and what its property file says."""
    if is_rlv(path):
        if property is not None:
            raise InputError(f"{path} holds its own property; leave {property} away")
        both = read_rlv(path)
        return both.network, both.specification
    if property is None:
        raise InputError(f"{path} needs a property file (.vnnlib) beside it; only .rlv files hold both")
    specification = read_vnnlib(property)
    name, output = split_output(path)
    file = Path(name)
    changed = file.stat().st_mtime_ns if is_file(file) else 0
    where = str(file.resolve()) + (f":{output}" if output else "") if is_file(file) else str(path)
    return _shared_network(where, changed, architecture, trust_pickle), specification


def is_rlv(path: str | Path) -> bool:
    return str(path).lower().endswith((".rlv", ".rlv.gz"))


def rlv_files(path: Path) -> list[Path]:
    """Those of a folder, or the file itself."""
    files = sorted(file for file in path.iterdir() if is_rlv(file)) if is_folder(path) else [path]
    if not files:
        raise InputError(f"the folder {path} holds no .rlv file")
    return files


@lru_cache(maxsize=16)
def _shared_network(path: str, _changed: int, architecture: str | None, trust_pickle: bool) -> Any:
    return load_network(path, architecture=architecture, trust_pickle=trust_pickle)


def problem_from(
    network: Any, specification: Specification, *, input_model: str | None = None, name: str = ""
) -> Problem:
    """The problem that a specification poses for a network: uniform inputs in its regions unless told otherwise."""
    shape = _fitting_shape(network, specification)
    make = _input_model(input_model or "uniform")
    regions = [_region(case, shape, make, specification.source) for case in specification.cases]
    inputs = _together(regions)
    return Problem(network, _property(specification.cases, regions, _dtype(network)), inputs, name)


def problems_from(network: Any, specification: Specification) -> list[Problem]:
    """A problem for each region of a specification: it is violated when any of them is."""
    return [problem_from(network, replace(specification, cases=(case,))) for case in specification.cases]


def _dtype(network: Any) -> torch.dtype:
    parameters = network.parameters() if isinstance(network, torch.nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)


def _fitting_shape(network: Any, specification: Specification) -> Shape:
    """The shape of one input, after checking that the files speak of the same network."""
    found: dict[str, Shape | None] = {}
    for side, declared in (("input", specification.n_inputs), ("output", specification.n_outputs)):
        shape = getattr(network, f"{side}_shape", None)
        found[side] = None if shape is None else tuple(shape)
        if shape is not None and math.prod(shape) != declared:
            raise FormatError(
                specification.source,
                f"it speaks of {declared} {side}s, but the network has {math.prod(shape)} (shape {tuple(shape)})",
            )
    return found["input"] or (specification.n_inputs,)


def _input_model(text: str) -> MakeInputs:
    named = make_box_law(text)
    if named is not None:
        return named
    if not text.partition(":")[2]:
        raise InputError(f"input model {text!r} is none of {', '.join(input_model_names())} and module:attribute")
    target = import_object(text)
    if hasattr(target, "sample") and not isinstance(target, type):
        return lambda low, high: adapt_inputs(target)
    if not callable(target):
        raise InputError(f"{text} is {type(target).__name__}, not an input model or a function of (low, high)")
    return lambda low, high: adapt_inputs(target(low, high))


@dataclass(frozen=True)
class _Region:
    """The inputs of one case."""

    model: InputModel
    low: Tensor  # (*event)
    high: Tensor
    share: float  # of the box that linear constraints leave

    @property
    def bounded(self) -> bool:
        """Whether the model never leaves the box, so that the property need not ask."""
        support = self.model.support
        return support is not None and bool((support[0] >= self.low).all() and (support[1] <= self.high).all())


def _region(case: PropertyCase, shape: Shape, make: MakeInputs, source: str) -> _Region:
    low, high = (torch.from_numpy(bound).reshape(shape) for bound in (case.low, case.high))
    model = make(low, high)
    if tuple(model.event_shape) != shape:
        raise InputError(f"the input model has shape {tuple(model.event_shape)}, the network takes {shape}")
    share = 1.0
    if case.input_constraints is not None:
        model = Constrained.to(model, case.input_constraints.A, case.input_constraints.b, source)
        share = float(model.share)
    return _Region(model, low, high, share)


def _together(regions: Sequence[_Region]) -> InputModel:
    models = [region.model for region in regions]
    return models[0] if len(models) == 1 else Mixture(models, _weights(regions))


def _weights(regions: Sequence[_Region]) -> list[float]:
    """Relative volumes. A region that is flat where another is not would get weight 0 and never be looked at."""
    widths = [(region.high - region.low) for region in regions]
    if any(bool(((width > 0) != (widths[0] > 0)).any()) for width in widths):
        return [1.0] * len(regions)
    volumes = [
        float(torch.log(width[width > 0]).sum()) + math.log(region.share)
        for width, region in zip(widths, regions, strict=True)
    ]
    weights = [math.exp(volume - max(volumes)) for volume in volumes]
    return weights if min(weights) > 1e-30 else [1.0] * len(regions)


def _property(cases: Sequence[PropertyCase], regions: Sequence[_Region], dtype: torch.dtype) -> Property:
    outputs = [
        LinearConstraint.any_of([(torch.from_numpy(p.A), torch.from_numpy(p.b)) for p in case.outputs]).as_written(
            dtype, [torch.from_numpy(p.strict) for p in case.outputs]
        )
        for case in cases
    ]
    same = all(_equal(case.outputs, cases[0].outputs) for case in cases)
    if same and all(region.bounded for region in regions):
        return outputs[0]
    return _any([Within(region.low, region.high) & bad for region, bad in zip(regions, outputs, strict=True)])


def _any(parts: Sequence[Property]) -> Property:
    """Their disjunction, halved again and again: one part after the other would nest as deep as there are regions."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    whole: Property = _any(parts[:half]) | _any(parts[half:])  # type: ignore[operator]
    return whole


def _equal(left: Sequence[Polytope], right: Sequence[Polytope]) -> bool:
    return len(left) == len(right) and all(
        all(np.array_equal(getattr(p, name), getattr(q, name)) for name in ("A", "b", "strict"))
        for p, q in zip(left, right, strict=True)
    )
