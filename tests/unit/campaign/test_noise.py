"""What may happen to an image, by name: the law that it is, and the words of an axis."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rarely.campaign.noise import Noise, axis_of
from rarely.core.errors import InputError
from rarely.inputs import Corruptions, Gaussian, GaussianNoise, LpBall
from rarely.io.formats.images import Images

PIXELS = np.random.default_rng(0).uniform(0.2, 0.8, (2, 1, 6, 6)).astype(np.float32)
IMAGES = Images(PIXELS, ("a", "b"), None)


def test_a_radius_is_the_scale_of_each_law() -> None:
    ball = Noise.read("ball", None, (0.0, 1.0)).around(IMAGES, 0, 0.1)
    assert isinstance(ball, LpBall)
    assert (ball.norm, float(ball.radius)) == (float("inf"), pytest.approx(0.1))
    noisy = Noise.read("gaussian", None, (0.0, 1.0)).around(IMAGES, 0, 0.1)
    assert isinstance(noisy, GaussianNoise)
    assert torch.allclose(noisy.std, torch.tensor(0.1))
    assert isinstance(Noise.read("gaussian", None, None).around(IMAGES, 0, 0.1), Gaussian)
    both = Noise.read("rotation:30,blur", None, None).around(IMAGES, 1, 0.5)
    assert isinstance(both, Corruptions)
    assert both.kinds == ("rotation", "blur")
    low, high = (both.parameters(torch.full((1, 2), z)) for z in (-40.0, 40.0))
    assert [float(low["rotation"]), float(high["rotation"])] == pytest.approx([-15, 15])
    assert [float(low["blur"]), float(high["blur"])] == pytest.approx([0, 0.5], abs=1e-6)
    assert torch.equal(both.center, torch.from_numpy(PIXELS[1]))


def test_a_network_that_takes_rows_of_numbers_still_sees_pictures() -> None:
    flat = Images(PIXELS, ("a", "b"), None, (36,))
    law = Noise.read("shift_x:2", None, None).around(flat, 0, 1.0)
    assert law.event_shape == (36,)
    assert torch.equal(law.center, torch.from_numpy(PIXELS[0]).flatten())
    with pytest.raises(InputError, match="are no pictures"):
        Noise.read("blur", None, None).check(Images(PIXELS.reshape(2, 36), ("a", "b"), None))
    with pytest.raises(InputError, match="are no pictures"):  # channels last
        Noise.read("blur", None, None).check(Images(PIXELS.reshape(2, 6, 2, 3), ("a", "b"), None))


@pytest.mark.parametrize(
    ("text", "norm", "says"),
    [
        ("fog", None, "'fog' is none of ball, gaussian, rotation"),
        ("gaussian", "2", "a norm is that of a ball, and says nothing of gaussian"),
        ("blur,blur:2", None, "names a corruption twice"),
        ("rotation:-3", None, "a range is a positive number, as in rotation:0.5"),
        ("rotation:nan", None, "a range is a positive number"),
        ("", None, "'' is none of"),
    ],
)
def test_words_that_are_no_noise(text: str, norm: str | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Noise.read(text, norm, None)


def test_a_factor_that_leaves_nothing() -> None:
    with pytest.raises(InputError, match="a scale that changes by 1 leaves nothing"):
        Noise.read("scale:2", None, None).around(IMAGES, 0, 0.5)


def test_axes_say_what_the_radius_is() -> None:
    assert axis_of("inf") == axis_of("") == axis_of("</script>") == "radius ε"
    assert axis_of("gaussian") == "standard deviation of the noise"
    assert axis_of("shift_x") == "largest shift in x, pixels"
    assert axis_of("rotation:30,blur") == "factor of the ranges rotation:30, blur"
