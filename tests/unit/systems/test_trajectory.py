"""A witness replayed: its signals, its margins and its figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rarely
from rarely.core.errors import InputError
from rarely.systems import System, always, eventually, signal

FORMULA = always(abs(signal("place")) < 0.4) & eventually(signal("speed") < 0.5, 1, 2)


def test_a_witness_replays_as_it_was_scored(pushed: System) -> None:
    problem = pushed.problem(FORMULA)
    found = rarely.estimate(problem, max_evaluations=5000).witnesses
    assert len(found)
    for x, score in zip(found.inputs[:5], found.scores[:5], strict=True):
        trajectory = pushed.replay(x, FORMULA)
        assert trajectory.robustness == pytest.approx(-float(score), abs=1e-5)
        assert trajectory.robustness <= 0


def test_signals_have_names_and_times(pushed: System) -> None:
    x = torch.arange(12) / 100
    trajectory = pushed.replay(x, FORMULA)
    assert trajectory.times.tolist() == [0.5 * k for k in range(11)]
    assert trajectory.states.shape == (11, 2)
    assert trajectory.actions.shape == (10, 1)
    torch.testing.assert_close(trajectory.disturbances, x[2:].unsqueeze(1))
    torch.testing.assert_close(trajectory["place"], trajectory.states[:, 0])
    torch.testing.assert_close(trajectory["push"][:-1], trajectory.actions[:, 0])


def test_margins_follow_the_parts_of_the_formula(pushed: System) -> None:
    trajectory = pushed.replay(torch.zeros(12), FORMULA)
    assert list(trajectory.margins) == ["abs(place) < 0.4", "speed < 0.5"]
    assert trajectory.margins["abs(place) < 0.4"].tolist() == pytest.approx([0.4] * 11)
    assert trajectory.robustness == pytest.approx(0.4)
    alone = pushed.replay(torch.zeros(12), signal("place") < 0.1)
    assert list(alone.margins) == ["place < 0.1"]


def test_figures_show_every_signal_and_the_verdict(pushed: System, tmp_path: Path) -> None:
    path = tmp_path / "drive.svg"
    figure = pushed.replay(torch.full((12,), 0.2), FORMULA).plot(path)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["state", "push", "wind", "margin"]
    drawn = path.read_text()
    assert "breaks always(abs(place) &lt; 0.4)" in drawn.replace("\n", " ") or "breaks" in drawn
    assert len(pushed.replay(torch.zeros(12)).plot().axes) == 3


def test_signals_of_other_sizes_get_axes_of_their_own() -> None:
    wide = rarely.systems.closed_loop(
        lambda s, w: s * w, initial=[1.0, 1e5], disturbance=rarely.Gaussian([1.0], 0.1), steps=3, states=["m", "Pa"]
    )
    assert [axes.get_ylabel() for axes in wide.replay(torch.tensor([1.1, 0.9, 1.2])).plot().axes] == [
        "m",
        "Pa",
        "disturbance",
    ]


def test_signals_that_never_change_are_not_drawn(pushed: System) -> None:
    assert [axes.get_ylabel() for axes in pushed.replay(torch.zeros(12)).plot().axes] == ["place", "push", "wind"]


def test_what_is_wrong_is_said(pushed: System, tmp_path: Path) -> None:
    trajectory = pushed.replay(torch.zeros(12))
    with pytest.raises(InputError, match="there is no signal 'height'"):
        trajectory["height"]
    with pytest.raises(InputError, match="without a formula"):
        _ = trajectory.robustness
    with pytest.raises(InputError, match="there are no pictures"):
        trajectory.film()
    with pytest.raises(InputError, match="draws no pictures"):
        pushed.replay(torch.zeros(12), pictures=True)
    with pytest.raises(InputError, match=r"one input has shape \(12,\), and this has \(1, 12\)"):
        pushed.replay(torch.zeros(1, 12))
    with pytest.raises(InputError, match="a figure is written as"):
        trajectory.plot(tmp_path / "drive.txt")


def test_the_signals_are_numbers_also_without_a_formula(pushed: System) -> None:
    assert np.isfinite(pushed.replay(torch.zeros(12)).signals.numpy()).all()
