"""What the fingerprint covers: a resumed campaign never mixes two networks, and says what it cannot see."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from campaign_helpers import Inline, content
from onnx import TensorProto, helper, numpy_helper

from rarely.campaign import content as hashing
from rarely.campaign import sources
from rarely.campaign.campaign import Campaign
from rarely.campaign.content import content_of
from rarely.campaign.store import Store
from rarely.campaign.tasks import Chunk
from rarely.campaign.versions import sources_in, versions
from rarely.campaign.work import _network, answer
from rarely.core.errors import FormatError, RarelyError, StoreError

WEIGHT = np.array([[1.0, -1.0], [1.0, -1.0]], dtype=np.float32)
LINEAR = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, -1.0], [1.0, -1.0]]), requires_grad=False)
    def forward(self, x):
        return x @ self.weight
"""


class Stopped(Exception):
    pass


def stop_after(count: int) -> Callable[[Chunk], str]:
    seen = []

    def fails(chunk: Chunk) -> str:
        seen.append(chunk)
        if len(seen) > count:
            raise Stopped
        return ""

    return fails


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Modules of this folder are forgotten afterwards, and only they: torch cannot be imported twice."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    _network.cache_clear()
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def external_onnx(folder: Path, scale: float = 1.0, place: str = "initializer") -> Path:
    """A linear network with its weights in net.data."""
    tensor = numpy_helper.from_array(WEIGHT * np.float32(scale), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    stored = [tensor]
    if place == "constant":
        nodes, stored = [helper.make_node("Constant", [], ["w"], value=tensor), *nodes], []
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "net.data").unlink(missing_ok=True)  # onnx appends
    onnx.save_model(
        model, folder / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0,
        convert_attribute=True,
    )  # fmt: skip
    return folder / "net.onnx"


def images(folder: Path, count: int = 40) -> None:
    rows = np.random.default_rng(0).uniform(0.1, 1, size=(count, 2)).astype(np.float32)
    np.savez(folder / "data.npz", images=rows, labels=np.zeros(count, dtype=np.int64))


def plan_for(network: dict[str, Any], folder: Path) -> Path:
    images(folder)
    lines = "\n".join(f'{key} = "{value}"' for key, value in network.items())
    file = folder / "plan.toml"
    file.write_text(
        f'[campaign]\nbatch = 8\n[[networks]]\n{lines}\n[[problems]]\ndataset = "data.npz"\nradii = [0.5]\n'
        '[estimator]\nmethod = "monte-carlo"\nsamples = 200\n'
    )
    return file


def resumed(file: Path, change: Callable[[], Any]) -> str:
    """What is said when a campaign that was stopped at 8 of 40 goes on after a change; "" if it goes on."""
    out = file.parent / "out"
    with pytest.raises(Stopped):
        Campaign(file).run(out, engine=Inline(stop_after(1)))
    with Store.open(out) as store:
        assert store.counts()["done"] == 8
    change()
    _network.cache_clear()
    before = content(out)
    try:
        Campaign(file).run(out, engine=Inline()).close()
    except StoreError as error:
        assert content(out) == before
        return str(error)
    return ""


@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_external_data_that_changed_is_refused_by_name(tmp_path: Path, place: str) -> None:
    """The example of the issue: problems 0 to 7 were of the old network, and nobody noticed."""
    external_onnx(tmp_path, place=place)
    told = resumed(plan_for({"path": "net.onnx"}, tmp_path), lambda: external_onnx(tmp_path, 3.0, place))
    assert "network net.onnx changed: net.data" in told
    assert "--new" in told


def test_nothing_changed_goes_on(tmp_path: Path) -> None:
    external_onnx(tmp_path)
    assert resumed(plan_for({"path": "net.onnx"}, tmp_path), lambda: None) == ""


