"""Missed and moved boxes against a loop that counts row by row, and against cases done by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import rarely
from rarely.core.errors import InputError
from rarely.core.properties import Property, stack_properties
from rarely.core.stacking import take
from rarely.vision import BoxLayout, MissedBox, MovedBox

BOX = (2.0, 3.0, 8.0, 9.0)
LAYOUTS = [
    BoxLayout(box, scores, objectness, columns_first)
    for box, scores, objectness, columns_first in itertools.product(
        ("xyxy", "cxcywh"), ("probabilities", "sigmoid", "softmax"), (False, True), (False, True)
    )
]


def _outputs(layout: BoxLayout, seed: int, n: int = 400, rows: int = 5, classes: int = 3) -> Tensor:
    """Boxes about BOX, some far away or inside out, with all sorts of scores: (1, n, ...) as the layout wants them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    corners = torch.tensor(BOX).double() + 1.5 * normal(n, rows, 4)
    boxes = corners
    if layout.box == "cxcywh":
        boxes = torch.cat([(corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]], -1)
    scores = 2 * normal(n, rows, layout.objectness + classes) + 1
    if layout.scores == "probabilities":
        scores = scores.sigmoid()
    y = torch.cat([boxes, scores], -1).unsqueeze(0)
    return y.mT if layout.columns_first else y


def _read(layout: BoxLayout, y: Tensor, label: int) -> list[list[tuple[float, float]]]:
    """Probability of the class and IoU with BOX of every row of every output, one at a time."""
    table = (y.mT if layout.columns_first else y)[0].tolist()
    result = []
    for rows in table:
        found = []
        for a, b, c, d, *columns in rows:
            x1, y1, x2, y2 = (a, b, c, d) if layout.box == "xyxy" else (a - c / 2, b - d / 2, a + c / 2, b + d / 2)
            across = max(0.0, min(x2, BOX[2]) - max(x1, BOX[0])) * max(0.0, min(y2, BOX[3]) - max(y1, BOX[1]))
            area = max(0.0, x2 - x1) * max(0.0, y2 - y1) + (BOX[2] - BOX[0]) * (BOX[3] - BOX[1])
            there = columns.pop(0) if layout.objectness else math.inf
            p = columns[label]
            if layout.scores == "softmax":
                p = math.exp(p) / sum(map(math.exp, columns))
            if layout.scores == "sigmoid":
                p = 1 / (1 + math.exp(-p))
            if layout.objectness:
                p *= there if layout.scores == "probabilities" else 1 / (1 + math.exp(-there))
            found.append((p, across / (area - across)))
        result.append(found)
    return result


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_violations_are_those_that_a_loop_finds(layout: BoxLayout) -> None:
    y, iou, threshold, label = _outputs(layout, 1), 0.45, 0.6, 1
    x = torch.zeros(*y.shape[:2], 1)
    rows = _read(layout, y, label)
    missed = [not any(p > threshold and overlap > iou for p, overlap in found) for found in rows]
    moved = [max(found)[0] >= threshold and max(found)[1] <= iou for found in rows]
    assert 20 < sum(missed) < 380
    assert 20 < sum(moved) < 380
    for prop, wanted in (
        (MissedBox(BOX, label, iou, threshold, layout), missed),
        (MovedBox(BOX, label, iou, threshold, layout), moved),
    ):
        assert (prop.score(x, y)[0] >= 0).tolist() == wanted
        torch.testing.assert_close(prop.parts(x, y).amax(-1), prop.score(x, y))


def _one(box: tuple[float, ...], logit: float) -> Tensor:
    return torch.tensor([[[[*box, logit]]]], dtype=torch.float64)


LOGITS = BoxLayout(scores="sigmoid")
NOTHING = torch.zeros(1, 1, 1)


