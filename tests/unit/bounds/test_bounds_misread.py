"""Networks that say one thing and do another: what an adversary proved of them, and must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rarely
from rarely.bounds import Unprovable, build, decide_boxes, prove

Function = Callable[[nn.Module, Tensor], Tensor]


class Net(nn.Module):
    """A function of a layer and its input, traced as it is."""

    def __init__(self, function: Function, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.layer = function, layer or nn.Identity()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer, x)


def _added_in_place(layer: nn.Module, x: Tensor) -> Tensor:
    y = torch.relu(x - 2)
    z = y
    y += torch.relu(x - 3)
    return z


def _through_a_view(layer: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    flat = y.flatten(1)
    torch.relu_(y)
    return flat


def _linear(weight: float, bias: float) -> nn.Linear:
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(weight)
        layer.bias.fill_(bias)
    return layer.requires_grad_(False)


@pytest.mark.parametrize(
    "net",
    [
        Net(lambda layer, x: (lambda a: nn.functional.relu(a, inplace=True) + a)(layer(x)), _linear(1.0, 2.0)),
        Net(lambda layer, x: layer(x) + x, nn.ReLU(inplace=True)),
        Net(lambda layer, x: torch.relu_(x) + x),
        Net(_added_in_place),
        Net(_through_a_view),
    ],
    ids=["function", "module", "input", "sum", "view"],
)
def test_values_that_are_written_over_and_read_again_are_refused(net: nn.Module) -> None:
    with pytest.raises(Unprovable, match="written over"):
        build(net, (1,))


def test_writing_over_what_nobody_reads_again_is_read() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(4, 2))
    graph = build(net.eval().requires_grad_(False), (3,))
    x = torch.randn(5, 3)
    torch.testing.assert_close(graph(x.double()).float(), net(x.clone()))


def test_a_residual_sum_in_place_is_read() -> None:
    def block(layer: nn.Module, x: Tensor) -> Tensor:
        y = layer(x)
        y += x
        return torch.relu_(y)

    net = Net(block, nn.Linear(3, 3)).requires_grad_(False)
    x = torch.randn(5, 3)
    torch.testing.assert_close(build(net, (3,))(x.double()).float(), net(x.clone()))


def test_hooks_are_refused() -> None:
    layer = _linear(1.0, 0.0)
    layer.register_forward_hook(lambda module, args, out: out.clamp(max=5))
    with pytest.raises(Unprovable, match="hooks"):
        build(nn.Sequential(layer), (1,))


def test_a_forward_that_an_object_was_given_is_refused() -> None:
    """A tracer calls that of its class: no input that a graph is compared on reaches 9."""
    layer = _linear(1.0, 0.0)
    layer.forward = lambda x: F.linear(x, layer.weight).clamp(max=9)  # type: ignore[method-assign]
    with pytest.raises(Unprovable, match="forward of its own"):
        build(nn.Sequential(layer), (1,))


@pytest.mark.parametrize(
    "net",
    [
        Net(lambda layer, x: x / 1e39 * 1e9),
        Net(lambda layer, x: x * 1e-44 * 1e14),
        nn.Sequential(_linear(1.0, 0.0), nn.LeakyReLU(1e-44)),
        nn.Linear(64, 4, dtype=torch.bfloat16).requires_grad_(False).apply(lambda m: m.weight.fill_(1e-39)),
        Net(lambda layer, x: torch.softmax(layer(x), 1, dtype=torch.float16), _linear(1.0, 0.0)),
    ],
    ids=["large divisor", "small factor", "small leak", "denormal bfloat16", "softmax in half"],
)
def test_numbers_that_the_network_does_not_hold_are_refused(net: nn.Module) -> None:
    with pytest.raises(Unprovable):
        build(net, (64,) if isinstance(net, nn.Linear) else (1,))


@pytest.mark.parametrize("value", [-1, 1, 2.5])
def test_what_fills_a_padding_is_a_constant_whole_or_not(value: float) -> None:
    net = Net(lambda layer, x: F.pad(x, (1, 1), value=value).amax(-1, keepdim=True))
    x = -torch.rand(4, 30) - 5
    torch.testing.assert_close(build(net, (30,))(x.double()).float(), net(x))


def test_a_witness_is_what_the_network_was_given() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), _linear(1.0, 0.0))
    low, high = torch.tensor([[-2.0]]), torch.tensor([[-1.0]])
    (found,) = decide_boxes(net, low, high, [(torch.tensor([[1.0]]), torch.tensor([0.5]))], 5.0)
    assert found.witness is not None
    assert -2 <= float(found.witness) <= -1


def test_a_threshold_of_a_float64_network_is_one_of_its_numbers() -> None:
    """0.7 is more than the nearest float32, and all of the box lies between the two."""
    net = nn.Linear(1, 1, dtype=torch.float64).requires_grad_(False)
    net.weight.fill_(1.0), net.bias.fill_(0.0)
    ends = (torch.tensor([v], dtype=torch.float64) for v in (0.69999999, 0.699999995))
    problem = rarely.Problem(net.eval(), rarely.LinearConstraint([[1.0]], [0.7]), rarely.Box(*ends))
    assert prove(problem, 5.0).status != "proved"
    assert rarely.verify(problem, 5.0).status == "sat"


def test_a_root_is_taken_of_what_the_box_holds() -> None:
    """Elsewhere, on the inputs that any graph is checked on, it is no number, in the network as in the graph."""
    net = Net(lambda layer, x: torch.sqrt(x - 3))
    (found,) = decide_boxes(
        net, torch.tensor([[4.0]]), torch.tensor([[9.0]]), [(torch.tensor([[-1.0]]), torch.tensor([-3.0]))], 5.0
    )
    assert found.status == "proved"


@pytest.mark.parametrize("dilation", [1, 3])
def test_output_padding_that_holds_whole_windows(dilation: int) -> None:
    layer = nn.ConvTranspose1d(1, 1, 3, stride=2, dilation=dilation, output_padding=dilation - 1).requires_grad_(False)
    net = nn.Sequential(layer, nn.Flatten()).eval()
    graph = build(net, (1, 4))
    k = graph.classes
    low = torch.zeros(1, 1, 4)
    found = decide_boxes(net, low, low + 1, [(-torch.eye(k)[:1], torch.tensor([-1e3]))], 5.0)
    assert found[0].status == "proved"
