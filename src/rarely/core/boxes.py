"""Detection: a box that is missing or elsewhere, and how boxes stand in what a network gives.

Scores and IoU are compared as log odds. Both are numbers from 0 to 1 that hardly move where a network is sure; their
log odds keep a slope there, which estimators climb, and are of one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, assign, tensor
from rarely.core.labels import as_label
from rarely.core.properties import Composable

Format = Literal["xyxy", "cxcywh"]
Scores = Literal["probabilities", "sigmoid", "softmax"]

_NEAREST = 1e-6  # to 0 and 1 that a probability or an IoU is taken for


@dataclass(frozen=True)
class BoxLayout:
    """How a detector's output (n, rows, columns) is read: a row has the four numbers of a box, then its scores.

    "sigmoid" and "softmax" are logits and say what makes probabilities of them; softmax goes over all classes, with the
    background where there is one. Boxes are in the units of the box that is asked about.
    """

    box: Format = "xyxy"  # two corners, or the center with width and height
    scores: Scores = "probabilities"
    objectness: bool = False  # a column before the classes; a score is the product of both
    columns_first: bool = False  # the output is (n, columns, rows)

    def __post_init__(self) -> None:
        for name, kind in (("box", Format), ("scores", Scores)):
            if getattr(self, name) not in get_args(kind):
                raise InputError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")

    def corners(self, rows: Tensor) -> Tensor:
        """Boxes (..., 4) of two corners."""
        first, second = rows[..., :2], rows[..., 2:4]
        if self.box == "xyxy":
            return torch.cat([first, second], -1)
        return torch.cat([first - second / 2, first + second / 2], -1)

    def rows(self, y: Tensor) -> Tensor:
        """Outputs (B, N, *out) as rows (B, N, rows, columns)."""
        if y.ndim != 4:
            raise InputError(
                f"a detector's output must be (n, rows, columns), got (n, {', '.join(map(str, y.shape[2:]))}); "
                "wrap the network in a module that joins boxes and scores in rows"
            )
        return y.mT if self.columns_first else y

    def odds(self, rows: Tensor, label: Tensor) -> Tensor:
        """Log odds (B, N, rows) of the score of a class."""
        objects, classes = rows[..., 4 : 4 + self.objectness], rows[..., 4 + self.objectness :]
        self._check(rows, classes, label)
        index = label.expand(rows.shape[:2])[..., None, None].expand(*rows.shape[:3], 1)
        own = classes.gather(-1, index)
        if self.scores == "softmax":
            own = own - classes.scatter(-1, index, -torch.inf).logsumexp(-1, keepdim=True)
        if self.scores == "probabilities":
            own, objects = torch.logit(own, _NEAREST), torch.logit(objects, _NEAREST)
        return (_odds_of_both(own, objects) if self.objectness else own).squeeze(-1)

    def _check(self, rows: Tensor, classes: Tensor, label: Tensor) -> None:
        count = classes.shape[-1]
        if count < 1 + (self.scores == "softmax"):
            raise InputError(
                f"rows of {rows.shape[-1]} columns leave {max(count, 0)} for scores of classes; check columns_first "
                "and objectness of the BoxLayout"
            )
        if not rows.is_cpu:  # looking at numbers would wait for the device, and every problem is posed on the CPU first
            return
        if int(label.max()) >= count:
            raise InputError(f"label {int(label.max())} is out of range: the rows have scores of {count} classes")
        scores = rows[..., 4:]
        if self.scores == "probabilities" and bool(((scores < 0) | (scores > 1)).any()):
            raise InputError(
                'scores lie outside 0 and 1, so they are no probabilities: use BoxLayout(scores="sigmoid") or "softmax"'
            )


@dataclass(frozen=True, init=False)
class MissedBox(Composable):
    """The object in `box` is missed: no row has a score of its class above `threshold` and an IoU with it above `iou`.

    `box` is given by two corners, and `label` is the column of its class among the scores. Rows count as the network
    gives them: one that non-maximum suppression would drop later for a better-scored one is still there.
    """

    box: Tensor  # (4,)
    label: Tensor  # ()
    iou: Tensor  # ()
    threshold: Tensor  # ()
    layout: BoxLayout

    def __init__(
        self,
        box: ArrayLike,
        label: int | Tensor,
        iou: float = 0.5,
        threshold: float = 0.5,
        layout: BoxLayout = BoxLayout(),
    ) -> None:
        _assign(self, box, label, iou, threshold, layout)

    @property
    def words(self) -> str:
        return f"the object of class {int(self.label)} in the box {_corners(self.box)} is missed"

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.score(x, y).unsqueeze(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        odds, overlap = _margins(self, y)
        return -torch.minimum(odds - _beyond(self.threshold), overlap).amax(-1)


@dataclass(frozen=True, init=False)
class MovedBox(Composable):
    """The object in `box` is seen elsewhere: the row with the highest score of its class has a score of at least
    `threshold`, and an IoU with `box` of at most `iou`.

    For pictures with one object of the class: where there are others, the highest score may well be theirs. The
    arguments are those of MissedBox.
    """

    box: Tensor  # (4,)
    label: Tensor  # ()
    iou: Tensor  # ()
    threshold: Tensor  # ()
    layout: BoxLayout

    def __init__(
        self,
        box: ArrayLike,
        label: int | Tensor,
        iou: float = 0.5,
        threshold: float = 0.5,
        layout: BoxLayout = BoxLayout(),
    ) -> None:
        _assign(self, box, label, iou, threshold, layout)

    @property
    def words(self) -> str:
        return f"the object of class {int(self.label)} in the box {_corners(self.box)} is seen elsewhere"

    def parts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.score(x, y).unsqueeze(-1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        odds, overlap = _margins(self, y)
        # By how much a row leads all others: the score stays continuous where another row takes the lead.
        lead = odds - _highest_other(odds)
        return torch.minimum(torch.minimum(lead, odds - _beyond(self.threshold)), -overlap).amax(-1)


def _corners(box: Tensor) -> str:
    return f"({', '.join(f'{side:g}' for side in box.tolist())})"


def _assign(
    prop: MissedBox | MovedBox, box: ArrayLike, label: int | Tensor, iou: float, threshold: float, layout: BoxLayout
) -> None:
    corners = tensor(box, "box")
    if corners.shape != (4,) or not bool((corners[:2] < corners[2:]).all()):
        raise InputError(f"box must be two corners x1, y1, x2, y2 with x1 < x2 and y1 < y2, got {corners.tolist()}")
    for name, value in (("iou", iou), ("threshold", threshold)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, got {value}")
    if not isinstance(layout, BoxLayout):
        raise InputError(f"layout must be a BoxLayout, not {type(layout).__name__}")
    limits = {"iou": torch.tensor(iou).double(), "threshold": torch.tensor(threshold).double()}
    assign(prop, box=corners, label=as_label(label, "label"), layout=layout, **limits)


def _margins(prop: MissedBox | MovedBox, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row (B, N, rows): log odds of the score, and those of the IoU beyond what is asked."""
    rows = prop.layout.rows(y)
    odds = prop.layout.odds(rows, prop.label)
    overlap = torch.logit(_iou(prop.layout.corners(rows), prop.box.unsqueeze(-2)), _NEAREST)
    return odds, overlap - _beyond(prop.iou)


