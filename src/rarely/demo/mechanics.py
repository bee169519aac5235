"""Two mechanical systems that fall over, for the closed-loop examples and the policies that hold them upright."""

from __future__ import annotations

import torch
from torch import Tensor

PENDULUM_STEP, CART_STEP = 0.05, 0.02  # seconds
_TORQUE, _FORCE = 2.0, 10.0  # the most there is, in Nm and N


def pendulum(state: Tensor, torque: Tensor) -> Tensor:
    """An inverted pendulum of 1 m and 1 kg, one step on: states (n, 2), angle from upright and speed; torques (n, 1).

    The equations of Gymnasium's Pendulum, with half-implicit Euler steps and the top at angle 0.
    """
    angle, speed = state.unbind(1)
    pull = 15.0 * torch.sin(angle) + 3.0 * torque.squeeze(1).clamp(-_TORQUE, _TORQUE)
    speed = speed + PENDULUM_STEP * pull
    return torch.stack((angle + PENDULUM_STEP * speed, speed.clamp(-8.0, 8.0)), 1)


def cart_pole(state: Tensor, push: Tensor, gust: Tensor) -> Tensor:
    """A pole on a cart, one step on: states (n, 4) are place, speed, angle and spin, pushes (n, 1) between -1 and 1.

    The equations of Barto, Sutton and Anderson (1983) with the numbers of Gymnasium's CartPole. A gust (n, 1) changes
    the pole's spin before the step.
    """
    place, speed, angle, spin = state.unbind(1)
    spin = spin + gust.squeeze(1)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    # 1.1 kg in all, 0.1 kg of them a pole of half-length 0.5 m.
    inertia = (_FORCE * push.squeeze(1) + 0.05 * spin.square() * sine) / 1.1
    turning = (9.8 * sine - cosine * inertia) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
    pulling = inertia - 0.05 * turning * cosine / 1.1
    after = (
        place + CART_STEP * speed,
        speed + CART_STEP * pulling,
        angle + CART_STEP * spin,
        spin + CART_STEP * turning,
    )
    return torch.stack(after, 1)
