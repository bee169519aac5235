"""For machine learning engineers: may this network be released? Only if it fails less often than agreed.

Run it with `python examples/release_gate.py`. It exits with 0 when every requirement is accepted, else with 1,
so a continuous-integration job can call it as it is.
"""

from __future__ import annotations

import sys

import rarely
from rarely.demo import assets, images
from rarely.questions.threshold import Ruling

CONFIDENCE = 0.99  # a wrong "accepted" or "rejected" has at most the remaining probability


def requirements() -> list[tuple[str, rarely.Problem, float]]:
    """Name, problem and the largest probability of failure that is allowed."""
    pictures, labels, _ = images()
    signs = rarely.load_network(assets() / "signs.onnx")
    noise = [
        (
            f"sign {i} under noise",
            rarely.Problem(
                signs, rarely.Misclassification(int(labels[i])), rarely.LpBall(pictures[i], 0.1, clip=(0, 1))
            ),
            1e-3,
        )
        for i in (2, 4)
    ]
    brake = rarely.load_problem(assets() / "cruise.onnx", assets() / "brake-30m.vnnlib")
    return [*noise, ("braking at 30 m", brake, 1e-4)]


def main() -> int:
    passed = True
    for name, problem, p_max in requirements():
        decision = rarely.test(problem, p_max, CONFIDENCE)
        print(f"{name}: {decision}")
        if decision.ruling is Ruling.REJECTED:
            print(f"  a violating input, score {float(decision.witnesses.scores[0]):.3g}, is in decision.witnesses")
        # Undecided is not passed: the probability is too near the threshold for the budget.
        passed &= decision.ruling is Ruling.ACCEPTED
    print("the gate is open" if passed else "the gate stays shut")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
