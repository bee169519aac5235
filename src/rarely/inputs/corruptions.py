"""What cameras and weather do to a picture, as a few numbers: rotation, shift, size, blur, contrast, brightness."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, assign, check_range, tensor
from rarely.core.words import law_in_words
from rarely.inputs.common import no_density, sample_normals
from rarely.inputs.laws import Law

_SMALLEST = 0.05  # of a scale: a normal law reaches 0, a picture cannot
_SHARP = 0.1  # pixels: a blur below this is none


@dataclass(frozen=True, init=False)
class Corruptions:
    """A picture rotated and scaled, shifted, blurred, changed in contrast and in brightness, clipped, in that order.

    Every corruption that is given has a law of its own and is independent of the others, so inputs live on a surface
    of few dimensions around the picture. `rotation` is in degrees, counter-clockwise; `shift_x` and `shift_y` in
    pixels, to the right and down; `scale` and `contrast` are factors (contrast around the middle of `clip`);
    `brightness` is added; `blur` is the standard deviation in pixels of a Gaussian (its sign is ignored). What comes in
    from beyond the edge repeats the edge. A picture is (H, W) or (C, H, W); for a flat one give its `shape`.
    """

    image: Tensor  # (C, H, W)
    laws: tuple[Law, ...]
    low: Tensor  # () of the clip
    high: Tensor  # ()
    kinds: tuple[str, ...]
    event_shape: Shape
    sample = sample_normals
    log_density = no_density

    def __init__(
        self,
        image: ArrayLike,
        *,
        rotation: Law | None = None,
        shift_x: Law | None = None,
        shift_y: Law | None = None,
        scale: Law | None = None,
        blur: Law | None = None,
        contrast: Law | None = None,
        brightness: Law | None = None,
        clip: tuple[float, float] = (0.0, 1.0),
        shape: Shape | None = None,
    ) -> None:
        picture = tensor(image, "image")
        given = {
            "rotation": rotation, "shift_x": shift_x, "shift_y": shift_y, "scale": scale, "blur": blur,
            "contrast": contrast, "brightness": brightness,
        }  # fmt: skip
        active = {kind: law for kind, law in given.items() if law is not None}
        if not active:
            raise InputError(f"no corruption is given; give one or more of {', '.join(given)}")
        for kind, law in active.items():
            if getattr(law, "width", None) != 1:
                raise InputError(
                    f"{kind} must be a law of one number, such as Uniform(-1, 1) or Normal(0, 1) of rarely.inputs; "
                    f"got {law!r}"
                )
        check_range(picture, clip)
        assign(
            self,
            image=_as_channels(picture, shape),
            laws=tuple(active.values()),
            low=picture.new_tensor(clip[0]),
            high=picture.new_tensor(clip[1]),
            kinds=tuple(active),
            event_shape=tuple(picture.shape),
        )

    @property
    def words(self) -> str:
        changes = ", ".join(f"{kind} {law_in_words(of)}" for kind, of in zip(self.kinds, self.laws, strict=True))
        return f"a picture with {changes}, each independent of the others"

    @property
    def normal_dim(self) -> int:
        return len(self.kinds)

    @property
    def center(self) -> Tensor:
        return self.image.reshape(*self.image.shape[:-3], *self.event_shape)

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        whole = torch.ones_like(self.center)
        low, high = (limit.reshape(*limit.shape, *([1] * len(self.event_shape))) for limit in (self.low, self.high))
        return low * whole, high * whole

    def parameters(self, z: Tensor) -> dict[str, Tensor]:
        """What the normals (..., normal_dim) say: the value (...) of every corruption."""
        return {
            kind: law.from_normal(z[..., i : i + 1]).squeeze(-1)
            for i, (kind, law) in enumerate(zip(self.kinds, self.laws, strict=True))
        }

    def from_normal(self, z: Tensor) -> Tensor:
        lead, size = z.shape[:-1], self.image.shape[-3:]
        values = {kind: value.reshape(-1, 1, 1, 1) for kind, value in self.parameters(z).items()}
        x = self.image.expand(*lead, *size).reshape(-1, *size)
        if values.keys() & {"rotation", "shift_x", "shift_y", "scale"}:
            x = _moved(x, values)
        if "blur" in values:
            x = _blurred(x, values["blur"])
        x = x.reshape(*lead, *size)
        low, high = (limit.reshape((*limit.shape, 1, 1, 1)) for limit in (self.low, self.high))
        if "contrast" in values:
            middle = 0.5 * (low + high)
            x = middle + values["contrast"].reshape(*lead, 1, 1, 1) * (x - middle)
        if "brightness" in values:
            x = x + values["brightness"].reshape(*lead, 1, 1, 1)
        return x.clamp(low, high).reshape(*lead, *self.event_shape)


def _as_channels(picture: Tensor, shape: Shape | None) -> Tensor:
    """(C, H, W) of a picture in any of its forms."""
    if shape is not None:
        if math.prod(shape) != picture.numel():
            raise InputError(f"the image has {picture.numel()} values, which shape {tuple(shape)} does not hold")
        picture = picture.reshape(shape)
    if picture.ndim not in (2, 3):
        raise InputError(
            f"a picture must be (H, W) or (C, H, W), got {tuple(picture.shape)}; for a flat one give shape=(C, H, W)"
        )
    return picture.reshape(-1, *picture.shape[-2:])


def _moved(x: Tensor, values: dict[str, Tensor]) -> Tensor:
    """Rotate and scale about the middle, then shift: pixels look up where they came from, interpolated linearly."""
    height, width = x.shape[-2:]
    none = x.new_zeros(1, 1, 1, 1)
    down = (torch.arange(height, dtype=x.dtype, device=x.device) - 0.5 * (height - 1)).reshape(1, 1, -1, 1)
    right = (torch.arange(width, dtype=x.dtype, device=x.device) - 0.5 * (width - 1)).reshape(1, 1, 1, -1)
    down, right = down - values.get("shift_y", none), right - values.get("shift_x", none)
    angle = torch.deg2rad(values.get("rotation", none))
    size = values.get("scale", none + 1).clamp_min(_SMALLEST)
    cos, sin = torch.cos(angle) / size, torch.sin(angle) / size
    # Rows count downwards: counter-clockwise on the screen is clockwise in these coordinates.
    source = torch.stack([2 / width * (cos * right - sin * down), 2 / height * (sin * right + cos * down)], -1)
    grid = source.squeeze(1).expand(len(x), height, width, 2)
    return torch.nn.functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _blurred(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur along rows and columns, each picture (n, C, H, W) with its own width (n, 1, 1, 1).

    A matrix per axis instead of a convolution: widths differ from row to row, and no radius has to be chosen.
    """
    variance = sigma.square().clamp_min(_SHARP**2)

    def weights(size: int) -> Tensor:
        place = torch.arange(size, dtype=x.dtype, device=x.device)
        return torch.softmax((place.unsqueeze(1) - place).square() / (-2 * variance), -1)

    return weights(x.shape[-2]) @ x @ weights(x.shape[-1]).mT