def test_external_data_that_is_missing_or_foreign(tmp_path: Path) -> None:
    file = external_onnx(tmp_path)
    (tmp_path / "net.data").unlink()
    with pytest.raises(FormatError, match=r"its weights are in net\.data, which is not there"):
        content_of(str(file))
    (tmp_path / "net.onnx").write_bytes(file.read_bytes().replace(b"net.data", b"../x.dat"))
    with pytest.raises(FormatError, match="outside its own folder"):
        content_of(str(file))


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        file = folder / (name.replace("__", "/").replace("_INIT", "__init__") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


HELPED = "from {0} import scale\n" + LINEAR.replace("x @ self.weight", "x @ self.weight * scale()")
SCALE = "def scale():\n    return {}\n"


@pytest.mark.parametrize(
    ("importing", "module", "extra"),
    [
        ("helper_one", "helper_one", {}),
        ("pack_one.inner", "pack_one__inner", {"pack_one___INIT": ""}),
        ("space_one.deep.inner", "space_one__deep__inner", {}),
        ("pack_two", "pack_two__inner", {"pack_two___INIT": "from .inner import scale\n"}),
        ("circle_a", "circle_b", {"circle_a": "import circle_b\nfrom circle_b import scale\n"}),
    ],
)
def test_a_module_that_a_network_imports(tmp_path: Path, importing: str, module: str, extra: dict[str, str]) -> None:
    """Beside it, in a package, in a namespace package, behind an __init__, in a circle."""
    text = "import circle_a\n" + SCALE if module == "circle_b" else SCALE
    _write(tmp_path, net=HELPED.format(importing), **extra, **{module: text.format("1.0")})
    file = plan_for({"path": "net.py:Net"}, tmp_path)
    told = resumed(file, lambda: _write(tmp_path, **{module: text.format("30.0")}))
    assert f"network net.py:Net changed: {module.replace('__', '.')}" in told


def test_the_source_behind_architecture(tmp_path: Path) -> None:
    _write(tmp_path, arch=LINEAR)
    torch.save({"weight": torch.from_numpy(WEIGHT)}, tmp_path / "net.pt")
    file = plan_for({"path": "net.pt", "architecture": "arch.py:Net"}, tmp_path)
    told = resumed(file, lambda: _write(tmp_path, arch=LINEAR.replace("x @", "-x @")))
    assert "network net.pt changed: architecture arch.py" in told


@pytest.mark.parametrize(
    "source",
    [
        "import numpy, torch\nW = torch.from_numpy(numpy.load({!r}))\ndef net(x):\n    return x @ W\n",
        "import numpy, torch\n"
        "def make():\n    w = torch.from_numpy(numpy.load({!r}))\n    return lambda x: x @ w\nnet = make()\n",
        "import numpy, torch\nnet = torch.nn.Linear(2, 2, bias=False)\n"
        "net.weight.data = torch.from_numpy(numpy.load({!r}).T)\n",
        "import numpy, torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = numpy.load({!r})\n    def forward(self, x):\n        return x @ torch.from_numpy(self.w)\n"
        "net = Net()\n",
        "import numpy, torch\ndef net(x, *, w=torch.from_numpy(numpy.load({!r}))):\n    return x @ w\n",
        "import numpy, torch\ndef net(x):\n    return x @ net.w\nnet.w = torch.from_numpy(numpy.load({!r}))\n",
    ],
    ids=["global", "closure", "parameter", "attribute", "default of a name", "attribute of a function"],
)
def test_weights_that_python_reads_from_a_file(tmp_path: Path, source: str) -> None:
    np.save(tmp_path / "w.npy", WEIGHT)
    _write(tmp_path, net=source.format(str(tmp_path / "w.npy")))
    file = plan_for({"path": "net.py:net"}, tmp_path)
    assert any("files that net.py reads while it runs (load, line" in one for one in Campaign(file).summary().uncovered)
    told = resumed(file, lambda: np.save(tmp_path / "w.npy", 3 * WEIGHT))
    assert "network net.py:net changed: its weights and constants" in told


def test_the_module_of_an_input_model(tmp_path: Path) -> None:
    law = "from rarely import Box\ndef law(low, high):\n    return Box(low, low + {} * (high - low))\n"
    _write(tmp_path, my_law=law.format("1.0"))
    _rlv(tmp_path / "f")
    file = tmp_path / "plan.toml"
    file.write_text(
        '[campaign]\nbatch = 1\n[[problems]]\nrlv = "f"\ninput_model = "my_law:law"\n'
        '[estimator]\nmethod = "monte-carlo"\nsamples = 200\n'
    )
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        Campaign(file).run(out, engine=Inline(stop_after(1)))
    _write(tmp_path, my_law=law.format("0.5"))
    with pytest.raises(StoreError, match=r"problems\[0\] changed: input_model my_law:law: my_law"):
        Campaign(file).run(out, engine=Inline())


def test_a_network_built_at_random_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, net="import torch\ndef make():\n    return torch.nn.Linear(2, 2)\n")
    with pytest.raises(RarelyError, match=r"draw them with a fixed seed \(torch.manual_seed\)"):
        Campaign(plan_for({"path": "net.py:make"}, tmp_path)).run(tmp_path / "out", engine=Inline())


