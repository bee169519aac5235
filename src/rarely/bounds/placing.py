"""Where bounds are computed, and how much of them at a time.

A proof is thousands of short operations. A GPU takes some ten microseconds to start each of them, however little there
is to do, and a CPU takes longer than that as soon as the numbers outgrow its caches. So a GPU pays by the size of one
operation, whatever their number: by what a layer takes of all regions that are bounded together. Of few boxes and a
small network that is little. But halving makes many boxes of one, and then the search moves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rarely.bounds.graph import Graph

CPU = torch.device("cpu")
# Products of one layer, for all regions, from which a GPU pays. On an H200 and one of its CPU cores both took as long
# from 2^23 to 2^25, with widths of 40 to 256; below 2^27 it is not worth the seconds that loading its kernels takes.
_PAYS = 2**27
_BREADTH = 64  # times as much at a time as is best on a CPU: less leaves a GPU idle
_ROWS = 512  # entries of a layer that are bounded together, nearly
_DOMAINS = 4096  # on a GPU, of one problem
_CACHED = 2**20  # coefficients of boxes that are bounded together on a CPU
_NO_GPU = ("cpu", "mps")  # nor is it one for proofs where there is no float64


def _products(graph: Graph) -> int:
    """Of the widest layer with the coefficients of one region."""
    return _coefficients(graph) * graph.widest


def _coefficients(graph: Graph) -> int:
    """Held at a time to bound one region: two rows for each entry of a layer."""
    return 2 * graph.widest * min(graph.widest, _ROWS)


def pays_from(device: torch.device, graph: Graph) -> float:
    """Regions for which it pays to bound them together on a device: never, where that is no GPU."""
    return math.inf if device.type in _NO_GPU else math.ceil(_PAYS / _products(graph))


def worthwhile(device: torch.device, graph: Graph, regions: int) -> torch.device:
    """The device of a run, where it pays to bound so many regions there, else the CPU."""
    return device if regions >= pays_from(device, graph) else CPU


def breadth(like: Tensor) -> int:
    """How many times as much is bounded at a time as on a CPU."""
    return 1 if like.device.type == "cpu" else _BREADTH


def boxes_at_once(graph: Graph, like: Tensor) -> int:
    return max(16, _CACHED * breadth(like) // _coefficients(graph))


def domains_at_once(graph: Graph, like: Tensor, few: int) -> int:
    """Parts of a problem that are bounded together: `few` on a CPU."""
    return few if like.device.type == "cpu" else max(few, min(_DOMAINS, room(like) // graph.widest))


def room(like: Tensor) -> int:
    """Entries of the largest coefficient tensor held at a time: in the cache of a CPU, and breadth on a GPU.

    On one core, CROWN for a convolutional network of 45,000 ReLUs took 45 s with 2^22, and 17 s with 2^17 or 2^18. On a
    GPU work on 2^24 takes longer than to start it, and what gradients keep of them through a deep network still fits.
    """
    return 2**18 * breadth(like)
