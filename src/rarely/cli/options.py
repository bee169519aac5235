"""Options that several commands share, with their help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

ESTIMATOR, RUN, FILES = "Estimator", "Run", "Files"  # headings of the help
FIGURES = (".svg", ".png", ".pdf")


class EstimatorName(StrEnum):
    auto = "auto"
    splitting = "splitting"
    monte_carlo = "monte-carlo"
    line_sampling = "line-sampling"
    importance = "importance"


class KernelName(StrEnum):
    pcn = "pcn"
    random_walk = "random-walk"
    langevin = "langevin"
    hmc = "hmc"
    hit_and_run = "hit-and-run"


class DtypeName(StrEnum):
    float32 = "float32"
    float64 = "float64"


def _steps(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter("a whole number or auto is expected") from None


def _figure(file: Path | None) -> Path | None:
    if file is not None and file.suffix.lower() not in FIGURES:
        raise typer.BadParameter(f"a figure is written as {', '.join(FIGURES)}")
    return file


NetworkFile = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="Network: .onnx, .onnx.gz, .pt2, TorchScript, weights with --architecture, or module:attribute.",
        show_default=False,
    ),
]
Estimator = Annotated[
    EstimatorName, typer.Option("--estimator", "-e", help="Method of estimation.", rich_help_panel=ESTIMATOR)
]
Kernel = Annotated[
    KernelName | None,
    typer.Option(
        help="Markov kernel of splitting; default: pcn where the input model allows it, else random-walk.",
        rich_help_panel=ESTIMATOR,
        show_default=False,
    ),
]
Particles = Annotated[
    int | None,
    typer.Option("--particles", "-n", help="Particles of each population.", rich_help_panel=ESTIMATOR),
]
Quantile = Annotated[
    float | None, typer.Option(help="Share of particles that survive a level.", rich_help_panel=ESTIMATOR)
]
Steps = Annotated[
    str | None,
    typer.Option(parser=_steps, metavar="N|auto", help="Kernel steps at each level.", rich_help_panel=ESTIMATOR),
]
Islands = Annotated[
    int | None,
    typer.Option(help="Independent populations; their spread gives the interval.", rich_help_panel=ESTIMATOR),
]
LogPMin = Annotated[
    float | None,
    typer.Option("--log-p-min", help="Floor: give up below this natural log of p.", rich_help_panel=ESTIMATOR),
]
Samples = Annotated[int | None, typer.Option(help="Inputs drawn at most by each problem.", rich_help_panel=ESTIMATOR)]
TargetError = Annotated[
    float | None, typer.Option(help="Stop at this relative standard error of p.", rich_help_panel=ESTIMATOR)
]
Confidence = Annotated[float, typer.Option(help="Confidence of the interval.", rich_help_panel=RUN)]
MaxEvaluations = Annotated[
    int | None,
    typer.Option(help="Network calls allowed to each problem (a gradient is three).", rich_help_panel=RUN),
]
Timeout = Annotated[float | None, typer.Option("--timeout", "-t", help="Seconds for the run.", rich_help_panel=RUN)]
Seed = Annotated[int, typer.Option(help="Seed: the same one gives the same numbers.", rich_help_panel=RUN)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...", rich_help_panel=RUN)]
Dtype = Annotated[
    DtypeName | None,
    typer.Option(help="Precision; default: the network's own.", rich_help_panel=RUN, show_default=False),
]
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
