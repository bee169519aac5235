"""`rarely doctor`: is this installation sound, what can it use, and what would make it do more?"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, plain_table, prints, screen, write_json

if TYPE_CHECKING:
    from rarely.demo.selfcheck import Check

FAILED = 1  # exit code
_FEW = 3  # packages of an extra whose versions are shown
_CORE = ("torch", "numpy", "onnx", "safetensors", "pydantic", "typer", "rich", "matplotlib", "pillow", "jinja2")
# What each extra of pyproject.toml is for.
GIVES = {
    "onnxruntime": "a second opinion on every ONNX import; runs operators that the importer does not know",
    "vnnlib2": "reads VNN-LIB 2.0 files",
    "verify": "Marabou, an independent verifier that the tests compare proofs with",
    "dask": "campaigns on other machines, Slurm and Kubernetes",
    "tables": "results as pandas frames and Parquet files",
    "tracking": "robustness during training, logged to TensorBoard and MLflow",
    "sklearn": "tests with fitted models of scikit-learn, which need nothing of rarely's",
    "lightning": "robustness during training with Lightning: rarely.integrations.lightning",
    "transformers": "language models, and robustness during training with a Trainer: rarely.integrations.transformers",
    "plotly": "figures to point at: rarely plot -o FILE.html",
    "peers": "OpenTURNS, for the comparison in benchmarks/peers.py",
    "gymnasium": "environments as closed loops: rarely.systems.environment",
    "policies": "policies that stable-baselines3 saved: rarely.systems.load_policy",
    "docs": "builds this documentation: make docs",
    "dev": "what make test needs",
}


@dataclass(frozen=True)
class Part:
    """An extra: its packages with their versions, None for one that is missing."""

    extra: str
    gives: str
    packages: dict[str, str | None]

    @property
    def installed(self) -> bool:
        return None not in self.packages.values()


def doctor(json_file: opt.JsonFile = None, quiet: opt.Quiet = False) -> None:
    """Show versions, devices and optional parts, and check that estimates agree with exact answers.

    The check takes some seconds. Exit codes: 0 when it passes, 1 when it does not.
    """
    from rarely import __version__
    from rarely.core.execution import devices
    from rarely.demo import selfcheck

    check_writable(json_file)
    versions = {"rarely": __version__, "python": sys.version.split()[0], **{name: _version(name) for name in _CORE}}
    places, parts, data = devices(), list(optional_parts()), os.environ.get("RARELY_DATA")
    checks = list(selfcheck.checks())
    passed = all(check.passed for check in checks)
    known = {
        "passed": passed,
        "versions": versions,
        "devices": places,
        "parts": [{**asdict(part), "installed": part.installed} for part in parts],
        "data": data,
        "checks": [{"name": c.name, "passed": c.passed, "exact": c.exact, "estimate": c.estimate} for c in checks],
    }

    def show() -> None:
        _show({name: version or "missing" for name, version in versions.items()}, places, parts, data)
        _show_checks(checks)
        if passed:
            screen().print("Every check passed.", style="green")
        else:
            screen().print("An estimate contradicts an exact answer: trust no number from here.", style="red")

    deliver(show, prints(quiet, json_file), lambda: write_json(json_file, known))
    if not passed:
        raise typer.Exit(FAILED)


def optional_parts() -> list[Part]:
    """The extras that the installed package declares."""
    try:
        declared = metadata.metadata("rarely").get_all("Provides-Extra") or []
        required = metadata.requires("rarely") or []
    except metadata.PackageNotFoundError:  # a bare source tree on the path
        return []
    found = []
    for extra in declared:
        mine = [line for line in required if re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", line)]
        names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in mine]
        packages = {name: _version(name) for name in names if name != "rarely"}
        found.append(Part(extra, GIVES.get(extra, ""), packages))
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _show(versions: dict[str, str], places: dict[str, str], parts: Sequence[Part], data: str | None) -> None:
    table: Any = plain_table("", "")
    table.show_header = False
    for name in ("rarely", "python"):
        table.add_row(name, versions[name])
    table.add_row("built on", ", ".join(f"{name} {versions[name]}" for name in _CORE))
    for name, what in places.items():
        table.add_row(name, what)
    folder = "RARELY_DATA is not set; only tests and the paper's experiments need it"
    if data:
        folder = f"{data}{'' if Path(data).is_dir() else ': no such folder'}"
    table.add_row("data", folder)
    screen().print(table)
    table = plain_table("extra", "installed", "gives")
    for part in parts:
        state = "yes" if part.installed else f"no: pip install 'rarely\\[{part.extra}]'"
        if part.installed and len(part.packages) <= _FEW:
            state = ", ".join(f"{name} {version}" for name, version in part.packages.items())
        table.add_row(part.extra, state, part.gives)
    screen().print(table)


def _show_checks(checks: Sequence[Check]) -> None:
    from rarely.questions.result import scientific

    table = plain_table("check", "exact", "estimate", f"{checks[0].estimate.interval.confidence:.2%} interval", "")
    for check in checks:
        low, high = check.estimate.interval.low, check.estimate.interval.high
        table.add_row(
            check.name,
            scientific(check.exact),
            scientific(check.estimate.log_prob),
            f"{scientific(low)} to {scientific(high)}" if low < high else "proved",
            "[green]ok[/green]" if check.passed else f"[red]wrong ({check.estimate.outcome.value})[/red]",
        )
    screen().print(table)
