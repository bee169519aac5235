"""A small language model of Python's own manual, shipped inside the package: what comes after a few words?

`scripts/train_text.py` makes it from text that comes with Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rarely.demo import assets

LONGEST = 16  # words that it reads
UNKNOWN = "…"  # stands for every word that is too rare for the vocabulary


def words_of(text: str) -> list[str]:
    """Lower-case words and single signs, in their order."""
    return re.findall(r"[a-z]+|[^\sa-z]", text.lower())


class LanguageModel(nn.Module):
    """Word numbers (n, length) -> logits (n, words) of the word that follows: two blocks of a causal transformer."""

    def __init__(self, words: Mapping[str, int], width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.vocabulary = tuple(words)
        self.counts = tuple(words.values())  # how often each stands in the text that it learnt from
        self.word = nn.Embedding(len(self.vocabulary), width)
        self.place = nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.last = nn.LayerNorm(width)
        self.answer = nn.Linear(width, len(self.vocabulary))

    def forward(self, words: Tensor) -> Tensor:
        x = self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks[:-1]:
            x = block(x, x)
        x = self.blocks[-1](x[:, -1:], x)  # nobody asks what follows the words before the last
        logits: Tensor = self.answer(self.last(x[:, 0]))
        return logits

    def everywhere(self, words: Tensor) -> Tensor:
        """Logits (n, length, words) of what follows every word: what training needs."""
        x = self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x, x)
        logits: Tensor = self.answer(self.last(x))
        return logits

    def encode(self, text: str) -> list[int]:
        number = {word: k for k, word in enumerate(self.vocabulary)}
        return [number.get(word, number[UNKNOWN]) for word in words_of(text)]


class _Block(nn.Module):
    """Attention and two layers, each beside what comes in; `x` asks, `past` is looked at."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.both, self.mixed = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        q, (k, v) = self.query(self.before(x)), self.both(self.before(past)).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        x = x + self.mixed(seen.transpose(1, 2).flatten(2))
        y: Tensor = x + self.narrow(F.gelu(self.wide(self.between(x))))
        return y


def language_model() -> LanguageModel:
    """The shipped model, in eval mode; its `vocabulary` names the numbers."""
    with np.load(assets() / "manual.npz") as stored:
        words = [str(word) for word in stored["vocabulary"]]
        model = LanguageModel(dict(zip(words, stored["counts"].tolist(), strict=True)))
        weights = {name: torch.from_numpy(stored[name].astype(np.float32)) for name in model.state_dict()}
    model.load_state_dict(weights)
    return model.eval()


def manual() -> list[str]:
    """The words of Python's language reference, as `help()` shows it, in the version that runs."""
    from pydoc_data.topics import topics

    return words_of("\n".join(topics[name] for name in sorted(topics)))
