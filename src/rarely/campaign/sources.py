"""The Python sources behind `file.py:attribute` and `module:attribute`, found without running them.

Imports are read from the text and followed from file to file. The standard library and installed distributions are
known by their versions instead.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from rarely.campaign.tasks import digest
from rarely.core.errors import FormatError

_STANDARD = Path(sysconfig.get_path("stdlib"))
_MOST = 2000  # sources that are followed from one name
_CODE, _DATA, _ENVIRONMENT = "code that {} finds", "files that {} reads", "environment variables that {} reads"
_TELLTALES = {
    **dict.fromkeys(
        ("import_module", "__import__", "exec", "eval", "run_path", "run_module", "spec_from_file_location"), _CODE
    ),
    **dict.fromkeys(
        (
            "open", "load", "load_file", "safe_open", "loadtxt", "genfromtxt", "fromfile", "memmap", "open_memmap",
            "loadmat", "read_bytes", "read_text", "read_csv", "read_json", "read_parquet", "read_pickle", "read_table",
            "imread", "read_image", "ImageFolder", "from_pretrained", "load_url", "load_state_dict_from_url", "urlopen",
            "get_data", "read_binary", "ZipFile", "InferenceSession",
        ),
        _DATA,
    ),
    **dict.fromkeys(("environ", "getenv"), _ENVIRONMENT),
}  # fmt: skip
_BUILT_IN = {word: word for word in ("open", "exec", "eval", "__import__")}
_PLAIN = {"exec", "eval"}  # as methods they mean something else: every torch module has `eval()`
_OUTSIDE = {"subprocess", "socket", "http", "urllib", "requests", "sqlite3", "shelve", "dbm", "mmap", "ctypes", "h5py"}


@dataclass
class Sources:
    """What was found: files by the name of their module, versions by the name of their distribution."""

    files: dict[str, Path] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    uncovered: list[str] = field(default_factory=list)


def sources_of(module: str) -> Sources:
    """All that `module`, a file that ends with .py or the name of a module, is made of."""
    found = Sources(versions={"python": f"{sys.version_info.major}.{sys.version_info.minor}"})
    is_file = module.endswith(".py")
    beside = Path(module).parent if is_file else Path.cwd()
    if is_file and not Path(module).is_file():
        raise FormatError(module, "there is no such file")
    name = Path(module).name if is_file else module
    waiting = [(name, Path(module), "")] if is_file else list(_modules(module, "the plan", beside, found))
    while waiting:
        name, file, package = waiting.pop()
        if name in found.files:
            continue
        if len(found.files) >= _MOST:
            found.uncovered.append(f"what {module} imports beyond {_MOST} modules")
            break
        found.files[name] = file
        if file.suffix == ".py":
            waiting += _imports_of(name, file, package, beside, found)
    return found


def _imports_of(name: str, file: Path, package: str, beside: Path, found: Sources) -> list[tuple[str, Path, str]]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # importing it will say so
    found.uncovered += _hidden(name, tree)
    return [
        module
        for wanted, optional in _imported(tree, package)
        for module in _modules(wanted, name, beside, found, optional=optional)
    ]


def _imported(tree: ast.AST, package: str) -> Iterator[tuple[str, bool]]:
    """Names of modules that a source imports anywhere, and whether each may be no module but an object in one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(filter(None, (*kept, base)))
            if base:
                yield base, False
                yield from ((f"{base}.{alias.name}", True) for alias in node.names if alias.name != "*")


