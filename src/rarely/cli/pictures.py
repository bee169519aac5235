"""Options of commands about images and what may happen to them, and what they load."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rarely.campaign.asked import Pictures
    from rarely.campaign.noise import Noise

PICTURES = "Images"  # heading of the help


class Norm(StrEnum):
    inf = "inf"
    two = "2"
    one = "1"


def numbers(text: str) -> Any:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter("numbers separated by commas are expected, as in 0.1,0.2") from None


def _told(metavar: str, text: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=PICTURES, **more)


IMAGES = "Images: .npy, .npz or a folder of pictures. Bytes become 0 to 1."
Labels = Annotated[
    Path | None, _told("FILE", "Labels, .npy. Default: those in the .npz, else the network's own answers.")
]
NoiseName = Annotated[
    str,
    _told(
        "NOISE",
        "What happens to an image: ball (uniform in the ball of --norm with radius --eps), gaussian (--eps is the "
        "standard deviation; --clip cuts it), or corruptions, each uniform in a range of --eps times the number behind "
        "its name, as in rotation:30,blur: rotation (degrees), shift_x, shift_y, blur (pixels), scale, contrast "
        "(factors 1 ± that), brightness.",
    ),
]
NormChoice = Annotated[
    Norm | None, typer.Option(help="Norm of the ball. Default: inf.", rich_help_panel=PICTURES, show_default=False)
]
Clip = Annotated[
    tuple[float, float] | None,
    _told(
        "LOW HIGH", "Range of legal pixels, to which what happens is cut. Default: none; 0 1 for corruptions.",
        show_default=False,
    ),
]  # fmt: skip
Mean = Annotated[
    str | None, _told("M[,M...]", "Subtracted from pixels before the network, per channel.", parser=numbers)
]
Std = Annotated[
    str | None,
    _told("S[,S...]", "Divides pixels before the network; --eps stays in pixel units.", parser=numbers),
]


def asked_about(inputs: Path, radii: Any, noise: Noise, labels: Path | None, mean: Any, std: Any) -> Pictures:
    """What was said about images, as plain data."""
    from rarely.campaign.asked import Pictures

    names = str(inputs), None if labels is None else str(labels)
    return Pictures(names[0], radii, noise.name, noise.clip, names[1], mean, std)


def check_radii(radii: Any) -> None:
    from rarely.core.errors import InputError

    if any(not (0 < radius < math.inf) for radius in radii):
        raise InputError("--eps must be positive numbers")
