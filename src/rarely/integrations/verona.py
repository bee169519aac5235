"""VERONA of the ADA research group: `rarely certify` as one of its verifiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rarely.core.errors import MissingExtra
from rarely.io.problems import load_problem
from rarely.questions.threshold import Ruling, certify

try:
    from ada_verona.database.verification_result import CompleteVerificationData, VerificationResult
except ImportError as error:
    raise MissingExtra("VERONA is not installed: see docs/how-to/integrations.md") from error

_RESULTS = {
    Ruling.ACCEPTED: VerificationResult.UNSAT,
    Ruling.REJECTED: VerificationResult.SAT,
    Ruling.UNDECIDED: VerificationResult.TIMEOUT,
}


@dataclass(frozen=True)
class ProbabilityModule:
    """A verification module for VERONA's estimators: the noise is tolerated where it fails with p < `p_max`.

    The largest radius that is tolerated takes the place of the largest radius at which nothing can fail, so that
    robustness distributions can be drawn of networks that no verifier proves. Noise is uniform in VERONA's own box.
    """

    p_max: float
    confidence: float = 0.95
    timeout: float = 60.0
    seed: int = 0

    @property
    def name(self) -> str:
        return f"rarely (p < {self.p_max:g})"

    def verify(self, verification_context: Any, epsilon: float) -> CompleteVerificationData:
        point = verification_context.data_point
        generator = verification_context.property_generator
        written = generator.create_vnnlib_property(point.data.reshape(-1).numpy(), point.label, epsilon)
        verification_context.save_vnnlib_property(written)
        problem = load_problem(verification_context.network.path, written.path)
        decision = certify(problem, self.p_max, self.confidence, timeout=self.timeout, seed=self.seed)
        return CompleteVerificationData(_RESULTS[decision.ruling], decision.seconds, stdout=str(decision))