def test_a_network_that_changes_while_it_runs_gives_no_number(tmp_path: Path) -> None:
    external_onnx(tmp_path)
    chunk = next(Campaign(plan_for({"path": "net.onnx"}, tmp_path)).expansion.chunks())
    external_onnx(tmp_path, 3.0)
    told = answer(chunk)
    assert not told.solved
    assert "net.onnx changed while the campaign was running (net.data)" in told.failure


def test_a_worker_that_lives_long_imports_what_changed_again(tmp_path: Path) -> None:
    _write(tmp_path, net=HELPED.format("helper_two"), helper_two=SCALE.format("1.0"))
    file, found = plan_for({"path": "net.py:Net"}, tmp_path), []
    for factor in ("1.0", "30.0"):
        _write(tmp_path, helper_two=SCALE.format(factor))
        task = next(Campaign(file).expansion.chunks()).tasks[0]
        found.append(float(_network(task.network_file)(torch.ones(1, 2))[0, 0]))
    assert found == [2.0, 60.0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import importlib\nm = importlib.import_module('json')\n", "code that net.py finds while it runs"),
        ("import no_such_module_here\n", "the module no_such_module_here, which net.py imports and which was not"),
        ("import os\nA = os.environ.get('A')\n", "environment variables that net.py reads"),
        ("exec('a = 1')\n", "code that net.py finds while it runs"),
        ("from importlib import import_module as get\nm = get('json')\n", "code that net.py finds while it runs"),
        ("from os import environ\nA = environ\n", "environment variables that net.py reads"),
        ("from numpy import load as get\nA = list(map(get, []))\n", "files that net.py reads while it runs (load, "),
        ("import h5py\n", "what net.py gets through h5py (line 1)"),
        ("import urllib.request as web\n", "what net.py gets through urllib (line 1)"),
    ],
)
def test_what_cannot_be_hashed_is_named(tmp_path: Path, source: str, said: str) -> None:
    _write(tmp_path, net=source)
    assert any(said in one for one in content_of(f"{tmp_path}/net.py:net").uncovered)


@pytest.mark.parametrize("source", ["from numpy import load\n", "load = open_ = 1\nA = load + open_\n", "net.eval()\n"])
def test_words_that_betray_nothing(tmp_path: Path, source: str) -> None:
    _write(tmp_path, net=source)
    assert content_of(f"{tmp_path}/net.py:net").uncovered == ()