def test_margins_by_hand() -> None:
    """The given box from 0 to 2 and one from 1 to 3 share a third, so that 1/3 is where the IoU turns."""
    shifted = _one((1.0, 0.0, 3.0, 1.0), 5.0)

    def missed(iou: float, y: Tensor = shifted) -> float:
        return float(MissedBox((0.0, 0.0, 2.0, 1.0), 0, iou, 0.5, LOGITS).score(NOTHING, y))

    assert missed(0.2) == pytest.approx(math.log(1 / 4) - math.log(1 / 2))  # odds of 0.2 against odds of 1/3
    assert missed(0.5) == pytest.approx(math.log(2))
    assert missed(0.2, _one((0.0, 0.0, 2.0, 1.0), -3.0)) == pytest.approx(3.0)  # there, but with a score of 0.047
    assert missed(0.2, _one((0.0, 0.0, 2.0, 1.0), 0.25)) == pytest.approx(-0.25)
    assert missed(0.2, _one((5.0, 5.0, 6.0, 6.0), 9.0)) > 0  # elsewhere
    assert missed(0.2, _one((2.0, 1.0, 0.0, 0.0), 9.0)) > 0  # inside out


def test_the_box_that_leads_is_the_one_that_counts() -> None:
    right, wrong = (2.0, 3.0, 8.0, 9.0, 3.0), (20.0, 3.0, 26.0, 9.0)
    scores = []
    for logit in (0.0, 2.9, 3.1, 6.0):
        y = torch.tensor([[[right, (*wrong, logit)]]], dtype=torch.float64)
        scores.append(float(MovedBox(BOX, 0, layout=LOGITS).score(NOTHING, y)))
        assert float(MissedBox(BOX, 0, layout=LOGITS).score(NOTHING, y)) < 0  # the right one is still there
    assert scores == pytest.approx([-3.0, -0.1, 0.1, 3.0])


def test_an_unsure_box_elsewhere_is_missed_and_not_moved() -> None:
    y = _one((20.0, 3.0, 26.0, 9.0), -1.0)
    assert float(MissedBox(BOX, 0, layout=LOGITS).score(NOTHING, y)) > 0
    assert float(MovedBox(BOX, 0, layout=LOGITS).score(NOTHING, y)) == pytest.approx(-1.0)
    assert float(MovedBox(BOX, 0, threshold=0.1, layout=LOGITS).score(NOTHING, y)) > 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("kind", [MissedBox, MovedBox])
def test_scores_have_slopes_that_differences_confirm(layout: BoxLayout, kind: type[MissedBox | MovedBox]) -> None:
    y = _outputs(layout, 2, n=60).requires_grad_()
    prop = kind(BOX, 2, 0.5, 0.5, layout)
    score = prop.score(y, y)
    (slope,) = torch.autograd.grad(score.sum(), y)
    assert torch.isfinite(slope).all()
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ahead, back = (prop.score(y, y + step * direction).detach() for step in (1e-7, -1e-7))
    measured = (ahead - back) / 2e-7
    # A kink between the two points is rare; everywhere else both agree, and few scores are flat.
    agree = torch.isclose((slope * direction).sum((2, 3)), measured, rtol=1e-4, atol=1e-5)
    assert agree.double().mean() > 0.95
    assert (slope.abs().sum((2, 3)) > 0).double().mean() > 0.8


def test_sure_scores_keep_their_slope() -> None:
    """Where a float32 probability is 1, the log odds of logits still tell sure from surer."""
    for layout, extra in ((LOGITS, []), (BoxLayout(scores="softmax"), [0.0]), (BoxLayout("xyxy", "sigmoid", True), [])):
        first = [90.0] if layout.objectness else []
        y = torch.tensor([[[[*BOX, *first, logit, *extra]] for logit in (30.0, 60.0)]])
        x = torch.zeros(1, 2, 1)
        sure, surer = layout.odds(layout.rows(y), torch.tensor(0))[0, :, 0].tolist()
        assert (sure, surer) == pytest.approx((30.0, 60.0), rel=1e-5)
        assert torch.isfinite(MissedBox(BOX, 0, layout=layout).score(x, y)).all()


def test_single_and_stacked_agree() -> None:
    y = torch.cat([_outputs(LOGITS, seed) for seed in (4, 5)])
    x = torch.zeros(*y.shape[:2], 1)
    pairs: list[list[Property]] = [
        [MissedBox(BOX, 0, layout=LOGITS), MissedBox((1.0, 1.0, 5.0, 7.0), 2, 0.3, 0.7, LOGITS)],
        [MovedBox(BOX, 0, layout=LOGITS), MovedBox((1.0, 1.0, 5.0, 7.0), 2, 0.3, 0.7, LOGITS)],
    ]
    for pair in pairs:
        both = stack_properties(pair)
        assert type(both) is type(pair[0])
        for row, prop in enumerate(pair):
            torch.testing.assert_close(both.score(x, y)[row], prop.score(x[row, None], y[row, None])[0])
        torch.testing.assert_close(take(both, torch.tensor([1])).score(x[1:], y[1:]), both.score(x, y)[1:])


