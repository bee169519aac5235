"""An answer that was written, asked again from the same files, and whether the new one agrees with it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from rarely import registry
from rarely.campaign.asked import Asked, changed, seen
from rarely.campaign.compare import difference, ratio
from rarely.campaign.gate import Gate, decide, decide_each, together
from rarely.core.errors import FormatError, InputError
from rarely.core.evidence import Evidence
from rarely.core.execution import Execution
from rarely.io.files import read_text
from rarely.questions.conclude import believe
from rarely.questions.estimate import estimate
from rarely.questions.result import Estimate, Outcome
from rarely.questions.threshold import Decision

Answer = Estimate | Decision | Gate
_SURE = 0.999  # confidence of the intervals that must be apart before two numbers differ: one false alarm in a thousand
_RECORD = '<script type="application/json" id="record">'  # where a page holds what it was made of
_PASSING = ("seconds", "provenance")  # what may differ in two answers that are the same to the bit
_KINDS: dict[str, type] = {
    "estimator": str, "kernel": str, "confidence": float, "p_min": float, "p_max": float, "max_evaluations": int,
    "timeout": float, "seed": int, "device": str, "dtype": str,
    **{name: setting.kind for name, setting in registry.SETTINGS.items()},
}  # fmt: skip
_CHOICES = {"estimator": registry.ESTIMATORS, "kernel": registry.KERNELS, "dtype": ("float32", "float64")}
_NEEDED = {"estimate": ("estimator", "confidence", "seed"), "certify": ("p_max", "confidence", "timeout", "seed")}


class Agreement(Enum):
    """How two answers to one question stand to each other, the worst last."""

    SAME = "same to the bit"
    COMPATIBLE = "statistically compatible"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Replay:
    """An answer, the one to the same question now, and what is to be said of the two."""

    then: Answer
    now: Answer
    agreement: Agreement
    told: str

    def __str__(self) -> str:
        return f"{self.agreement.value}: {self.told}"


def read_answers(file: Path) -> list[Answer]:
    """The answers in JSON of `rarely estimate` and `rarely certify`, or the one in a page that was made of it."""
    text = read_text(file)
    if text.lstrip()[:1] == "<":
        start, end = text.find(_RECORD), text.rfind("</script>")
        if not 0 <= start < end:
            raise FormatError(file, "not a page that `rarely evidence` wrote")
        text = text[start + len(_RECORD) : end]
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(file, f"not JSON: {str(error)[:200] or type(error).__name__}") from error
    answers = [_answer(one, str(file)) for one in (content if isinstance(content, list) else [content])]
    if not answers:
        raise FormatError(file, "there is no answer in it")
    return answers


def _answer(data: Any, source: str) -> Answer:
    if isinstance(data, dict):
        if "decisions" in data:
            return Gate.from_data(data, source)
        if "ruling" in data:
            return Decision.from_data(data, source)
        if "outcome" in data:
            return Estimate.from_json(json.dumps(data), source)
        if "rows" in data:
            raise FormatError(source, "a study of robustness decides nothing; `rarely certify --inputs` does")
    raise FormatError(source, "not an answer of `rarely estimate` or `rarely certify`")


def replay(answers: Sequence[Answer], folders: Sequence[Path], *, trust_code: bool, source: str) -> list[Replay]:
    """Ask again, from files that are checked to be the same; those not where they were are looked for in `folders`."""
    asked = [_asked(answer, folders, source) for answer in answers]
    code = list(dict.fromkeys(name for one in asked for name in one.code()))
    if code and not trust_code:
        raise InputError(
            f"{source} says that {', '.join(code[:3])} is to be run, which is code: say --trust-code if it is yours"
        )
    for answer, one in zip(answers, asked, strict=True):
        if differ := changed(answer.provenance, seen(one)):
            raise InputError(f"{', '.join(differ[:3])}: not the file that the answer is about, its sha256 is another")
    made = answers[0].provenance
    threads = torch.get_num_threads()
    try:
        if isinstance(made.get("threads"), int):  # sums of floats depend on how many threads share them
            torch.set_num_threads(max(1, min(made["threads"], os.cpu_count() or 1)))
        now = _answered(asked, str(made.get("device")))
    finally:
        torch.set_num_threads(threads)
    return [_compared(*both) for both in zip(answers, now, strict=True)]


def _asked(answer: Answer, folders: Sequence[Path], source: str) -> Asked:
    told = answer.provenance.get("asked")
    if told is None or "files" not in answer.provenance:
        raise InputError(
            f"{source} does not say what was asked, of which files: replay takes what `rarely estimate` and `rarely "
            "certify` write with --json since they record it"
        )
    asked = Asked.from_data(told, source)
    fits = {"estimate": Estimate, "certify": Decision if asked.images is None else Gate}.get(asked.question)
    if fits is None or not isinstance(answer, fits):
        raise FormatError(source, f"its answer is none to the question {asked.question!r} that it says was asked")
    if asked.images is not None and len(asked.images.radii) != 1:
        raise FormatError(source, f"a gate has one radius, not {len(asked.images.radii)}")
    for key, value in asked.settings.items():
        kind = _KINDS.get(key)
        known = _CHOICES.get(key) or (value,)
        word = key in registry.SETTINGS and registry.SETTINGS[key].word == value
        number = isinstance(value, float | int if kind is float else kind or ()) and not isinstance(value, bool)
        if kind is None or value not in known or not (number or word):
            raise FormatError(source, f"the setting {key} = {value!r} cannot be used")
    if missing := [key for key in _NEEDED[asked.question] if key not in asked.settings]:
        raise FormatError(source, f"the setting {missing[0]} is missing")
    return asked.moved(folders)


def _answered(asked: Sequence[Asked], device: str) -> Sequence[Answer]:
    """The answers now. Estimates of one file ran as one batch, on whose size their random numbers depend."""
    first = asked[0]
    settings = {"max_evaluations": None, "dtype": None, "device": "auto", **first.settings}
    if device == "cpu":  # which every machine has, whatever `auto` would choose here
        settings["device"] = device
    if first.question == "certify":
        return [_ruled(one, settings) for one in asked]
    settings = {"kernel": None, "p_min": None, "timeout": None, **settings}
    own = {name: settings.pop(name) for name in registry.SETTINGS if name in settings}
    estimator: Any = registry.make_estimator(str(settings.pop("estimator")), settings.pop("kernel"), own)  # type: ignore[arg-type]
    dtype = settings.pop("dtype")
    execution = Execution(str(settings.pop("device")), None if dtype is None else getattr(torch, str(dtype)))
    how: dict[str, Any] = {**settings, "execution": execution}
    return estimate([one.problem() for one in asked], estimator, **how)


def _ruled(asked: Asked, settings: dict[str, Any]) -> Decision | Gate:
    if asked.images is None:
        return decide(asked.problem(), settings)
    standing = asked.entrants()
    return together([one for one, _ in standing], list(decide_each([problem for _, problem in standing], settings)))


def _compared(then: Answer, now: Answer) -> Replay:
    if _plain(then) == _plain(now):
        return Replay(then, now, Agreement.SAME, _said(now))
    if isinstance(then, Gate) and isinstance(now, Gate):
        return _compared_gates(then, now)
    word, is_now = (_word(answer) for answer in (then, now))
    if word != is_now:
        return Replay(then, now, Agreement.DIFFERS, f"it was {word}, and is {is_now}: {_said(now)}")
    assert not isinstance(then, Gate)
    assert not isinstance(now, Gate)
    apart = _apart(then.evidence, now.evidence)
    if apart is None:
        return Replay(then, now, Agreement.COMPATIBLE, f"{word}, as it was, with other numbers of calls or pieces")
    log_ratio, low, high = apart
    told = f"now over then is {ratio(log_ratio)}, {_SURE:.1%} in [{ratio(low)}, {ratio(high)}]"
    clear = low > 0 or high < 0
    return Replay(then, now, Agreement.DIFFERS if clear else Agreement.COMPATIBLE, f"{word}, as it was; {told}")


def _compared_gates(then: Gate, now: Gate) -> Replay:
    if then.images != now.images or then.ruling is not now.ruling:
        return Replay(then, now, Agreement.DIFFERS, f"it was {then}; it is {now}")
    each = [_compared(a, b) for a, b in zip(then.decisions, now.decisions, strict=True)]
    worst = max((one.agreement for one in each), key=list(Agreement).index)
    first = next(one for one in each if one.agreement is worst)
    return Replay(then, now, worst, f"{now.ruling.value}, as it was; {first.now.name}: {first.told}")  # type: ignore[union-attr]


def _apart(then: Sequence[Evidence], now: Sequence[Evidence]) -> tuple[float, float, float] | None:
    """The difference of the two numbers with its interval at high confidence; None where there are not two."""
    beliefs = believe(then), believe(now)
    sides = [
        (belief.number.log_prob, belief.interval(_SURE))
        for belief in beliefs
        if belief.outcome is Outcome.VIOLATED and belief.number is not None
    ]
    return difference(*sides[0], *sides[1]) if len(sides) == 2 else None


def _plain(answer: Any) -> Any:
    """What must be the same, as JSON has it."""
    data = json.loads(answer.to_json())
    data.pop("witnesses", None)  # the evidence says how many there are, also once it was read from a file

    def lasting(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: lasting(value) for key, value in part.items() if key not in _PASSING}
        return [lasting(one) for one in part] if isinstance(part, list) else part

    return lasting(data)


def _word(answer: Any) -> str:
    return str(answer.word if isinstance(answer, Estimate) else answer.ruling.value)


def _said(answer: Any) -> str:
    """The answer without its name and what it cost."""
    told = str(answer if isinstance(answer, Gate) else replace(answer, name=""))
    return told.rpartition(" (")[0] or told
