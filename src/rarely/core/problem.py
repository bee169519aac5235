"""A problem: network, property, input model, checked on a few draws before any long work."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rarely.core.errors import InputError, NetworkError
from rarely.core.fitted import as_function, class_names, labelled
from rarely.core.input_model import InputModel, adapt_inputs
from rarely.core.network import Network, adapt_network
from rarely.core.parts import redrawn
from rarely.core.properties import Misclassification, Property, adapt_property, stack_properties
from rarely.core.rng import Rng
from rarely.core.stacking import place
from rarely.core.words import inputs_in_words, property_in_words

_PROBE = 4  # inputs drawn to check a problem: a call may take a second


@dataclass(frozen=True, init=False)
class Problem:
    """What is the probability that `property` is violated, score >= 0, for inputs drawn from `inputs`?

    `network` is a torch module, any function of a batch, of tensors or numpy arrays, or a fitted model in the manner of
    scikit-learn. `property` is one of the library's or a function (x, y) -> scores (n,). `inputs` is an input model, a
    `torch.distributions` object, or any object with `sample` and `log_density` or `from_normal`. Shapes, labels and NaN
    are checked at once, on a few draws.
    """

    network: Any  # as the user gave it, fitted models as functions: the same object shares a batch
    property: Property
    inputs: InputModel
    name: str
    adapted: Network = field(repr=False)
    outputs: int = field(repr=False)  # numbers that the network gives for one input

    def __init__(self, network: Any, property: Any, inputs: Any, name: str = "") -> None:
        if isinstance(inputs, Property) and not isinstance(property, Property):
            raise InputError("property and inputs are swapped: it is Problem(network, property, inputs)")
        model = adapt_inputs(inputs)
        probe = model.sample(_PROBE, Rng(0))
        _check_support(model, probe)
        network = as_function(network, model)
        adapted, y = adapt_network(network, probe if _keeps(model, probe) else probe.to(torch.float32))
        _check_outputs(y)
        prop = labelled(adapt_property(property, y.dtype), class_names(network))
        if isinstance(prop, Misclassification) and prop.label is None:
            answer = _call(adapted, adapted.taken(model.center.unsqueeze(0))).flatten(1)
            prop = Misclassification(int(answer.argmax(1)))
        fields = {"network": network, "property": prop, "inputs": model, "name": str(name), "adapted": adapted}
        for name_, value in {**fields, "outputs": math.prod(y.shape[1:])}.items():
            object.__setattr__(self, name_, value)
        for name_, label in _labels(prop):
            if label >= self.outputs:
                raise InputError(f"{name_} {label} is out of range: the network has {self.outputs} outputs")
        if bool(torch.isnan(self._scored(adapted.taken(probe), y)).any()):
            raise InputError("the property's score is NaN on inputs drawn from the input model")

    def _repr_html_(self) -> str:
        from rarely.display import html
        from rarely.display.witnesses import pictures_html

        named = [("problem", self.name)] if self.name else []
        try:
            middle = pictures_html([self.inputs.center.double().numpy()], ["the centre of the inputs"])
        except InputError:  # some laws have no centre
            middle = ""
        return html.block(html.facts([*named, *self.in_words().items()]), middle)

    def __repr__(self) -> str:
        return f"<Problem {self}>"

    def __str__(self) -> str:
        told = "; ".join(f"{label}: {value}" for label, value in self.in_words().items())
        return f"{self.name}; {told}" if self.name else told

    def in_words(self) -> dict[str, str]:
        """The network, what counts as a violation, and how inputs fall."""
        shape = " × ".join(map(str, self.inputs.event_shape)) or "1"
        dtype = str(self.adapted.dtype).removeprefix("torch.")
        kind = type(self.network).__name__ if self.adapted.module is not None else "function"
        return {
            "network": f"{kind}, {shape} inputs, {self.outputs:,} output{'s' * (self.outputs != 1)}, in {dtype}",
            "violation": property_in_words(self.property),
            "inputs": inputs_in_words(self.inputs),
        }

    def drawn_from(self, inputs: InputModel) -> Problem:
        """The same question for other inputs of the same shape, which are not checked again."""
        other = copy.copy(self)
        object.__setattr__(other, "inputs", inputs)
        return other

    def adapted_as(self, network: Network) -> Problem:
        """The same question of a network that gives the same answers in another way."""
        other = copy.copy(self)
        object.__setattr__(other, "adapted", network)
        return other

    def score(self, x: Any) -> Tensor:
        """Scores (n,) of inputs (n, *event) in the network's own precision: >= 0 is a violation."""
        return self.answered(x)[1]

    def answered(self, x: Any) -> tuple[Tensor, Tensor]:
        """What the network answers to inputs (n, *event) in its own precision, (n, *out), and their scores (n,)."""
        batch = torch.as_tensor(x)
        if tuple(batch.shape[1:]) != tuple(self.inputs.event_shape):
            raise InputError(f"inputs have shape {tuple(batch.shape)}, expected (n, {self.inputs.event_shape})")
        batch = self.adapted.taken(batch)
        y = _call(self.adapted, batch)
        return y, self._scored(batch, y)

    def _scored(self, x: Tensor, y: Tensor) -> Tensor:
        prop = place(stack_properties([self.property]), x.device, self.adapted.dtype)
        score = prop.score(x.unsqueeze(0), y.unsqueeze(0))
        if score.shape != (1, len(x)):
            raise InputError(f"the property gives scores of shape {tuple(score.shape[1:])} for {len(x)} inputs")
        return score[0]


def _keeps(model: InputModel, probe: Tensor) -> bool:
    """Whether a network takes what is drawn as it is: words by their numbers, or a usual precision."""
    return bool(getattr(model, "whole", False)) or probe.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _labels(prop: object) -> Iterator[tuple[str, int]]:
    """The labels that a property names, through `&` and `|`."""
    for name in ("label", "target"):
        label = getattr(prop, name, None)
        if isinstance(label, Tensor):
            yield name, int(label)
    for part in ("left", "right", "whole"):
        if hasattr(prop, part):
            yield from _labels(getattr(prop, part))


def _check_outputs(y: Tensor) -> None:
    if tuple(y.shape[:1]) != (_PROBE,):
        raise NetworkError(
            f"the network turned {_PROBE} inputs into outputs of shape {tuple(y.shape)}; "
            "its first dimension must be the batch"
        )
    if not bool(torch.isfinite(y).all()):
        raise NetworkError("the network returns NaN or inf on inputs drawn from the input model")


def _check_support(model: InputModel, probe: Tensor) -> None:
    if tuple(probe.shape) != (_PROBE, *model.event_shape):
        raise InputError(f"the input model drew {tuple(probe.shape)}, expected {(_PROBE, *model.event_shape)}")
    if not bool(torch.isfinite(probe).all()):
        raise InputError("the input model draws NaN or inf")
    if model.support is not None:
        low, high = model.support
        if bool(((probe < low) | (probe > high)).any()):
            raise InputError("the input model draws inputs outside its own support; check its sample and support")
    moved = redrawn(model) and not getattr(model, "dense", True)
    if model.normal_dim is None and not moved:  # then the density is what the random walk relies on
        density = model.log_density(probe)
        if bool(torch.isnan(density).any() | (density == -torch.inf).any()):
            raise InputError(
                "the input model draws inputs whose log_density is -inf or NaN: its samples fall outside its support"
            )


@torch.no_grad()
def _call(network: Network, x: Tensor) -> Tensor:
    with network.evaluating():
        return network.call(x)