def test_they_combine() -> None:
    y = _outputs(LOGITS, 6)
    x = torch.zeros(*y.shape[:2], 1)
    missed, moved = MissedBox(BOX, 1, layout=LOGITS), MovedBox(BOX, 1, layout=LOGITS)
    torch.testing.assert_close((missed & moved).score(x, y), torch.minimum(missed.score(x, y), moved.score(x, y)))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: MissedBox((1.0, 1.0, 1.0, 2.0), 0), "two corners"),
        (lambda: MovedBox((1.0, 1.0, 2.0), 0), "two corners"),
        (lambda: MissedBox(BOX, 0, iou=1.0), "iou must lie between 0 and 1"),
        (lambda: MissedBox(BOX, 0, threshold=50), "threshold must lie between 0 and 1"),
        (lambda: MissedBox(BOX, -1), "label"),
        (lambda: MissedBox(BOX, 0, layout="yolo"), "layout must be a BoxLayout"),
        (lambda: BoxLayout("xywh"), "box must be one of xyxy, cxcywh"),
        (lambda: BoxLayout(scores="logits"), "scores must be one of"),
    ],
)
def test_wrong_arguments_are_named(build: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build()  # type: ignore[operator]


class _Rows(torch.nn.Module):
    """Gives two rows of one box and two logits for two numbers."""

    def forward(self, x: Tensor) -> Tensor:
        box = x.new_tensor(BOX).expand(len(x), 2, 4)
        return torch.cat([box, x[:, None].expand(-1, 2, 2)], -1)


@pytest.mark.parametrize(
    ("prop", "said"),
    [
        (MissedBox(BOX, 2, layout=LOGITS), "label 2 is out of range: the rows have scores of 2 classes"),
        (MissedBox(BOX, 0), "no probabilities"),
        (MissedBox(BOX, 0, layout=BoxLayout("xyxy", "sigmoid", columns_first=True)), "check columns_first"),
    ],
)
def test_a_wrong_layout_is_an_error_when_the_problem_is_posed(prop: MissedBox, said: str) -> None:
    with pytest.raises(InputError, match=said):
        rarely.Problem(_Rows().eval(), prop, rarely.Gaussian([5.0, 5.0], 1.0))


def test_flat_outputs_are_an_error() -> None:
    with pytest.raises(InputError, match=r"\(n, rows, columns\)"):
        rarely.Problem(torch.nn.Linear(2, 12).eval(), MissedBox(BOX, 0), rarely.Gaussian([5.0, 5.0], 1.0))


def test_the_probability_is_exact_where_it_is_known() -> None:
    """Two rows with the same logit, normal with mean 5: missed when it is at most log(0.7 / 0.3)."""
    prop = MissedBox(BOX, 0, threshold=0.7, layout=LOGITS)
    exact = torch.special.log_ndtr(torch.tensor(math.log(7 / 3) - 5.0, dtype=torch.float64)).item()
    found = rarely.estimate(rarely.Problem(_Rows().eval(), prop, rarely.Gaussian([5.0, 5.0], 1.0)), confidence=0.9999)
    assert exact in found.interval
    assert found.interval.high - found.interval.low < 1.0


def test_a_box_that_drifts_is_missed_and_moved_at_the_same_rate() -> None:
    """A sure box shifted by 6 Z / 10 along x: the IoU is at most 1/2 when |shift| >= 2, of p = 2 Phi(-10 / 3)."""

    class Drifting(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            shift = torch.nn.functional.pad(0.6 * x, (0, 1)).repeat(1, 2)
            score = torch.full_like(x, 9.0)
            return torch.cat([x.new_tensor(BOX) + shift, score], 1).unsqueeze(1)

    exact = math.log(2) + torch.special.log_ndtr(torch.tensor(-10 / 3, dtype=torch.float64)).item()
    for kind in (MissedBox, MovedBox):
        problem = rarely.Problem(Drifting().eval(), kind(BOX, 0, layout=LOGITS), rarely.Gaussian([0.0], 1.0))
        assert exact in rarely.estimate(problem, confidence=0.9999).interval
