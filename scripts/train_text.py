"""Train the demo's language model on the manual that comes with Python, and write it as a package asset.

    python scripts/train_text.py --out src/rarely/demo/assets

Two minutes on one core. The shipped weights were made with Python 3.11, whose manual other versions have reworded.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rarely.demo.text import LONGEST, UNKNOWN, LanguageModel, manual

WORDS = 512
STEPS, ROWS, RATE = 3_000, 64, 3e-3


def vocabulary(words: list[str]) -> dict[str, int]:
    """The most frequent words, and one that stands for all others, with their counts."""
    frequent = dict(Counter(words).most_common(WORDS - 1))
    return {UNKNOWN: len(words) - sum(frequent.values()), **frequent}


def train(model: LanguageModel, numbers: Tensor) -> None:
    draws = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=STEPS)
    for step in range(STEPS):
        first = torch.randint(len(numbers) - LONGEST, (ROWS, 1), generator=draws)
        rows = numbers[first + torch.arange(LONGEST + 1)]
        loss = F.cross_entropy(model.everywhere(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 500 == 499:
            print(f"  step {step + 1}: {loss:.3f} nats a word")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo's language model and write it.")
    parser.add_argument("--out", type=Path, default=Path("src/rarely/demo/assets"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)  # sums in one order, so that a seed gives one network
    torch.manual_seed(0)
    words = manual()
    model = LanguageModel(vocabulary(words))
    train(model, torch.tensor(model.encode(" ".join(words))))
    halves = {name: value.numpy().astype(np.float16) for name, value in model.state_dict().items()}
    names, counts = np.array(model.vocabulary), np.array(model.counts)
    np.savez_compressed(out / "manual.npz", vocabulary=names, counts=counts, **halves)
    print(f"  wrote {out / 'manual.npz'}, {(out / 'manual.npz').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
