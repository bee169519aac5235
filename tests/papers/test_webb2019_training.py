"""The image networks: their sizes, their training, their weights as files, and the order of the work."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from papers.webb2019 import common, nets
from papers.webb2019.convergence import COLUMNS, UNIT, Study, Unit, expected_calls, units, worthwhile
from papers.webb2019.convergence_figures import curve, largest
from papers.webb2019.data import Images, load
from papers.webb2019.robust import radius_at, read_snapshots, spread, write_snapshots
from papers.webb2019.train import DENSE, Recipe, accuracy, augmented, dense_network, fit, seeded


def test_sizes_are_those_of_the_paper() -> None:
    assert nets.parameters(nets.dense_net()) == 1_901_930  # "approximately 2e6"
    assert nets.parameters(nets.wong_kolter()) == 166_406
    assert nets.dense_net(classes=100)(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def striped(n: int) -> Images:
    """Two classes that a network can learn: bright rows above or below."""
    labels = torch.arange(n) % 2
    pixels = torch.randint(0, 100, (n, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pixels[labels == 0, :, :4] += 150
    pixels[labels == 1, :, 4:] += 150
    return Images(pixels, labels)


def test_training_learns_and_half_precision_keeps_it(tmp_path: Path) -> None:
    images = striped(200)
    network = seeded(lambda: nets.perceptron(64, classes=2, hidden=(16, 16)))
    losses: list[float] = []
    fit(network, images, Recipe(epochs=5, rate=0.05, batch=20), after_epoch=lambda e: losses.append(e.loss))
    assert losses[-1] < 0.1 * losses[0]
    nets.save_weights(network, tmp_path / "w.safetensors")
    again = nets.load_weights(tmp_path / "w.safetensors", lambda: nets.perceptron(64, classes=2, hidden=(16, 16)))
    assert accuracy(again, images) == 1.0
    assert accuracy(seeded(lambda: nets.perceptron(64, classes=2, hidden=(16, 16)), seed=1), images) < 1.0


def test_shifted_images_are_pieces_of_the_padded_ones() -> None:
    x = torch.arange(2 * 64, dtype=torch.float32).reshape(2, 1, 8, 8)
    padded = torch.nn.functional.pad(x, (2,) * 4, mode="reflect")
    pieces = [padded[:, :, i : i + 8, j : j + 8] for i in range(5) for j in range(5)]
    pieces += [piece.flip(3) for piece in pieces]
    out = augmented(x, torch.Generator().manual_seed(0), most=2)
    assert all(any(torch.equal(out[k], piece[k]) for piece in pieces) for k in range(2))
    assert not torch.equal(out, x)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_a_dense_net_as_a_function_is_the_network(dtype: torch.dtype, tolerance: float) -> None:
    network = seeded(lambda: nets.dense_net(10, 6)).eval()
    x = torch.rand((64, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    called = nets.dense_net_on_device(network, torch.device("cpu"), dtype)(x)
    with torch.no_grad():
        assert float((called - network(x)).abs().max()) < tolerance
    assert called.dtype == torch.float32
    assert len(called[:, 0].unique()) > 60  # eight bits at the output would leave a few


def test_snapshots_come_back_in_their_order(tmp_path: Path) -> None:
    networks = [seeded(nets.wong_kolter, seed) for seed in range(3)]
    write_snapshots(tmp_path / "s.safetensors", [{k: v.half() for k, v in n.state_dict().items()} for n in networks])
    x = torch.rand((2, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    for stored, network in zip(read_snapshots(tmp_path / "s.safetensors"), networks, strict=True):
        assert torch.allclose(stored(x), network(x), atol=2e-3)
    assert not torch.allclose(networks[0](x), networks[1](x), atol=2e-3)


def test_the_radius_of_training_rises_over_the_first_half() -> None:
    assert [radius_at(at) for at in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.01, 0.055, 0.1, 0.1])


def test_looks_are_spread_whenever_they_end() -> None:
    assert spread(100, 5)[:5] == [0, 100, 50, 25, 75]
    assert sorted(spread(100, 5)) == list(range(0, 101, 5))
    assert spread(1, 1) == [0, 1]
    assert sorted(spread(12, 5)) == [0, 5, 12]
    assert sorted(spread(3, 5)) == [0, 3]


def test_every_step_count_runs_once_before_any_repeat_and_other_images_after_three() -> None:
    study = Study("mnist", (0.1,), (10, 20), images=3, repeats=5, plain=1000)
    order = [(u.images, u.method, u.steps, u.repeat) for u in units(study, shown=1)]
    assert order[:3] == [((1,), "plain", 0, 0), ((1,), "paper", 10, 0), ((1,), "paper", 20, 0)]
    assert [u[3] for u in order[3:9]] == [1, 1, 1, 2, 2, 2]
    assert order[9:11] == [((0,), "paper", 20, 0), ((2,), "paper", 20, 0)]
    assert [u[3] for u in order[11:]] == [3, 3, 3, 4, 4, 4]
    few = [(u.images, u.repeat) for u in units(replace(study, images=2, repeats=1), shown=0)]
    assert few == [((0,), 0), ((1,), 0), ((0,), 0), ((0,), 0)]


def test_the_cost_of_a_unit_is_known_before_it_runs(tmp_path: Path) -> None:
    """N for the first population, N M for each further level; what is too rare costs nothing, as it is not run."""
    table = common.Table(tmp_path / "t.csv", COLUMNS, UNIT)
    first = {"dataset": "mnist", "method": "auto", "steps": 0, "particles": 0, "repeat": 0, "outcome": "violated"}
    rest = {"std": 0.1, "evaluations": 1, "gradients": 0, "seconds": 1.0}
    for eps, log_prob in ((0.1, -70.0), (0.2, -9.5), (0.3, -0.5)):
        table.add([{**first, **rest, "image": 4, "eps": eps, "log_prob": log_prob}])
    study = Study("mnist", (0.1, 0.2, 0.3), (10, 20), images=1, particles=100)
    assert expected_calls(table, study, Unit((0,), "paper", 20), [4]) == (100 + 4 * 20 * 100) + 100
    # Of plain Monte Carlo a round of 1e8 samples where ten hits are expected of 5e9 and 10000 are not there yet.
    assert worthwhile(table, study, Unit((0,), "plain"), [4]) == [(4, 0.2), (4, 0.3)]
    assert worthwhile(table, study, Unit((0,), "plain", repeat=1), [4]) == [(4, 0.2)]
    assert worthwhile(table, study, Unit((0,), "plain", repeat=2), [4]) == []
    assert expected_calls(table, study, Unit((0,), "plain", repeat=1), [4]) == 1e8
    assert [u.repeat for u in units(study, 0) if u.method == "plain"] == list(range(50))


def row(method: str, particles: int, log_prob: float, std: float = 0.1) -> dict[str, str]:
    fixed = {"dataset": "mnist", "image": "4", "eps": "0.1", "steps": "0"}
    return {**fixed, "method": method, "particles": str(particles), "log_prob": str(log_prob), "std": str(std)}


def test_rounds_of_plain_monte_carlo_are_one_count() -> None:
    """30 hits among 400 samples, however they were split; a round without a hit counts."""
    (point,) = curve([row("plain", 100, math.log(0.3)), row("plain", 300, -math.inf, math.inf)], "plain")
    assert (math.exp(point.log_prob), point.runs) == (pytest.approx(30 / 400), 1)
    assert point.error == pytest.approx(math.sqrt((1 - 0.075) / 30))
    assert curve([row("plain", 100, -math.inf, math.inf)], "plain") == []


def test_runs_with_fewer_particles_make_room_for_those_with_more() -> None:
    kept = largest([row("paper", 10, -1.0), row("paper", 20, -2.0), row("plain", 10, -3.0), row("plain", 20, -4.0)])
    assert [r["log_prob"] for r in kept] == ["-2.0", "-3.0", "-4.0"]


@pytest.mark.parametrize(("dataset", "least"), [("mnist", 0.975), ("cifar10", 0.5)])
def test_the_committed_networks_work(data_folder: Path, dataset: str, least: float) -> None:
    assert accuracy(dense_network(dataset), load(dataset, data_folder, "test")) > least
    assert nets.parameters(DENSE[dataset].make()) == {"mnist": 269_322, "cifar10": 855_050}[dataset]
