"""How many threads the bounds of small networks deserve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rarely.bounds.graph import Graph

SMALL = 1024  # entries of the widest layer


@contextmanager
def one_thread_if_small(graph: Graph | None) -> Iterator[None]:
    """Run on one thread while the tensors are small, then restore the setting.

    A proof is thousands of short operations. On a busy two-core machine, threads that wait for each other at every
    one of them made the 500 CollisionDetection proofs take over 60 s; on one thread they took 3 s.
    """
    before = torch.get_num_threads()
    if graph is not None and graph.widest <= SMALL and before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
