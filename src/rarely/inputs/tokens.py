"""Sequences of tokens: what a language model reads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, assign, leading, tensor
from rarely.core.rng import TORCHS, Rng

_FINE = 2**52  # steps that a probability is told in: a token of 1e-12 is drawn as often as it should be
_NONE = 2**62  # in place of a token, where a position has fewer of them than another

TokenLaw = ArrayLike | Mapping[int, float] | Mapping[str, float]  # weights of all tokens, or of some by number or word


@dataclass(frozen=True, init=False)
class Tokens:
    """Sequences whose tokens are drawn independently, each from the law of its position.

    `laws` are as many as there are positions, or one for all of them with a `length`. A law is the weight of every
    token, in any scale, or a mapping from the tokens that may stand there to their weights; `vocabulary`, words in the
    order of their numbers, lets words stand for them. It also turns witnesses into text, as does `decode`, a function
    of the numbers of one sequence such as a tokenizer's. A `Mixture` of such laws makes tokens depend on each other.
    """

    whole: ClassVar[bool] = True  # a network looks tokens up by their numbers
    normal_dim: ClassVar[None] = None
    ids: Tensor  # (P, K) tokens in rising order, P = 1 where all positions share a law
    edges: Tensor  # (P, K) of `_FINE` steps, those that fall on a token or one before it
    log_probs: Tensor  # (P, K), -inf beside no token
    decode: Callable[[list[int]], str] | None
    event_shape: Shape

    def __init__(
        self,
        laws: Sequence[TokenLaw] | ArrayLike,
        length: int | None = None,
        *,
        vocabulary: Sequence[str] | None = None,
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        words = None if vocabulary is None else {word: number for number, word in enumerate(vocabulary)}
        given = _listed(laws, length)
        pairs = [_read(law, place, words) for place, law in enumerate(given)]
        most = max(len(ids) for ids, _ in pairs)
        ids = torch.stack([torch.nn.functional.pad(i, (0, most - len(i)), value=_NONE) for i, _ in pairs])
        chances = torch.stack([torch.nn.functional.pad(w / w.sum(), (0, most - len(w))) for _, w in pairs])
        if decode is None and vocabulary is not None:
            decode = partial(_joined, tuple(vocabulary))
        assign(
            self, ids=ids, edges=_edges(chances), log_probs=chances.log().to(torch.get_default_dtype()), decode=decode,
            event_shape=(length or len(pairs),),
        )  # fmt: skip

    @property
    def center(self) -> Tensor:
        """The likeliest sequence."""
        best = self.ids.gather(-1, self.log_probs.argmax(-1, keepdim=True)).squeeze(-1)
        return best.expand(*best.shape[:-1], *self.event_shape)

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        there = self.log_probs > -torch.inf
        low, high = self.ids.where(there, _NONE).amin(-1), self.ids.where(there, -1).amax(-1)
        shape = (*low.shape[:-1], *self.event_shape)
        return low.expand(shape), high.expand(shape)

    def positions(self) -> list[dict[int, float]]:
        """The law of every position, as a mapping."""
        both = zip(self.ids.tolist(), self.log_probs.double().exp().tolist(), strict=True)
        laws = [{i: p for i, p in zip(ids, chances, strict=True) if p} for ids, chances in both]
        return laws * (self.parts // len(laws))

    @property
    def parts(self) -> int:
        return self.event_shape[0]

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        u = rng.uniform((*leading(shape), *self.event_shape), torch.float64)
        return _picked(self.ids, _searched(self.edges, (u * _FINE).long(), right=True))

    def redraw(self, x: Tensor, chosen: Tensor, rng: Rng) -> Tensor:
        return torch.where(chosen, self.sample(tuple(x.shape[:-1]), rng), x)

    def evened(self, share: float) -> Tokens:
        """The same tokens with all probabilities to one power below 1: what is rare comes oftener.

        The smallest power at which draws, weighed back to this law, are worth a `share` of their number (Kish 1965).
        """
        log_p = self.log_probs.double()
        shared = self.event_shape[0] // log_p.shape[-2]  # positions of each law
        low, high = log_p.new_zeros(*log_p.shape[:-2], 1, 1), log_p.new_ones(*log_p.shape[:-2], 1, 1)
        for _ in range(40):
            power = (low + high) / 2
            ratio = torch.where(log_p > -torch.inf, 2 * log_p - torch.log_softmax(power * log_p, -1), -torch.inf)
            worth = torch.exp(-shared * torch.logsumexp(ratio, -1, keepdim=True).sum(-2, keepdim=True))
            low, high = torch.where(worth < share, power, low), torch.where(worth < share, high, power)
        found, log_q = copy.copy(self), torch.log_softmax(high * log_p, -1)
        assign(found, edges=_edges(log_q.exp()), log_probs=log_q.to(self.log_probs.dtype))
        return found

    def log_density(self, x: Tensor) -> Tensor:
        return self.log_parts(x).sum(-1)

    def log_parts(self, x: Tensor) -> Tensor:
        """Log-probability of every token of x (..., length), -inf for one that cannot stand there."""
        x = x.long()
        index = _searched(self.ids, x, right=False).clamp_max(self.ids.shape[-1] - 1)
        return torch.where(_picked(self.ids, index) == x, _picked(self.log_probs, index), -torch.inf)

    def from_normal(self, z: Tensor) -> Tensor:
        raise InputError("tokens have no order and no map from normals; use Splitting, whose moves draw tokens anew")

    def texts(self, x: Tensor) -> list[str]:
        """Sequences (n, length) as text: witnesses that people can read."""
        if self.decode is None:
            raise InputError("there is no text for these tokens; give Tokens a vocabulary or a decode function")
        return [self.decode(row) for row in x.tolist()]


def _edges(chances: Tensor) -> Tensor:
    """How many of `_FINE` steps fall on each token (..., K) or on one before it."""
    below = chances.cumsum(-1)
    return (below / below[..., -1:] * _FINE).round().long()


def _joined(vocabulary: tuple[str, ...], tokens: list[int]) -> str:
    return " ".join(vocabulary[token] for token in tokens)


def _listed(laws: Sequence[TokenLaw] | ArrayLike, length: int | None) -> list[TokenLaw]:
    """One law for every position, or one alone that all of them share."""
    if isinstance(laws, Mapping):
        alone, rows = True, [laws]
    elif isinstance(laws, Sequence) and len(laws) and not isinstance(laws[0], int | float):
        alone, rows = False, list(laws)
    else:
        table = tensor(laws, "laws")
        if table.ndim not in (1, 2) or not table.numel():
            raise InputError(f"laws of tokens are (positions, tokens) or (tokens,), got shape {tuple(table.shape)}")
        alone, rows = table.ndim == 1, list(table.reshape(-1, table.shape[-1]))
    if alone and (length is None or length < 1):
        raise InputError(f"one law for all positions needs a length of at least 1, got {length}")
    if not alone and length not in (None, len(rows)):
        raise InputError(f"there are laws of {len(rows)} positions, and the length is said to be {length}")
    return rows


def _read(law: TokenLaw, place: int, words: Mapping[str, int] | None) -> tuple[Tensor, Tensor]:
    """The tokens of one position in rising order, and their weights."""
    name = f"the law of position {place}"
    if isinstance(law, Mapping):
        tokens = torch.tensor([_number(token, name, words) for token in law], dtype=torch.long)
        weights = tensor(list(law.values()), name).double()
        if len(set(tokens.tolist())) < len(tokens):
            raise InputError(f"{name} names a token twice")
    else:
        weights = tensor(law, name).double()
        tokens = torch.arange(weights.numel())
    if weights.ndim != 1 or bool((weights < 0).any()) or not float(weights.sum()) > 0:
        raise InputError(f"{name} must be a row of weights of at least 0 with a positive sum")
    tokens, weights = tokens[weights > 0], weights[weights > 0]
    order = tokens.argsort()
    return tokens[order], weights[order]


def _number(token: int | str, name: str, words: Mapping[str, int] | None) -> int:
    if isinstance(token, str):
        if words is None or token not in words:
            why = "is not in the vocabulary" if words is not None else "needs a vocabulary"
            raise InputError(f"{name} names the word {token!r}, which {why}")
        return words[token]
    if int(token) != token or token < 0:
        raise InputError(f"{name} names the token {token}; tokens are whole numbers of at least 0")
    return int(token)


def _searched(table: Tensor, x: Tensor, right: bool) -> Tensor:
    """Where x (..., L) stands in the sorted rows of a table (P, K), or of stacked ones (B, 1, P, K)."""
    rows, values = _laid_out(table, x)
    return _brought_back(torch.searchsorted(rows, values, right=right), x)


def _picked(table: Tensor, index: Tensor) -> Tensor:
    """Entries at `index` (..., L) of a table (P, K), or of stacked ones (B, 1, P, K)."""
    rows, values = _laid_out(table, index)
    return _brought_back(rows.gather(2, values), index)


def _laid_out(table: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows (B, P, K) of a table and what belongs to each, (B, P, n)."""
    rows = table.reshape(-1, *table.shape[-2:])
    values = x.reshape(len(rows), -1, x.shape[-1])
    return rows.contiguous(), (values.reshape(len(rows), 1, -1) if rows.shape[1] == 1 else values.mT).contiguous()


def _brought_back(values: Tensor, x: Tensor) -> Tensor:
    """What was laid out like x, in the shape of x."""
    return (values if values.shape[1] == 1 else values.mT).reshape(x.shape)
