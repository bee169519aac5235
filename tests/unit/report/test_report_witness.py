from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from rarely.campaign.witnesses import WitnessSet
from rarely.display.pictures import MAX_SIDE, as_picture
from rarely.report.page import render
from rarely.report.witness import shown


def witness_html(found: WitnessSet) -> str:
    witness = shown(found)
    return "" if witness is None else render("witness.html", witness=witness)


def _images(html: str) -> list[np.ndarray]:
    sources = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(source))).convert("RGB")) for source in sources]


@pytest.mark.parametrize(
    ("shape", "picture"),
    [
        ((1, 28, 28), (28, 28)), ((28, 28), (28, 28)), ((1, 1, 28, 28), (28, 28)), ((3, 32, 32), (32, 32, 3)),
        ((32, 32, 3), (32, 32, 3)), ((784,), (28, 28)), ((1, 784, 1), (28, 28)), ((6,), None), ((64,), None),
        ((3072,), None), ((4, 5), None), ((2, 40, 40), None), ((), None), ((1, 1), None),
    ],
)  # fmt: skip
def test_what_is_taken_for_a_picture(shape: tuple[int, ...], picture: tuple[int, ...] | None) -> None:
    found = as_picture(np.zeros(shape))
    assert (None if found is None else found.shape) == picture


def test_colours_stay_where_they_are() -> None:
    image = np.zeros((3, 8, 8))
    image[0, 2, 5] = 1.0  # one red pixel
    original, witness, difference = _images(witness_html(WitnessSet(image[None], np.zeros(1), np.zeros((3, 8, 8)))))
    assert original.max() == 0
    assert witness[2, 5].tolist() == [255, 0, 0]
    assert witness.sum() == 255
    red, _, blue = difference[2, 5].astype(int)
    assert red > blue
    assert difference[0, 0].min() > 230  # no change is nearly white


def test_the_best_witness_is_shown() -> None:
    inputs = np.stack([np.zeros((10, 10)), np.ones((10, 10))])
    _, witness, _ = _images(witness_html(WitnessSet(inputs, np.array([0.1, 0.7]), np.zeros((10, 10)))))
    assert witness.min() == 255


def test_other_ranges_are_named() -> None:
    html = witness_html(WitnessSet(np.full((1, 9, 9), 2.5), np.zeros(1), np.full((9, 9), -2.0)))
    assert "Shades run from -2 to 2.5." in html
    original, witness, _ = _images(html)
    assert (original.max(), witness.min()) == (0, 255)


def test_large_pictures_shrink() -> None:
    images = _images(witness_html(WitnessSet(np.random.default_rng(0).random((1, 3, 300, 150)), np.zeros(1), None)))
    assert [image.shape for image in images] == [(MAX_SIDE, MAX_SIDE // 2, 3)]


def test_numbers_beside_the_original() -> None:
    centre = np.zeros(20)
    witness = np.zeros(20)
    witness[[3, 17]] = (0.5, -0.25)
    html = witness_html(WitnessSet(witness[None], np.zeros(1), centre))
    assert "<td>3</td><td>0</td><td>0.5</td><td>+0.5 " in html
    assert "<td>17</td><td>0</td><td>-0.25</td><td>-0.25 " in html
    assert "8 of 20 inputs, those that changed most." in html


def test_numbers_alone_and_nothing() -> None:
    assert "<td>1</td><td>7</td>" in witness_html(WitnessSet(np.array([[2.0, 7.0]]), np.zeros(1), None))
    assert witness_html(WitnessSet(np.zeros((0, 2)), np.zeros(0), None)) == ""


def test_values_that_are_no_numbers_are_drawn() -> None:
    images = _images(witness_html(WitnessSet(np.full((1, 9, 9), np.nan), np.zeros(1), np.zeros((9, 9)))))
    assert len(images) == 3
