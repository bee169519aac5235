"""What weighted samples of one problem say: their number, how it was found, and when to doubt it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rarely.core.evidence import Evidence, Found, Number, Searched
from rarely.core.witnesses import WEIGHED, Witnesses, gather_witnesses, join_witnesses
from rarely.methods.lined import MODEL_ERROR
from rarely.methods.modes import unseen_points
from rarely.stats.statistic import Replicates
from rarely.stats.weights import effective_size, pareto_index

ASSUMES = "the proposal covers every part of the violating region"
GROUPS = 16  # independent groups of samples whose means give the interval
FEWEST = 100  # samples, and effective ones, that make a number
_MAX_PARETO = 0.7  # Vehtari et al. 2024: above it the weights have no usable variance
_FEW_POINTS = 8  # of a referee that show where it looked
_UNCOVERED, _MARGIN = 0.04, 1.5  # share of its points that may lie where weights exceed the largest by so many nats
_UNSEEN = 0.5  # of what was found: where populations may have missed more, there is no number


@dataclass
class Weighed:
    """The samples of one problem."""

    family: str = "weights"
    seen: Tensor | None = None  # (n, d) violating points of a referee
    broke: bool = False  # the budget did not reach
    uncovered: float = 0.0  # share of the referee's points that the proposal hardly ever draws
    model_error: float = MODEL_ERROR  # of log p, that all samples share
    lost: str = ""  # why they may have lost more of p than an error can say
    log_w: list[Tensor] = field(default_factory=list)
    near: list[Tensor] = field(default_factory=list)  # log-weights of samples where the referee's points are
    witnesses: list[Witnesses] = field(default_factory=list)

    def add(self, log_w: Tensor, scores: Tensor, x: Tensor, z: Tensor) -> None:
        hits = torch.where(scores >= 0, log_w, -torch.inf)
        self.log_w.append(hits.cpu())
        self.witnesses.append(gather_witnesses(x, scores, log_w))
        if self.seen is not None and len(self.seen) >= _FEW_POINTS:
            self.near.append(torch.where(unseen_points(z, self.seen), -torch.inf, hits).cpu())

    def missed(self, log_w: Tensor) -> None:
        """Look at how rarely the proposal would have drawn the referee's points: by weights beyond its own."""
        hits = self.log_w[0][torch.isfinite(self.log_w[0])]
        if len(hits) >= FEWEST:
            self.uncovered = float((log_w.cpu() > torch.quantile(hits.double(), 0.999) + _MARGIN).double().mean())

    def believe(self, unseen: float) -> None:
        """Take into account that so much of p, in units of what was found, may lie where nobody has looked."""
        self.model_error = math.hypot(MODEL_ERROR, unseen)
        told = "populations found different violations: what none of them found may be as much"
        self.lost = told if unseen > _UNSEEN else ""

    def groups(self, weights: Sequence[Tensor] | None = None) -> tuple[float, ...]:
        """log p of each group of samples."""
        each = torch.cat([w.reshape(GROUPS, -1) for w in (self.log_w if weights is None else weights)], 1)
        return tuple((torch.logsumexp(each.double(), 1) - math.log(each.shape[1])).tolist())

    @property
    def log_prob(self) -> float:
        return Replicates(self.groups()).log_prob if self.log_w else -math.inf

    def evidence(self, calls: int) -> list[Evidence]:
        if self.log_prob == -math.inf:
            told = "the proposal met no violation" if self.log_w else "too few violating points to fit a proposal"
            told = "the budget does not reach for a proposal" if self.broke else told
            return [Searched("importance sampling", told, calls, broke=self.broke)]
        log_w = torch.cat(self.log_w)
        size, k = float(effective_size(log_w.unsqueeze(0))), pareto_index(log_w)
        reliable = k < _MAX_PARETO and size >= FEWEST
        doubt = "" if reliable else "the proposal does not cover the region: the weights are unreliable"
        if self.uncovered > _UNCOVERED:
            doubt = f"the proposal does not cover {self.uncovered:.0%} of the violations that splitting found"
        doubt = "; ".join(filter(None, (doubt, self.lost)))
        note = f"effective sample size {size:.0f} of {len(log_w)}, Pareto index {k:.2f}"
        statistic = Replicates(self.groups(), self.model_error)
        met = Replicates(self.groups(self.near), self.model_error) if self.near else None
        number = Number("importance sampling", self.family, statistic, calls, ASSUMES, doubt, note, seen=met)
        return [number, Found("importance sampling", join_witnesses(self.witnesses), drawn=WEIGHED)]
