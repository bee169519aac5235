"""Options that several commands share, with their help. Those of estimators are made from the registry."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from rarely import registry

if TYPE_CHECKING:
    from rarely.methods.base import Estimator

ESTIMATOR, RUN, FILES = "Estimator", "Run", "Files"  # headings of the help
FIGURES = (".svg", ".png", ".pdf")


def _names(kind: str, known: dict[str, str]) -> Any:
    """An enumeration of the registry's names, which typer checks and lists."""
    return StrEnum(kind, {name.replace("-", "_"): name for name in known})


EstimatorName, KernelName = _names("EstimatorName", registry.ESTIMATORS), _names("KernelName", registry.KERNELS)


class DtypeName(StrEnum):
    float32 = "float32"
    float64 = "float64"


@dataclass(frozen=True)
class EstimatorChoice:
    """The estimator that was asked for, with its settings (None: not given)."""

    estimator: str
    kernel: str | None
    settings: dict[str, Any]

    def make(self) -> Estimator:
        return registry.make_estimator(self.estimator, self.kernel, self.settings, _option)

    def plain(self) -> dict[str, Any]:
        """What was given, by name."""
        return {"estimator": self.estimator, "kernel": self.kernel, **self.settings}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number_or(word: str) -> Callable[[str], int | str]:
    def parse(text: str) -> int | str:
        if text == word:
            return text
        try:
            return int(text)
        except ValueError:
            raise typer.BadParameter(f"a whole number or {word} is expected") from None

    return parse


def _figure(file: Path | None) -> Path | None:
    if file is not None and file.suffix.lower() not in FIGURES:
        raise typer.BadParameter(f"a figure is written as {', '.join(FIGURES)}")
    return file


def arrays(file: Path | None) -> Path | None:
    """As numpy would name it."""
    return file if file is None or file.suffix == ".npz" else Path(f"{file}.npz")


NetworkFile = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="Network: .onnx, .onnx.gz (FILE:OUTPUT for one of several outputs), .pt2, TorchScript, weights with "
        "--architecture, or module:attribute.",
        show_default=False,
    ),
]
Confidence = Annotated[float, typer.Option(help="Confidence of the interval.", rich_help_panel=RUN)]
MaxEvaluations = Annotated[
    int | None,
    typer.Option(help="Network calls allowed to each problem (a gradient is three).", rich_help_panel=RUN),
]
PMin = Annotated[
    float | None,
    typer.Option(
        "--p-min",
        help="Floor: where p is smaller, the answer is that it lies below, and costs less. "
        "Default: 1e-12 for robustness, else 1e-100.",
        rich_help_panel=RUN, show_default=False,
    ),
]  # fmt: skip
Timeout = Annotated[float | None, typer.Option("--timeout", "-t", help="Seconds for the run.", rich_help_panel=RUN)]
Seed = Annotated[int, typer.Option(help="Seed: the same one gives the same numbers.", rich_help_panel=RUN)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...", rich_help_panel=RUN)]
Dtype = Annotated[
    DtypeName | None,
    typer.Option(help="Precision; default: the network's own.", rich_help_panel=RUN, show_default=False),
]
InputModel = Annotated[
    str | None,
    typer.Option(
        "--input-model",
        metavar="MODEL",
        help=f"How inputs fall in the property's box: {registry.input_model_help()}. Default: uniform.",
        rich_help_panel=FILES,
        show_default=False,
    ),
]
WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes that share the calls of a function that takes long, one input at a time.",
        rich_help_panel=RUN, show_default=False,
    ),
]  # fmt: skip
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=RUN, show_default=False,
        help="Keep the answers of a function that takes long; the same command goes on from them.",
    ),
]  # fmt: skip
Architecture = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:CALLABLE",
        help="What makes the network, for files that hold only weights (.safetensors, state dicts).",
        rich_help_panel=FILES,
    ),
]
TrustPickle = Annotated[
    bool,
    typer.Option("--trust-pickle", help="Open pickled files. That can run any code in them.", rich_help_panel=FILES),
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write results as JSON; - for stdout.")]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", callback=_figure, metavar="FILE", help="Draw the result: .svg, .png or .pdf.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@dataclass(frozen=True)
class RunSettings:
    """How to run, whatever the estimator."""

    confidence: Confidence = 0.95
    p_min: PMin = None
    max_evaluations: MaxEvaluations = None
    timeout: Timeout = None
    seed: Seed = 0
    device: Device = "auto"
    dtype: Dtype = None
    workers: WorkerCount = None
    checkpoint: Checkpoint = None

    def with_floor(self, p_min: float, method: EstimatorChoice) -> RunSettings:
        """With a floor where the user named none and the method has one."""
        if (
            self.p_min is not None
            or method.settings.get("log_p_min") is not None
            or not hasattr(method.make(), "log_p_min")
        ):
            return self
        return replace(self, p_min=p_min)

    def keywords(self) -> dict[str, Any]:
        """As `estimate` takes them."""
        import torch

        return {**self.__dict__, "dtype": None if self.dtype is None else getattr(torch, self.dtype.value)}

    def plain(self) -> dict[str, Any]:
        """The same as JSON may hold it."""
        return {**self.__dict__, "dtype": None if self.dtype is None else self.dtype.value}


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _setting(name: str, setting: registry.Setting) -> inspect.Parameter:
    names = [_option(name), *filter(None, [setting.short])]
    told: dict[str, Any] = {"help": setting.help, "rich_help_panel": ESTIMATOR, "show_default": False}
    told["hidden"] = setting.hidden
    kind: Any = setting.kind
    if setting.word:
        kind, told = str, {**told, "parser": _number_or(setting.word), "metavar": f"N|{setting.word}"}
    return _parameter(name, Annotated[kind | None, typer.Option(*names, **told)], None)


_METHOD = [
    _parameter(
        "estimator",
        Annotated[
            EstimatorName,
            typer.Option("--estimator", "-e", help="Method of estimation.", rich_help_panel=ESTIMATOR),
        ],
        EstimatorName("auto"),
    ),
    _parameter(
        "kernel",
        Annotated[
            KernelName | None,
            typer.Option(
                help="Markov kernel of splitting; default: pcn where the input model allows it, else random-walk.",
                rich_help_panel=ESTIMATOR,
                show_default=False,
            ),
        ],
        None,
    ),
    *(_setting(name, setting) for name, setting in registry.SETTINGS.items()),
]
_KINDS = get_type_hints(RunSettings, include_extras=True)
_RUN = [_parameter(field.name, _KINDS[field.name], field.default) for field in fields(RunSettings)]


def estimating(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose arguments `method` and `run` are given by the options of every estimator and of every run."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    groups = {"method": _METHOD, "run": _RUN}
    expanded = [option for p in parameters for option in groups.get(p.name, [p])]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        chosen = {p.name: given.pop(p.name) for p in _METHOD}
        estimator, kernel = chosen.pop("estimator"), chosen.pop("kernel")
        method = EstimatorChoice(str(estimator), None if kernel is None else str(kernel), chosen)
        run = RunSettings(**{p.name: given.pop(p.name) for p in _RUN})
        command(method=method, run=run, **given)

    call.__signature__ = signature.replace(parameters=expanded)  # type: ignore[attr-defined]
    return call
