"""`rarely inspect`: what is in a network or a property."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, plain_table, prints, screen, write_json

if TYPE_CHECKING:
    from rarely.io.formats.specification import Specification


def inspect(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A network, a .vnnlib property, or an .rlv file with both.")
    ],
    architecture: opt.Architecture = None,
    trust_pickle: opt.TrustPickle = False,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Show what is in a network or a property: shapes, operators, parameters, box volume, clauses."""
    check_writable(json_file)
    content = _content(file, architecture, trust_pickle)
    deliver(lambda: _show(file, content), prints(quiet, json_file), lambda: write_json(json_file, content))


def _show(file: str, content: dict[str, Any]) -> None:
    table = plain_table("", Path(file).name)
    for label, value in _lines(content):
        table.add_row(label, value)
    screen().print(table)


def _content(file: str, architecture: str | None, trust_pickle: bool) -> dict[str, Any]:
    from rarely.io.formats.vnnlib import read_vnnlib
    from rarely.io.networks import load_network
    from rarely.io.problems import is_rlv, load_pair

    if file.lower().endswith((".vnnlib", ".vnnlib.gz")):
        return {"file": file, "property": describe_property(read_vnnlib(file))}
    if is_rlv(file):
        network, specification = load_pair(file)
        return {"file": file, "network": describe_network(network), "property": describe_property(specification)}
    return {
        "file": file,
        "network": describe_network(load_network(file, architecture=architecture, trust_pickle=trust_pickle)),
    }


def describe_network(network: Any) -> dict[str, Any]:
    import torch

    is_module = isinstance(network, torch.nn.Module)
    parameters = list(network.parameters()) if is_module else []
    operators = getattr(network, "operators", None)
    if operators is None and is_module:
        operators = Counter(type(part).__name__ for part in network.modules() if not list(part.children()))
    return {
        "kind": type(network).__name__,
        **{name: getattr(network, name, None) for name in ("input_shape", "output_shape")},
        "operators": dict(operators or {}),
        "parameters": sum(p.numel() for p in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "gradients": is_module,
    }


def describe_property(specification: Specification) -> dict[str, Any]:
    cases = []
    for case in specification.cases:
        width = case.high - case.low
        free = width > 0
        cases.append(
            {
                "free_inputs": int(free.sum()),
                "log_volume": float(sum(math.log(w) for w in width[free].tolist())),
                "input_constraints": 0 if case.input_constraints is None else len(case.input_constraints.b),
                "clauses": len(case.outputs),
                "output_constraints": sum(len(polytope.b) for polytope in case.outputs),
                "low": case.low.tolist(),
                "high": case.high.tolist(),
            }
        )
    return {"inputs": specification.n_inputs, "outputs": specification.n_outputs, "cases": cases}


def _lines(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    network, prop = content.get("network"), content.get("property")
    if network is not None:
        yield "network", network["kind"]
        for side in ("input", "output"):
            shape = network[f"{side}_shape"]
            yield f"{side} shape", "not stated in the file" if shape is None else " x ".join(map(str, shape))
        yield "operators", ", ".join(f"{name} {count}" for name, count in sorted(network["operators"].items())) or "?"
        yield "parameters", f"{network['parameters']:,}"
        yield "dtype", network["dtype"] or "none: no parameters"
        yield "gradients", "yes" if network["gradients"] else "no: a black box"
    if prop is not None:
        yield "property", f"{prop['inputs']} inputs, {prop['outputs']} outputs, {len(prop['cases'])} input region(s)"
        for i, case in enumerate(prop["cases"][:_SHOWN], 1):
            fixed = prop["inputs"] - case["free_inputs"]
            yield (
                f"region {i}",
                f"log volume {case['log_volume']:.2f} over {case['free_inputs']} free inputs, {fixed} fixed",
            )
            if case["input_constraints"]:
                yield "", f"{case['input_constraints']} linear constraint(s) across inputs"
            yield (
                "",
                f"violated by any of {case['clauses']} clause(s), {case['output_constraints']} inequalities in all",
            )
        if len(prop["cases"]) > _SHOWN:
            yield "", f"and {len(prop['cases']) - _SHOWN} more regions; --json lists all"


_SHOWN = 8
