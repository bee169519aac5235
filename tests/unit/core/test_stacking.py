from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from rarely.core.stacking import CannotStack, place, stack, take


@dataclass(frozen=True)
class Leaf:
    value: Tensor
    kind: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    leaf: Leaf
    pair: tuple[Tensor, Tensor]
    missing: None = None


@dataclass(frozen=True)
class Opaque:
    stackable: ClassVar[bool] = False
    value: Tensor


def _tree(i: float, kind: str = "a") -> Tree:
    return Tree(Leaf(torch.full((2, 3), i), kind, (2, 3)), (torch.tensor(i), torch.tensor(int(i))))


def test_stacked_tensors_get_a_problem_and_a_particle_dimension() -> None:
    stacked = stack([_tree(1.0), _tree(2.0)])
    assert stacked.leaf.value.shape == (2, 1, 2, 3)
    assert stacked.pair[0].shape == (2, 1)
    assert stacked.leaf.kind == "a"
    assert stacked.leaf.sizes == (2, 3)
    assert stacked.missing is None
    assert stacked.leaf.value[1, 0].eq(2.0).all()


@pytest.mark.parametrize(
    "items",
    [
        [_tree(1.0), _tree(1.0, "b")],
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.float64)],
        [torch.zeros(2), 0.0],
        [(torch.zeros(2),), (torch.zeros(2), torch.zeros(2))],
        [Leaf(torch.zeros(1), "a", ()), _tree(1.0)],
        [1.0, 2.0],
        [Opaque(torch.zeros(1)), Opaque(torch.zeros(1))],
    ],
)
def test_what_differs_does_not_stack(items: list[object]) -> None:
    with pytest.raises(CannotStack):
        stack(items)


def test_an_unstackable_object_stacks_with_itself_only() -> None:
    one = Opaque(torch.zeros(1))
    assert stack([one, one]) is one


def test_take_repeats_and_drops_problems() -> None:
    stacked = stack([_tree(1.0), _tree(2.0), _tree(3.0)])
    chosen = take(stacked, torch.tensor([2, 0, 0, 1]))
    assert chosen.leaf.value[:, 0, 0, 0].tolist() == [3.0, 1.0, 1.0, 2.0]
    assert chosen.pair[1][:, 0].tolist() == [3, 1, 1, 2]


def test_place_changes_floats_and_leaves_labels() -> None:
    placed = place(stack([_tree(1.0)]), torch.device("cpu"), torch.float64)
    assert placed.leaf.value.dtype == torch.float64
    assert placed.pair[1].dtype == torch.int64
