"""load_network for everything that is not ONNX, and what it refuses."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import types
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rarely.core.errors import FormatError, InputError, NetworkError
from rarely.io.exported import ExportedNetwork
from rarely.io.networks import load_network


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


class Hostile:
    """A pickle that leaves a trace when it is executed."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An importable module with networks of every kind."""
    made = types.ModuleType("my_networks")
    made.make_net = make_net  # type: ignore[attr-defined]
    made.net = make_net()  # type: ignore[attr-defined]
    made.Net = type("Net", (nn.Linear,), {"__init__": lambda self: nn.Linear.__init__(self, 6, 3)})  # type: ignore[attr-defined]
    made.double = lambda x: 2 * x  # type: ignore[attr-defined]
    made.number = 3  # type: ignore[attr-defined]
    made.broken = lambda: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_networks", made)
    return made


X = torch.rand(7, 2, 3)


@pytest.mark.usefixtures("module")
def test_python_objects() -> None:
    assert load_network("my_networks:net")(X).shape == (7, 3)
    assert load_network("my_networks:make_net").training is False
    assert load_network("my_networks:Net")(X.flatten(1)).shape == (7, 3)
    assert torch.equal(load_network("my_networks:double")(X), 2 * X)
    for name, reason in (
        ("my_networks:number", "not a module"),
        ("my_networks:absent", "cannot be imported"),
        ("no_such_module:net", "cannot be imported"),
        ("my_networks:broken", "ZeroDivisionError"),
    ):
        with pytest.raises(NetworkError, match=reason):
            load_network(name)
    with pytest.raises(InputError, match="module:attribute"):
        load_network("my_networks:")


def test_python_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_nets.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(6, 3)\n")
    assert load_network(f"{tmp_path / 'own_nets.py'}:make")(X.flatten(1)).shape == (7, 3)
    monkeypatch.chdir(tmp_path)
    assert load_network("own_nets:make")(X.flatten(1)).shape == (7, 3)
    assert str(tmp_path) not in sys.path


@pytest.mark.usefixtures("module")
def test_safetensors(tmp_path: Path) -> None:
    net = make_net().eval()
    with torch.no_grad():
        net[1].weight.add_(1.0)
    path = tmp_path / "w.safetensors"
    save_file(net.state_dict(), path)
    for architecture in ("my_networks:make_net", make_net):
        loaded = load_network(path, architecture=architecture, device="cpu")
        assert torch.equal(loaded(X), net(X))
        assert loaded.training is False
        assert not any(p.requires_grad for p in loaded.parameters())
    with pytest.raises(NetworkError, match="architecture"):
        load_network(path)
    with pytest.raises(NetworkError, match=r"do not fit my_networks:Net.*[Mm]issing"):
        load_network(path, architecture="my_networks:Net")
    with pytest.raises(NetworkError, match="not a torch module"):
        load_network(path, architecture=lambda: 3)
    path.write_bytes(b"garbage")
    with pytest.raises(FormatError, match="safetensors"):
        load_network(path, architecture=make_net)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}])
def test_state_dict(tmp_path: Path, wrap: object) -> None:
    net = make_net().eval()
    state = {f"module.{key}": value for key, value in net.state_dict().items()}
    path = tmp_path / "w.pth"
    torch.save(wrap(state), path)  # type: ignore[operator]
    assert torch.equal(load_network(path, architecture=make_net)(X), net(X))
    with pytest.raises(NetworkError, match="weights only"):
        load_network(path)


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.pkl"])
def test_pickles_are_refused_unless_trusted(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    torch.save(make_net(), path)
    with pytest.raises(NetworkError, match=r"refused.*trust_pickle=True"):
        load_network(path)
    assert load_network(path, trust_pickle=True)(X).shape == (7, 3)


@pytest.mark.parametrize("name", ["net.pt", "net.pkl", "net.bin", "net.pt2", "net.ts", "net.safetensors", "net.onnx"])
def test_hostile_pickle_is_never_executed(tmp_path: Path, name: str) -> None:
    trace = tmp_path / "executed"
    for write in (
        lambda p: torch.save(Hostile(trace), p),
        lambda p: p.write_bytes(pickle.dumps(Hostile(trace))),
    ):
        write(tmp_path / name)
        with pytest.raises((NetworkError, FormatError)):
            load_network(tmp_path / name, architecture=make_net if name.endswith(("bin", "safetensors")) else None)
        assert not trace.exists()


@pytest.mark.parametrize("name", ["net.pt", "net.ts", "net.torchscript"])
def test_torchscript(tmp_path: Path, name: str) -> None:
    net = make_net().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(net), tmp_path / name)
    torch.testing.assert_close(load_network(tmp_path / name)(X), net(X))


