"""Slow functions as networks: one input at a time, spread over processes, their answers kept in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import InputError, StoreError
from rarely.core.problem import Problem
from rarely.core.rng import Rng

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Rowwise:
    """A function of one input as a function of a batch."""

    function: Callable[[Any], Any]

    def __call__(self, x: Any) -> Any:
        answers = [self.function(row) for row in x]
        if all(isinstance(answer, Tensor) for answer in answers):
            return torch.stack(answers)
        return np.stack([np.asarray(answer) for answer in answers])


def vectorize(function: Callable[[Any], Any]) -> Rowwise:
    """A network from a function of one input: an array or a tensor of its shape in, a number or an array out.

    Also a decorator. A function that is slow for each input may be spread over processes by `estimate(..., workers=)`.
    """
    if not callable(function):
        raise InputError(f"vectorize takes a function of one input, not {type(function).__name__}")
    return Rowwise(function)


@dataclass(frozen=True)
class Called:
    """A network whose answers come from a journal where they are known, else from workers, else from itself.

    What is asked at once is one input where inputs are independent, else the batch as it is: an answer may depend on
    the batch in its last bits, and a run that goes on must be told the same as one that never stopped. Gradients are
    asked of the network itself each time.
    """

    call: Callable[[Tensor], Tensor]
    number: int  # of the network among those of the run
    workers: Any  # rarely.core.workers.Workers or None
    journal: Any  # rarely.core.journal.Journal or None
    single: bool

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad or len(x) == 0:
            return self.call(x)
        asked = list(torch.split(x, 1)) if self.single else [x]
        found = [self._known(part) for part in asked]
        missing = [k for k, answer in enumerate(found) if answer is None]
        for which, answer in self._answers([asked[k] for k in missing]):
            found[missing[which]] = answer
            if self.journal is not None:
                self.journal.add(self.number, asked[missing[which]], answer)
        return torch.cat([answer for answer in found if answer is not None])

    def _known(self, part: Tensor) -> Tensor | None:
        return None if self.journal is None else self.journal.find(self.number, part)

    def _answers(self, asked: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        if self.workers is not None:
            yield from self.workers.each(asked)
        else:
            yield from ((k, self.call(part)) for k, part in enumerate(asked))

    def check(self, x: Tensor) -> None:
        """`StoreError` unless the journal is empty, or is of the function that answers x (1, *event) as recorded."""
        known = self._known(x)
        if known is None:
            if self.number == 0 and len(self.journal):
                raise StoreError(f"{self.journal.path} is the checkpoint of other problems; name another file")
            self(x)
            return
        told = self.call(x)
        if told.shape != known.shape or not torch.allclose(told, known, rtol=1e-4, equal_nan=True):
            raise StoreError(
                f"the network does not answer as it did when {self.journal.path} was written: it was changed, or draws "
                "numbers of its own. Name another file"
            )


def check_calls(problems: Sequence[Problem], workers: int | None, checkpoint: Path | None) -> None:
    """An `InputError` where neither workers nor a checkpoint can help, before anything runs."""
    if workers is None and checkpoint is None:
        return
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    if not hasattr(os, "fork"):
        raise InputError("workers and checkpoints need Linux or macOS; leave them away")
    if all(problem.adapted.module is not None for problem in problems):
        raise InputError(
            "workers and checkpoints are for functions that take long; a torch module runs on batches, on its device. "
            "Leave them away, or pass a function"
        )


@contextmanager
def called(problems: Sequence[Problem], workers: int | None, checkpoint: Path | None) -> Iterator[list[Problem]]:
    """The same problems, their functions called by so many workers, and their answers kept in the file `checkpoint`.

    Workers live as long as the block.
    """
    if workers is None and checkpoint is None:
        yield list(problems)
        return
    from rarely.core.journal import Journal
    from rarely.core.workers import Workers

    with ExitStack() as stack:
        journal = None
        if checkpoint is not None:
            journal = Journal(checkpoint)
            stack.callback(journal.close)
        networks: dict[int, Called] = {}
        for problem in problems:
            if problem.adapted.module is not None or id(problem.network) in networks:
                continue
            pool = None
            if workers is not None:
                pool = Workers(problem.adapted.call, workers)
                stack.callback(pool.close)
            single = pool is not None or isinstance(problem.network, Rowwise)
            call = Called(problem.adapted.call, len(networks), pool, journal, single)
            if journal is not None:
                with torch.no_grad():
                    call.check(problem.adapted.taken(problem.inputs.sample(1, Rng(0))))
            networks[id(problem.network)] = call
        yield [_calling(problem, networks.get(id(problem.network)), workers or 1) for problem in problems]


def _calling(problem: Problem, call: Called | None, workers: int) -> Problem:
    if call is None:
        return problem
    return problem.adapted_as(replace(problem.adapted, call=call, seconds=problem.adapted.seconds / workers))
