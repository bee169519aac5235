"""The shipped demo networks, pictures and properties are there, load, and say what the manifest says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rarely import demo
from rarely.demo.scenes import SCENE_SIGNS, draw_scenes

ort = pytest.importorskip("onnxruntime")


def run(network: Path, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    session = ort.InferenceSession(str(network), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {session.get_inputs()[0].name: inputs})
    return outputs


def box_of(text: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By regular expression, so that this test does not lean on the library's parser."""
    bounds = {
        (relation, int(index)): float(value)
        for relation, index, value in re.findall(r"\(assert \(([<>]=) X_(\d+) ([-\d.]+)\)\)", text)
    }
    count = text.count("(declare-const X_")
    assert len(bounds) == 2 * count
    low = np.array([bounds[">=", i] for i in range(count)])
    high = np.array([bounds["<=", i] for i in range(count)])
    return low, high


PROBLEMS = {problem.name: problem for problem in demo.manifest()}
CONTROL = [name for name, problem in PROBLEMS.items() if problem.image is None]
NOISE = [name for name, problem in PROBLEMS.items() if problem.image is not None]


def test_assets_are_small():
    files = [path for path in demo.assets().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert max(path.stat().st_size for path in files if path.suffix == ".onnx") < 300_000


def test_no_asset_is_orphaned():
    used = {"demo.json", "signs.npz", "manual.npz"}
    used |= {"detector.onnx", "segmentation.onnx", "pendulum.onnx", "cart-pole.onnx"}
    for problem in PROBLEMS.values():
        used |= {path.name for path in (problem.network, problem.property) if path is not None}
    assert {path.name for path in demo.assets().iterdir()} == used


@pytest.mark.parametrize("name", PROBLEMS)
def test_manifest_is_consistent(name):
    problem = PROBLEMS[name]
    assert problem.network.is_file()
    assert problem.property is None or problem.property.is_file()
    assert problem.property is not None or problem.image is not None
    assert (problem.image is None) == (problem.eps is None) == (problem.clip is None)
    assert problem.description.endswith("?")
    assert (problem.log10_prob is None) == (problem.log10_prob_error is None)
    if problem.log10_prob is not None:
        assert -25 < problem.log10_prob < -1


def test_names_are_unique_and_the_range_is_wide():
    assert len(PROBLEMS) == len(demo.manifest())
    measured = [problem.log10_prob for problem in PROBLEMS.values() if problem.log10_prob is not None]
    assert max(measured) > -3
    assert min(measured) < -18
    assert any(problem.log10_prob is None for problem in PROBLEMS.values())


def test_images_cover_every_class_and_are_classified_correctly():
    images, labels, names = demo.images()
    assert names == demo.SIGNS
    assert images.shape == (len(names), 1, 20, 20)
    assert images.dtype == np.float32
    assert images.min() >= 0
    assert images.max() <= 1
    np.testing.assert_array_equal(labels, np.arange(len(names)))
    np.testing.assert_array_equal(run(demo.assets() / "signs.onnx", images).argmax(axis=1), labels)


def test_classifier_is_accurate_on_fresh_images():
    images, labels = demo.draw_images(3000, seed=987)
    assert np.mean(run(demo.assets() / "signs.onnx", images).argmax(axis=1) == labels) > 0.95


def test_drawing_is_reproducible_and_balanced():
    images, labels = demo.draw_images(60, seed=3)
    again, _ = demo.draw_images(60, seed=3)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(np.bincount(labels), 10)


def test_square_file_is_the_box_of_its_image():
    problem = PROBLEMS["square-noise"]
    assert problem.property is not None
    assert problem.image is not None
    assert problem.eps is not None
    assert problem.clip is not None
    image = demo.images()[0][problem.image].astype(np.float64).ravel()
    low, high = box_of(problem.property.read_text(encoding="utf-8"))
    np.testing.assert_allclose(low, np.clip(image - problem.eps, *problem.clip), atol=1e-8)
    np.testing.assert_allclose(high, np.clip(image + problem.eps, *problem.clip), atol=1e-8)


@pytest.mark.parametrize("name", NOISE)
def test_mistakes_under_noise_are_as_rare_as_the_manifest_says(name):
    problem = PROBLEMS[name]
    assert problem.image is not None
    assert problem.log10_prob is not None
    image = demo.images()[0][problem.image]
    low = np.clip(image - np.float32(problem.eps), 0, 1)
    high = np.clip(image + np.float32(problem.eps), 0, 1)
    count = 5000
    draws = np.random.default_rng(11).random((count, *image.shape), dtype=np.float32)
    wrong = np.sum(run(problem.network, low + (high - low) * draws).argmax(axis=1) != problem.image)
    # 5 sigma of the count, with room for a tenth of error in the measured logarithm.
    expected = count * 10**problem.log10_prob
    assert abs(wrong - expected) <= 5 * np.sqrt(expected) + 0.3 * expected + 1e-2


@pytest.mark.parametrize("name", CONTROL)
def test_the_expert_brakes_where_the_controller_must(name):
    problem = PROBLEMS[name]
    assert problem.property is not None
    low, high = box_of(problem.property.read_text(encoding="utf-8"))
    assert np.all((low >= 0) & (low < high) & (high <= 1))
    inputs = low + (high - low) * np.random.default_rng(5).random((20_000, len(low)))
    assert demo.expert_acceleration(inputs).max() < 0
    assert run(problem.network, inputs.astype(np.float32)).max() < 0  # rare: not one in 20 000


@pytest.mark.parametrize("name", CONTROL)
def test_the_worst_corner_tells_real_violations_from_impossible_ones(name):
    """Where the law brakes least, the network accelerates if and only if the event is possible."""
    problem = PROBLEMS[name]
    assert problem.property is not None
    low, high = box_of(problem.property.read_text(encoding="utf-8"))
    falling = [quantity.name in ("speed", "closing speed") for quantity in demo.CONTROL_INPUTS]
    corner = np.where(falling, low, high)
    command = run(problem.network, corner[None].astype(np.float32)).item()
    assert (command >= 0) == (problem.log10_prob is not None)


def test_physical_units_round_trip():
    middle = demo.physical(np.full(len(demo.CONTROL_INPUTS), 0.5))
    for quantity, value in zip(demo.CONTROL_INPUTS, middle, strict=True):
        assert quantity.normalise(value) == pytest.approx(0.5)


def test_the_detector_finds_what_is_drawn_and_the_segmentation_knows_its_pixels():
    scenes = draw_scenes(300, seed=99)
    rows = run(demo.assets() / "detector.onnx", scenes.images)
    assert rows.shape == (300, 64, 4 + len(SCENE_SIGNS))
    found = 0
    for picture, boxes, labels in zip(rows, scenes.boxes, scenes.labels, strict=True):
        for box, label in zip(boxes, labels, strict=True):
            best = picture[picture[:, 4 + label].argmax()]
            across = np.clip(np.minimum(best[2:4], box[2:]) - np.maximum(best[:2], box[:2]), 0, None).prod()
            area = (best[2:4] - best[:2]).prod() + (box[2:] - box[:2]).prod()
            found += best[4 + label] > 0 and across > 0.5 * (area - across)
    assert found > 0.97 * 600
    right = run(demo.assets() / "segmentation.onnx", scenes.images).argmax(1) == scenes.classes
    assert right.mean() > 0.98
    inside = scenes.classes > 0
    assert right[inside].mean() > 0.9


def test_scenes_are_what_they_say():
    scenes, again = draw_scenes(50, seed=4), draw_scenes(50, seed=4)
    assert np.array_equal(scenes.images, again.images)
    assert (scenes.labels[:, 0] != scenes.labels[:, 1]).all()
    for boxes, labels, classes in zip(scenes.boxes, scenes.labels, scenes.classes, strict=True):
        assert set(np.unique(classes)) == {0, *(1 + labels)}
        for (x1, y1, x2, y2), label in zip(boxes.astype(int), labels, strict=True):
            rows, columns = np.nonzero(classes == 1 + label)
            assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (y1, y2, x1, x2)


@pytest.mark.parametrize(("name", "states", "outputs"), [("pendulum.onnx", 2, 1), ("cart-pole.onnx", 4, 2)])
def test_the_policies_hold_what_they_were_trained_to_hold(name, states, outputs):
    """Two seconds from near the balance, without disturbances, in equations of the demo."""
    from rarely.demo.mechanics import cart_pole, pendulum

    state = torch.full((1, states), 0.03)
    for _ in range(100):
        answer = torch.from_numpy(run(demo.assets() / name, state.numpy()))
        assert answer.shape == (1, outputs)
        push = answer if outputs == 1 else torch.tanh(answer[:, 1:] - answer[:, :1])
        state = pendulum(state, push) if outputs == 1 else cart_pole(state, push, torch.zeros(1, 1))
    angle = state[0, 0 if outputs == 1 else 2]
    assert abs(float(angle)) < 0.1