def test_damaged_torch_files(tmp_path: Path) -> None:
    for name in ("a.pt", "b.ts", "c.pt2", "d.pth"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 no archive")
        with pytest.raises((FormatError, NetworkError)):
            load_network(tmp_path / name)
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(NetworkError, match="holds Tensor"):
        load_network(tmp_path / "tensor.pt")


class Frozen(nn.Module):
    """The batch size is part of the computation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.reshape(1, 6)).reshape(1, 3) - x.mean()


def export(net: nn.Module, shape: tuple[int, ...], path: Path, *, dynamic: bool = False) -> Path:
    shapes = ({0: torch.export.Dim("batch", min=1, max=100000)},) if dynamic else None
    torch.export.save(torch.export.export(net, (torch.rand(shape),), dynamic_shapes=shapes), path)
    return path


def test_exported_program(tmp_path: Path) -> None:
    net = make_net().eval()
    for name, shape, dynamic in (("dynamic", (4, 2, 3), True), ("one", (1, 2, 3), False)):
        loaded = load_network(export(net, shape, tmp_path / f"{name}.pt2", dynamic=dynamic))
        assert isinstance(loaded, ExportedNetwork)
        assert loaded.input_shape == (2, 3)
        assert loaded.output_shape == (3,)
        torch.testing.assert_close(loaded(X), net(X))


def test_exported_program_with_a_frozen_batch_is_mapped(tmp_path: Path) -> None:
    net = Frozen().eval()
    loaded = load_network(export(net, (1, 6), tmp_path / "frozen.pt2"))
    x = torch.rand(5, 6, requires_grad=True)
    torch.testing.assert_close(loaded(x), torch.cat([net(row[None]) for row in x]))
    loaded(x).sum().backward()
    assert x.grad is not None


def test_exported_program_without_batch_or_with_a_large_one(tmp_path: Path) -> None:
    loaded = load_network(export(nn.Linear(6, 3), (6,), tmp_path / "vector.pt2"))
    assert loaded.input_shape == (6,)
    assert loaded(torch.rand(5, 6)).shape == (5, 3)
    with pytest.raises(NetworkError, match="batch size fixed to 4"):
        load_network(export(make_net().eval(), (4, 2, 3), tmp_path / "four.pt2"))


class Two(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.argmax(1), x.softmax(1)


def test_exported_program_with_two_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="returns 2 values; export one that returns what is meant"):
        load_network(export(Two(), (1, 6), tmp_path / "two.pt2"))


def test_hostile_pickle_inside_an_exported_program(tmp_path: Path) -> None:
    good, bad, trace = tmp_path / "good.pt2", tmp_path / "bad.pt2", tmp_path / "executed"
    export(make_net().eval(), (1, 2, 3), good)
    pickled = io.BytesIO()
    torch.save(Hostile(trace), pickled)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            content = pickled.getvalue() if "sample_inputs" in name else source.read(name)
            target.writestr(name, content)
    with pytest.raises(NetworkError, match=r"refused.*trust_pickle=True"):
        load_network(bad)
    assert not trace.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_opaque_object_inside_an_exported_program(tmp_path: Path) -> None:
    path = export(make_net().eval(), (1, 2, 3), tmp_path / "net.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/data/constants/opaque_obj_0", b"")
    with pytest.raises(NetworkError, match="would execute code"):
        load_network(path)


def test_unknown_suffix_and_misplaced_architecture(tmp_path: Path) -> None:
    for name in ("net.h5", "net.onnx"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match="unknown kind"):
        load_network(tmp_path / "net.h5")
    with pytest.raises(InputError, match="its own architecture"):
        load_network(tmp_path / "net.onnx", architecture=make_net)


def test_importing_the_package_needs_neither_onnx_nor_onnxruntime() -> None:
    code = "import sys, rarely.io; sys.exit(bool({'onnx', 'onnxruntime'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SCRIPT = """
import sys
import torch
from layers_beside import Twice

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Twice(2, 2)

    def forward(self, x):
        return self.body(x)

if __name__ == "__main__":
    import train_whole
    torch.save(Net(), "script.pt")
    torch.save(train_whole.Net(), "module.pt")
    torch.save(train_whole.Net(), "legacy.pt", _use_new_zipfile_serialization=False)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole networks, as a training script saves them, in `out`; the script stands elsewhere."""
    home = tmp_path_factory.mktemp("training")
    (home / "out").mkdir()
    (home / "code").mkdir()
    (home / "code" / "layers_beside.py").write_text("import torch\n\nclass Twice(torch.nn.Linear):\n    pass\n")
    (home / "code" / "train_whole.py").write_text(SCRIPT)
    subprocess.run([sys.executable, home / "code" / "train_whole.py"], cwd=home / "out", check=True)
    return home


@pytest.fixture
def forgotten() -> Iterator[None]:
    yield
    for name in ("train_whole", "layers_beside"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", ["script.pt", "module.pt", "legacy.pt"])
def test_a_trusted_pickle_finds_the_classes_of_its_architecture(
    whole: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole)
    before = list(sys.path)
    network = load_network(whole / "out" / name, architecture="code/train_whole.py:Net", trust_pickle=True)
    assert network(torch.zeros(3, 2)).shape == (3, 2)
    assert sys.path == before


@pytest.mark.usefixtures("forgotten")
def test_a_trusted_pickle_finds_classes_where_it_is_opened(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole / "code")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(whole / "code"))])
    assert load_network(whole / "out" / "module.pt", trust_pickle=True)(torch.zeros(3, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("script.pt", r"the class Net of the script that saved it; name that script.*--architecture script\.py:Net"),
        (
            "module.pt",
            r"an object of train_whole\.Net, which cannot be imported here.*--architecture train_whole\.py:Net",
        ),
    ],
)
def test_a_trusted_pickle_whose_classes_are_lost_says_what_to_do(
    whole: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole)
    with pytest.raises(NetworkError, match=message):
        load_network(whole / "out" / name, trust_pickle=True)
