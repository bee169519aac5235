"""The convex outer bound against samples, and against the same relaxation written with plain matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from papers.webb2019 import nets
from papers.webb2019.outer_bound import margins, robust_loss


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = nets.wong_kolter().double()
    for parameter in made.parameters():
        parameter.data *= 1.3  # outputs of some size
    return made


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand((3, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def box(images: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return (images - eps).clamp(0, 1), (images + eps).clamp(0, 1)


def worst_seen(network: nn.Module, low: Tensor, high: Tensor, label: Tensor) -> Tensor:
    """The smallest margins over corners of the box that gradient signs lead to, and over random corners."""
    n = len(low)
    random = torch.rand((100, *low.shape), generator=torch.Generator().manual_seed(1), dtype=low.dtype).round()
    points = [low + (high - low) * part for part in random]
    for target in range(10):
        x = ((low + high) / 2).requires_grad_()
        y = network(x)
        gap = (y.gather(1, label[:, None]).squeeze(1) - y[:, target]).sum()
        points.append(torch.where(torch.autograd.grad(gap, x)[0] > 0, low, high))
    with torch.no_grad():
        y = network(torch.cat(points)).reshape(-1, n, 10)
    return (y.gather(2, label[None, :, None].expand(len(y), n, 1)) - y).amin(0)


@pytest.mark.parametrize("eps", [0.0, 0.01, 0.1])
def test_no_point_of_the_box_falls_below_the_bound(network: nn.Module, images: Tensor, eps: float) -> None:
    label = network(images).argmax(1)
    low, high = box(images, eps)
    slack = worst_seen(network, low, high, label) - margins(network, low, high, label).detach()
    assert float(slack.min()) >= -1e-12
    if eps == 0.0:
        assert float(slack.max()) < 1e-12  # a point: the bound is the network
    if eps == 0.01:
        assert float(slack.max()) < 1.0  # and for a small box it is of some use


def test_a_bound_for_a_smaller_box_is_caught(network: nn.Module, images: Tensor) -> None:
    """The negative control of the test above."""
    label = network(images).argmax(1)
    too_small = margins(network, *box(images, 0.002), label).detach()
    assert float((worst_seen(network, *box(images, 0.01), label) - too_small).min()) < -0.01


def as_matrix(layer: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    size = int(torch.Size(shape).numel())
    with torch.no_grad():
        bias = layer(torch.zeros((1, *shape), dtype=torch.float64)).flatten()
        images = layer(torch.eye(size, dtype=torch.float64).reshape(size, *shape)).flatten(1)
    return (images - bias).T, bias


def by_matrices(network: nn.Module, low: Tensor, high: Tensor, label: int) -> Tensor:
    """Fast-Lin for one image, layer by layer, with every matrix written out."""
    first, second, third, last = (m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    layers = [as_matrix(first, (1, 28, 28)), as_matrix(second, (16, 14, 14)), as_matrix(third, (1568,))]
    weight, bias = as_matrix(last, (100,))
    layers.append((weight[label] - weight, bias[label] - bias))
    middle, radius = (low + high).flatten() / 2, (high - low).flatten() / 2
    relaxed: list[tuple[Tensor, Tensor]] = []
    below = above = torch.zeros(0)
    for depth, (rows, constant) in enumerate(layers):
        up = down = constant
        for (slope, gap), (weight, bias) in zip(reversed(relaxed), reversed(layers[:depth]), strict=True):
            up, down = up + rows.clamp_min(0) @ gap, down + rows.clamp_max(0) @ gap
            rows = rows * slope
            up, down = up + rows @ bias, down + rows @ bias
            rows = rows @ weight
        below, above = down + rows @ middle - rows.abs() @ radius, up + rows @ middle + rows.abs() @ radius
        crossing = (below < 0) & (above > 0)
        slope = torch.where(crossing, above / (above - below), (below >= 0).double())
        relaxed.append((slope, torch.where(crossing, -slope * below, 0.0)))
    return below


def test_patches_and_transposed_convolutions_give_what_matrices_give(network: nn.Module, images: Tensor) -> None:
    label = network(images[:1]).argmax(1)
    low, high = box(images[:1], 0.05)
    fast = margins(network, low, high, label)[0].detach()
    with torch.no_grad():
        slow = by_matrices(network, low, high, int(label))
    assert float((fast - slow).abs().max()) < 1e-10


def test_the_loss_has_the_gradient_of_its_differences(network: nn.Module, images: Tensor) -> None:
    label = torch.tensor([1, 2, 3])
    loss = robust_loss(network, images, label, 0.05)
    weight = next(m for m in network.modules() if isinstance(m, nn.Linear)).weight
    gradient = torch.autograd.grad(loss, weight)[0]
    step = (
        torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1e-8
    )  # so small that hardly a kink is crossed
    with torch.no_grad():
        weight += step
        after = robust_loss(network, images, label, 0.05)
        weight -= 2 * step
        before = robust_loss(network, images, label, 0.05)
        weight += step
    assert float((after - before) / 2) == pytest.approx(float((gradient * step).sum()), rel=1e-4)
