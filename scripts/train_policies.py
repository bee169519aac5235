"""Train the two policies of the closed-loop examples and write them as package assets.

    python scripts/train_policies.py --out src/rarely/demo/assets

Each is trained through its own differentiable simulation, by the gradient of what it ought to keep small: an inverted
pendulum upright under a noisy sensor, a cart with a pole upright and in place under gusts. Two minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs before the package is installed
sys.path.insert(0, str(Path(__file__).resolve().parent))

from train_demo import write_onnx

from rarely.demo.mechanics import cart_pole, pendulum

SEED = 2026
ROLLOUTS = 256
Simulate = Callable[[nn.Module, Tensor, torch.Generator], Tensor]  # first states -> what ought to be small


def policy(states: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(states, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def balance_pendulum(model: nn.Module, state: Tensor, rng: torch.Generator) -> Tensor:
    """Angle and torque over two seconds, seen with errors."""
    total = torch.zeros(())
    for _ in range(40):
        torque = model(state + 0.1 * torch.randn(state.shape, generator=rng))
        state = pendulum(state, torque)
        total = total + state[:, 0].square().clamp(max=4).mean() + 0.001 * torque.square().mean()
    return total / 40


def balance_cart_pole(model: nn.Module, state: Tensor, rng: torch.Generator) -> Tensor:
    """Angle, place and speeds over two seconds, with gusts against the pole."""
    total = torch.zeros(())
    for _ in range(100):
        scores = model(state)
        gust = 0.1 * torch.randn((len(state), 1), generator=rng)
        state = cart_pole(state, torch.tanh(scores[:, 1:] - scores[:, :1]), gust)
        place, speed, angle, spin = state.unbind(1)
        cost = 10 * angle.square() + 0.2 * place.square() + 0.02 * speed.square() + 0.05 * spin.square()
        total = total + cost.clamp(max=10).mean()
    return total / 100


def train(model: nn.Sequential, simulate: Simulate, spread: Tensor, rounds: int) -> None:
    rng = torch.Generator().manual_seed(SEED)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, rounds)
    started = time.perf_counter()
    for round_ in range(rounds):
        # From near the balance outwards: gradients through a long fall are of no use.
        reach = min(1.0, 0.1 + 1.5 * round_ / rounds)
        state = reach * spread * torch.randn((ROLLOUTS, len(spread)), generator=rng)
        optimiser.zero_grad()
        loss = simulate(model, state, rng)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if (round_ + 1) % (rounds // 5) == 0:
            print(f"  {round_ + 1:4d}/{rounds}  loss {loss.item():.5f}  {time.perf_counter() - started:.0f} s")
    model.requires_grad_(False).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the policies of the closed-loop examples.")
    parser.add_argument("--out", type=Path, default=Path("src/rarely/demo/assets"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)  # sums in one order, so that a seed gives one policy

    print("pendulum")
    torch.manual_seed(SEED)
    model = policy(2, 1)
    train(model, balance_pendulum, torch.tensor([math.pi / 32, 0.5]), rounds=400)
    write_onnx(model, (2,), (1,), out / "pendulum.onnx")

    print("cart-pole")
    torch.manual_seed(SEED)
    model = policy(4, 2)
    train(model, balance_cart_pole, torch.tensor([0.3, 0.3, 0.08, 0.3]), rounds=400)
    write_onnx(model, (4,), (2,), out / "cart-pole.onnx")


if __name__ == "__main__":
    main()