def _beyond(limit: Tensor) -> Tensor:
    """Log odds of a limit, () or stacked (B, 1), beside rows (B, N, rows)."""
    return torch.logit(limit).unsqueeze(-1)


def _iou(boxes: Tensor, wanted: Tensor) -> Tensor:
    """Intersection over union (...) of boxes (..., 4) and one of positive area. A box inside out has no area."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    common = torch.minimum(boxes[..., 2:], wanted[..., 2:]) - torch.maximum(boxes[..., :2], wanted[..., :2])
    inside = common.clamp(min=0).prod(-1)
    whole = (wanted[..., 2:] - wanted[..., :2]).prod(-1)
    return inside / (sides.prod(-1) + whole - inside)


def _highest_other(odds: Tensor) -> Tensor:
    """The highest of all other rows (..., rows), -inf where there is no other."""
    if odds.shape[-1] == 1:
        return torch.full_like(odds, -torch.inf)
    top = odds.topk(2, -1).values
    index = odds.argmax(-1, keepdim=True)
    return top[..., :1].expand_as(odds).scatter(-1, index, top[..., 1:])


def _odds_of_both(first: Tensor, second: Tensor) -> Tensor:
    """Log odds of a product of two probabilities that are given by theirs."""
    log = (F.logsigmoid(first) + F.logsigmoid(second)).clamp(max=-torch.finfo(first.dtype).tiny)
    return log - torch.log(-torch.expm1(log))
