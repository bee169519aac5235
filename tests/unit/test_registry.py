"""Names that users write: each leads somewhere, and one line makes a new one known everywhere."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest
import torch

from rarely import registry
from rarely.core.errors import InputError
from rarely.core.input_model import InputModel
from rarely.inputs import Box, TruncatedGaussian


@pytest.mark.parametrize("place", [*registry.ESTIMATORS.values(), *registry.KERNELS.values()])
def test_every_method_and_kernel_is_found(place: str) -> None:
    kind = registry.found(place)
    assert is_dataclass(kind)
    kind()  # every field has a default


def test_every_estimator_says_what_it_costs_and_every_setting_belongs_to_one() -> None:
    kinds = [registry.found(place) for place in registry.ESTIMATORS.values()]
    assert all(kind().forecast(-20.0) > 0 for kind in kinds)
    assert registry.SETTINGS.keys() <= {field.name for kind in kinds for field in fields(kind)}


def test_named_input_models() -> None:
    low, high = torch.zeros(2), torch.ones(2)
    uniform, gaussian = registry.make_box_law("uniform"), registry.make_box_law("gaussian:0.1")
    assert uniform is not None
    assert gaussian is not None
    assert isinstance(uniform(low, high), Box)
    made = gaussian(low, high)
    assert isinstance(made, TruncatedGaussian)
    assert float(made.std[0]) == pytest.approx(0.1)
    assert registry.make_box_law("my.module:law") is None
    assert registry.make_box_law("uniform:3") is None
    for text in ("gaussian", "gaussian:", "gaussian:wide", "gaussian:-1", "gaussian:inf"):
        with pytest.raises(InputError, match=r"SIGMA must be a positive number, as in gaussian:0\.1"):
            registry.make_box_law(text)


def corner(low: torch.Tensor, high: torch.Tensor, side: float) -> InputModel:
    return Box(low, low + side * (high - low))


def test_one_line_makes_a_new_input_model_known(monkeypatch: pytest.MonkeyPatch) -> None:
    law = registry.BoxLaw(f"{__name__}:corner", "SIDE", "the lowest SIDE of every input")
    monkeypatch.setitem(registry.INPUT_MODELS, "corner", law)
    make = registry.make_box_law("corner:0.25")
    assert make is not None
    assert make(torch.zeros(2), torch.ones(2)).center.tolist() == [0.125, 0.125]
    assert "corner:SIDE (the lowest SIDE of every input)" in registry.input_model_help()
