"""For safety assessors: is every requirement met, by what argument, and under which models of the inputs?

Run it with `python examples/safety_case.py`. Three requirements of the shipped cruise controller are decided, by proof
where there is one, under several models of the inputs: a number is worth no more than its model. What decisions by
statistics may get wrong is shared out among them, so that the stated confidence holds for all together. The record,
safety_case.json, names files by their hashes. It exits with 0 only when everything is accepted.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import rarely
from rarely.demo import assets
from rarely.questions.threshold import Decision, Ruling

CONFIDENCE = 0.999  # of all decisions together
NETWORK = assets() / "cruise.onnx"  # put your own network here, and its properties below
REQUIREMENTS = {  # property, and the probability that must not be reached
    "brakes within 30 m": ("brake-30m.vnnlib", 1e-6),
    "brakes within 25 m": ("brake-25m.vnnlib", 1e-9),
    "brakes within 25 m, closing fast": ("brake-25m-fast.vnnlib", 1e-9),
}
# States in the box of the property: all equally likely, or near its middle more often than at its borders.
MODELS = {"uniform": "uniform", "normal, narrow": "gaussian:0.05", "normal, wide": "gaussian:0.2"}


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def argument(decision: Decision) -> str:
    if decision.ruling is Ruling.UNDECIDED:
        return "no argument"
    return "proof" if decision.confidence == 1 else f"statistics at {decision.confidence:.5g}"


def main() -> int:
    asked = [(what, model) for what in REQUIREMENTS for model in MODELS]
    each = 1 - (1 - CONFIDENCE) / len(asked)  # whatever one decision has to do with another
    record, passed = [], True
    for what, model in asked:
        file, p_max = REQUIREMENTS[what]
        problem = rarely.load_problem(NETWORK, assets() / file, input_model=MODELS[model], name=what)
        decision = rarely.certify(problem, p_max, each, timeout=20)
        passed &= decision.ruling is Ruling.ACCEPTED  # undecided is not accepted
        print(f"{what}, inputs {model}: {decision.ruling.value} by {argument(decision)}")
        print(f"    {decision.sentence}")
        files = {path.name: sha256(path) for path in (NETWORK, assets() / file)}
        record.append({"requirement": what, "inputs": model, "sha256": files, **json.loads(decision.to_json())})
    Path("safety_case.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    print("Not checked: that states on the road fall as a model here says, and what the property does not mention.")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
