"""Importance weights, R samples at a time: how many draws they are worth, and how heavy their tail is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TIE = 1e-9  # of log-weights


def effective_size(log_w: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 of log-weights (R, n): (R,); 0 where all are -inf."""
    log_w = log_w.double()
    w = torch.exp(log_w - log_w.amax(1, keepdim=True).clamp_min(-1e300))
    return w.sum(1) ** 2 / (w * w).sum(1).clamp_min(1e-300)


def pareto_index(log_w: Tensor) -> float:
    """Shape of a generalised Pareto law fitted to the largest weights (Zhang and Stephens 2009, as in PSIS).

    Weights of the same input tie, and all that tie are over the threshold or none: the law has no atoms there.
    """
    finite = log_w[torch.isfinite(log_w)].double().sort().values
    m = int(min(0.2 * len(finite), 3 * math.sqrt(len(finite))))
    if m < 5:
        return math.inf
    below = int((finite < finite[-m] - _TIE).sum())
    if below == 0:
        return -math.inf  # equal weights: there is no tail
    x = torch.exp(finite[below:] - finite[-1]) - torch.exp(finite[below - 1] - finite[-1])
    m = len(x)
    count = 30 + int(math.sqrt(m))
    grid = torch.arange(1, count + 1, dtype=torch.float64, device=x.device)
    theta = 1 / x[-1] + (1 - torch.sqrt(count / (grid - 0.5))) / (3 * x[max(0, int(m / 4 + 0.5) - 1)])
    shape = torch.log1p(-theta.unsqueeze(1) * x).mean(1)
    likelihood = m * (torch.log(-theta / shape) - shape - 1)
    best = (torch.softmax(likelihood, 0) * theta).sum()
    return float(torch.log1p(-best * x).mean()) * m / (m + 10) + 0.5 * 10 / (m + 10)