def test_a_module_with_the_name_of_a_standard_one(tmp_path: Path) -> None:
    """A source that puts its folder in front hides `tabnanny` of the standard library by its own."""
    front = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent))\n"
    _write(tmp_path, net=front + HELPED.format("tabnanny"), tabnanny=SCALE.format("1.0"))
    file = plan_for({"path": "net.py:Net"}, tmp_path)
    told = resumed(file, lambda: _write(tmp_path, tabnanny=SCALE.format("30.0")))
    assert "network net.py:Net changed: tabnanny" in told


def test_a_package_installed_again_under_the_same_version(tmp_path: Path) -> None:
    """From a folder or a repository: the version stays, and pip writes down what it installed."""
    about = tmp_path / "made_here-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: made-here\nVersion: 1.0\n")
    (about / "top_level.txt").write_text("made_here\n")
    _write(tmp_path, net="import made_here\n", made_here=SCALE.format("1.0"))
    sources._providers.cache_clear()

    def hashed(record: str, where: str | None) -> str:
        (about / "direct_url.json").unlink(missing_ok=True)
        if where is not None:
            (about / "direct_url.json").write_text(where)
        (about / "RECORD").write_text(f"made_here.py,sha256={record},9\n__pycache__/made_here.pyc,,\n")
        found = content_of(f"{tmp_path}/net.py:net")
        assert found.uncovered == ()
        assert "made-here" in dict(found.file.parts)
        return found.file.digest

    try:
        assert hashed("a", "{}") != hashed("b", "{}")
        assert hashed("a", "{}") == hashed("a", '{"url": "file:///elsewhere"}')
        assert hashed("a", None) == hashed("b", None), "a version of an index is the same everywhere"
    finally:
        sources._providers.cache_clear()


def test_what_is_not_seen_is_in_the_store(tmp_path: Path) -> None:
    _write(tmp_path, net="import os\n" + LINEAR + "A = os.environ.get('A')\n")
    with Campaign(plan_for({"path": "net.py:Net"}, tmp_path)).run(tmp_path / "out", engine=Inline()) as store:
        assert any("environment variables" in one for one in store.uncovered)


def test_a_source_with_a_syntax_error_is_hashed_and_refused_when_it_runs(tmp_path: Path) -> None:
    _write(tmp_path, net="def (:\n")
    campaign = Campaign(plan_for({"path": "net.py:Net"}, tmp_path))
    with pytest.raises(RarelyError, match="cannot be imported"):
        campaign.run(tmp_path / "out", engine=Inline())


def test_installed_modules_are_known_by_version(tmp_path: Path) -> None:
    _write(tmp_path, net="import torch\nimport numpy as np\nimport json\n")
    parts = dict(content_of(f"{tmp_path}/net.py:net").file.parts)
    assert parts["torch"] == torch.__version__
    assert parts["numpy"] == np.__version__
    assert "json" not in parts


def test_a_store_of_an_earlier_version_is_not_mixed(tmp_path: Path) -> None:
    import sqlite3

    external_onnx(tmp_path)
    file = plan_for({"path": "net.onnx"}, tmp_path)
    Campaign(file).run(tmp_path / "out", engine=Inline()).close()
    with sqlite3.connect(tmp_path / "out" / "campaign.sqlite") as connection:
        connection.execute("DELETE FROM about WHERE key = 'uncovered'")
    connection.close()
    with Store.open(tmp_path / "out") as store:
        assert "earlier rarely" in store.uncovered[0]
    with pytest.raises(StoreError, match="was written by an earlier rarely"):
        Campaign(file).run(tmp_path / "out", engine=Inline())


