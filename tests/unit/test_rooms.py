"""The rooms of the package: which may import which, who may speak of devices, and what a plain problem loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rarely

ROOT = Path(rarely.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# What each room may import when the program runs. Imports for type checkers alone do not count.
ROOMS: dict[str, set[str]] = {
    "stats": set(),
    "display": set(),
    "core": {"display", "stats"},
    "inputs": {"core", "stats"},
    "gpu": {"core", "stats"},
    "kernels": {"core", "gpu", "stats"},
    "bounds": {"core", "inputs", "stats"},
    "methods": {"bounds", "core", "gpu", "inputs", "kernels", "stats"},
    "questions": {"bounds", "core", "display", "inputs", "kernels", "methods", "registry", "stats"},
    "io": {"core", "inputs", "stats", "registry"},
    "campaign": {"bounds", "core", "inputs", "io", "kernels", "methods", "questions", "registry", "stats"},
    "report": {"campaign", "core", "display", "io", "questions"},
    "systems": {"core", "display", "inputs", "io"},
    "demo": {"core", "display", "inputs", "io", "questions", "report"},
    "cli": {"campaign", "core", "demo", "display", "io", "questions", "registry", "report"},
    "integrations": {"core", "io", "questions", "testing"},
}
# Modules beside the rooms. `registry` finds what it names when it is asked for; until then it knows errors alone.
MODULES: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    "registry": {"core"},
    "testing": {"core", "questions"},
    "vision": {"core"},
}

DEVICES = {
    "core/execution.py": "chooses the device, and how much fits on it",
    "core/rng.py": "saves and restores the generators of the device",
    "stats/fused.py": "is made of kernels for GPUs",
    "gpu/compiler.py": "makes programs for GPUs and launches them",
    "cli/options.py": "lists the devices that a user may name",
}


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every module of the package that is imported, wherever the import stands, but for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("rarely"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole way"
            if node.module == "rarely":  # a room, a module beside them, or a public name of the package
                yield from (f"rarely.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
            elif node.module is not None and node.module.startswith("rarely."):
                inside = ROOT.joinpath(*node.module.split(".")[1:])
                for alias in node.names:
                    yield f"{node.module}.{alias.name}" if (inside / f"{alias.name}.py").exists() else node.module
        yield from _imports(node)


def _broken(path: Path, tree: ast.AST) -> list[str]:
    room, place = _room(path), path.relative_to(ROOT).as_posix()
    allowed = {room} | (ROOMS[room] if room in ROOMS else MODULES[room])
    return [f"{place} imports {module}" for module in _imports(tree) if module.split(".")[1] not in allowed]


def test_every_module_is_in_a_room() -> None:
    assert {_room(path) for path in SOURCES} == ROOMS.keys() | MODULES.keys()
    assert {path.stem for path in ROOT.glob("*.py")} == MODULES.keys()


@pytest.mark.parametrize("room", [*ROOMS, *MODULES])
def test_rooms_import_what_is_below_them(room: str) -> None:
    assert not [line for path in SOURCES if _room(path) == room for line in _broken(path, ast.parse(path.read_text()))]


@pytest.mark.parametrize(
    "code",
    [
        "from rarely.questions.strategy import Auto",
        "def f():\n    import rarely.io.problems",
        "try:\n    from rarely import registry\nexcept ImportError:\n    pass",
    ],
)
def test_a_broken_rule_is_seen(code: str) -> None:
    assert _broken(ROOT / "kernels" / "new.py", ast.parse(code))


def test_imports_for_type_checkers_do_not_count() -> None:
    code = "if TYPE_CHECKING:\n    from rarely.questions.strategy import Auto"
    assert not _broken(ROOT / "kernels" / "new.py", ast.parse(code))


def test_no_room_is_above_and_below_another() -> None:
    """Rooms stand in the order of the table: each imports only what stands before it."""
    order = list(ROOMS)
    for room, below in ROOMS.items():
        assert all(other in MODULES or order.index(other) < order.index(room) for other in below), room


def _speaks_of_devices(tree: ast.AST) -> bool:
    """Whether `cuda` is part of the code: an attribute, or a text that is not the docstring of something."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "cuda")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and "cuda" in node.value)
        for node in ast.walk(tree)
        if id(node) not in told
    )


def test_few_speak_of_devices() -> None:
    speaking = {p.relative_to(ROOT).as_posix() for p in SOURCES if _speaks_of_devices(ast.parse(p.read_text()))}
    assert speaking == DEVICES.keys()


def test_a_plain_problem_loads_no_file_formats() -> None:
    code = """
import sys, torch, rarely
network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
problem = rarely.Problem(network, rarely.Misclassification(), rarely.LpBall(torch.zeros(2), 0.5))
print(rarely.estimate(problem, max_evaluations=2000))
loaded = {name.partition(".")[0] for name in sys.modules} & {"onnx", "onnxruntime", "matplotlib", "pydantic", "typer"}
assert not loaded, loaded
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("rarely.")}
assert not rooms & {"io", "campaign", "report", "cli", "demo"}, rooms
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