def _modules(
    name: str, asked_by: str, beside: Path, found: Sources, *, optional: bool = False
) -> Iterator[tuple[str, Path, str]]:
    """A module and the packages around it: name, file and the package that its relative imports start from."""
    parts = name.split(".")
    if parts[0] in ("rarely", "__main__"):  # known by their versions, or by the plan
        return
    spec = _find(parts[0], None, beside)
    if parts[0] in sys.stdlib_module_names and (spec := _namesake(parts[0], beside)) is None:
        return
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        if depth > 1:
            inside = None if spec is None else spec.submodule_search_locations
            spec = None if inside is None else _find(parts[depth - 1], list(inside), beside)
        if spec is None:
            if not (optional and depth == len(parts)):
                found.uncovered.append(f"the module {name}, which {asked_by} imports and which was not found")
            return
        known = _distribution(parts[0], spec)
        if known is not None:
            found.versions[known[0]] = known[1]
            return
        file = Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
        is_package = spec.submodule_search_locations is not None
        if file is not None:
            yield whole, file, whole if is_package else whole.rpartition(".")[0]
        elif not is_package:  # a package without a file of its own is a namespace
            found.uncovered.append(f"the module {whole}, which {asked_by} imports and which has no file")


def _find(name: str, inside: Sequence[str] | None, beside: Path) -> importlib.machinery.ModuleSpec | None:
    """Where a module lies, without importing the packages around it."""
    if inside is not None:
        return importlib.machinery.PathFinder.find_spec(name, inside)
    for finder in sys.meta_path:  # also those of editable installations
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(name, None) if find is not None else None
        if spec is not None:
            return spec
    return _near(name, beside)


def _near(name: str, beside: Path) -> importlib.machinery.ModuleSpec | None:
    """The working directory is searched for `module:attribute`; sources like to add their own folder."""
    return importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd()), str(beside)])


def _namesake(name: str, beside: Path) -> importlib.machinery.ModuleSpec | None:
    """A module of one's own with the name of a standard one, which it hides once a source has added its folder."""
    spec = _near(name, beside)
    return None if spec is None or spec.origin is None else spec


def _distribution(top: str, spec: importlib.machinery.ModuleSpec) -> tuple[str, str] | None:
    """Name and version of the installed distribution that a module belongs to, if it does."""
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    for name in _providers().get(top, ()):
        known = importlib.metadata.distribution(name)
        root = Path(str(known.locate_file(""))).resolve()
        if places and all(Path(place).resolve().is_relative_to(root) for place in places):
            return name, _version(known)
    return None


def _version(known: importlib.metadata.Distribution) -> str:
    """What came from a folder or a repository may have another content each time, under the same version."""
    if known.read_text("direct_url.json") is None:
        return known.version
    rows = (known.read_text("RECORD") or "").splitlines()
    return f"{known.version} {digest(sorted(row for row in rows if '.py,sha256=' in row))}"


@lru_cache(maxsize=1)
def _providers() -> dict[str, list[str]]:
    return {name: list(dict.fromkeys(known)) for name, known in importlib.metadata.packages_distributions().items()}


def installed(module: str) -> bool:
    """Whether a module of this name is of the standard library, of rarely, or of an installed distribution."""
    top = module.partition(".")[0]
    if top in ("rarely", ""):
        return True
    spec = getattr(sys.modules.get(top), "__spec__", None)
    if top in sys.stdlib_module_names:  # and not one's own of the same name
        return spec is None or not spec.has_location or Path(spec.origin).is_relative_to(_STANDARD)
    return spec is not None and _distribution(top, spec) is not None


def _hidden(name: str, tree: ast.AST) -> Iterator[str]:
    """What a source pulls in while it runs, as far as its text betrays it: by words used in any way, called or not."""
    found: dict[str, list[str]] = {}
    imported = dict(_BUILT_IN)  # words by what the source calls them
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for top in {module.partition(".")[0] for module in modules} & _OUTSIDE:
                found.setdefault(f"what {{}} gets through {top}", []).append(f"line {node.lineno}")
            if isinstance(node, ast.ImportFrom):
                imported |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        word = imported.get(node.id, "") if isinstance(node, ast.Name) else "" if node.attr in _PLAIN else node.attr
        if word in _TELLTALES:
            found.setdefault(f"{_TELLTALES[word]} while it runs", []).append(f"{word}, line {node.lineno}")
    for words, where in found.items():
        yield f"{words.format(name)} ({where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''})"