def test_another_rarely_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout has other sources every day under one version: it went on with numbers of two of them."""
    external_onnx(tmp_path)
    file = plan_for({"path": "net.onnx"}, tmp_path)
    Campaign(file).run(tmp_path / "out", engine=Inline()).close()
    other = {**versions(), "rarely": "0.1.0 with the sources 01234567"}
    monkeypatch.setattr("rarely.campaign.campaign.versions", lambda: other)
    with pytest.raises(StoreError, match=r"rarely was 0\.1\.0 with the .* and is 0\.1\.0 with the sources 01234567"):
        Campaign(file).run(tmp_path / "out", engine=Inline())


def test_sources_that_no_number_passes_through_do_not_count(tmp_path: Path) -> None:
    for room in ("methods", "stats", "report"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "some.py").write_text("A = 1\n")
    before = sources_in(tmp_path)
    (tmp_path / "report" / "some.py").write_text("A = 2\n")
    assert sources_in(tmp_path) == before
    (tmp_path / "methods" / "some.py").write_text("A = 2\n")
    assert sources_in(tmp_path) != before


def test_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.rlv").write_text("x")
    monkeypatch.setattr(hashing, "_SETTLED", -(10**18))
    first = content_of(str(tmp_path / "a.rlv"))
    monkeypatch.setattr(hashing.hashlib, "file_digest", None)
    assert content_of(str(tmp_path / "a.rlv")) == first


def _rlv(folder: Path) -> None:
    folder.mkdir()
    nodes = "Input x0\nInput x1\nLinear y 0.0 1.0 x0 1.0 x1\n"
    box = "".join(f"Assert <= 0.0 1.0 x{i}\nAssert >= 1.0 1.0 x{i}\n" for i in range(2))
    for name, level in (("a", 1.2), ("b", 1.4)):
        (folder / f"{name}.rlv").write_text(f"{nodes}{box}Assert <= {level} 1.0 y\n")


def test_a_plan_that_is_moved_gives_the_same_keys_and_numbers(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    external_onnx(here)
    _write(here, net=LINEAR)
    _rlv(here / "f")
    images(here, 3)
    declared = "".join(f"(declare-const {n}_{i} Real)" for n in "XY" for i in range(2))
    box = "".join(f"(assert (>= X_{i} -1)) (assert (<= X_{i} 1))" for i in range(2))
    for i, sub in enumerate(("one", "two")):
        (here / sub).mkdir()
        (here / sub / "p.vnnlib").write_text(f"{declared}{box}(assert (>= Y_0 {0.5 + i}))")
        shutil.copy(here / "net.data", here / sub)
        shutil.copy(here / "net.onnx", here / sub)
    (here / "instances.csv").write_text("one/net.onnx,one/p.vnnlib,5\ntwo/net.onnx,two/p.vnnlib,5\n")
    (here / "plan.toml").write_text(
        '[campaign]\nbatch = 4\n[[networks]]\npath = "net.onnx"\n[[networks]]\npath = "net.py:Net"\n'
        '[[problems]]\ndataset = "data.npz"\nradii = [0.5]\n[[problems]]\nvnnlib = "*/p.vnnlib"\n'
        '[[problems]]\ninstances = "instances.csv"\n[[problems]]\nrlv = "f"\n'
        '[estimator]\nmethod = "monte-carlo"\nsamples = 300\n'
    )
    there = tmp_path / "a" / "longer" / "way"
    shutil.copytree(here, there)
    found = []
    for folder in (here, there):
        Campaign(folder / "plan.toml").run(folder / "out", engine=Inline()).close()
        found.append(content(folder / "out"))
    assert found[0] == found[1]
    assert len(found[0]) == 3 * 2 + 2 * 2 + 2 + 2
    assert all(state == "done" for _, _, state, *_ in found[0].values())
    assert {"one/p.vnnlib", "two/p.vnnlib"} <= {name.split()[-1] for _, name, *_ in found[0].values()}


def test_seeds_follow_content_and_not_names(tmp_path: Path) -> None:
    seeds = []
    for name in ("one", "other"):
        external_onnx(tmp_path)
        file = plan_for({"path": "net.onnx", "name": name}, tmp_path)
        seeds.append([chunk.seed for chunk in Campaign(file).expansion.chunks()])
    assert seeds[0] == seeds[1]
