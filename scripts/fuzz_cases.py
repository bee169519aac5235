"""What `fuzz.py` tries: for every parser some files that it takes, how it is called, and how files are damaged."""

from __future__ import annotations

import gzip
import io
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Files = dict[str, bytes]  # of a case, by name; the first is the one that is opened


def _onnx(kind: int, external: bool = False) -> Files:
    import numpy as np
    import onnx

    helper, rng = onnx.helper, np.random.default_rng(0)
    node = helper.make_node
    stored = {
        "w": rng.normal(size=(4, 3)).astype("f4"),
        "b": np.ones(3, "f4"),
        "s": np.array([1, -1]),
        "a": np.array([1]),
    }
    graphs = [
        ((1, 4), [node("Gemm", ["x", "w", "b"], ["h"]), node("Relu", ["h"], ["y"])]),
        ((1, 4), [node("Concat", ["x", "x"], ["c"], axis=1), node("Reshape", ["c", "s"], ["y"])]),
        ((1, 2, 2), [node("Flatten", ["x"], ["f"]), node("MatMul", ["f", "w"], ["m"]), node("Softmax", ["m"], ["y"])]),
        ((1, 1, 6, 6), [node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]), node("Reshape", ["p", "s"], ["y"])]),
        (
            (1, 4),
            [node("Unsqueeze", ["x", "a"], ["u"]), node("Tile", ["u", "t"], ["v"]), node("Reshape", ["v", "s"], ["y"])],
        ),
        ((1, 4), [node("Hardmax", ["x"], ["y"])]),
    ]
    stored["t"] = np.array([1, 2, 3])
    shape, nodes = graphs[kind % len(graphs)]
    used = {name for one in nodes for name in one.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(value, name) for name, value in stored.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    files = {"net.onnx": b""}
    if external:
        for tensor in model.graph.initializer:
            data, offset = tensor.raw_data, len(files.get("net.data", b""))
            files["net.data"] = files.get("net.data", b"") + data
            onnx.external_data_helper.set_external_data(tensor, "net.data", offset=offset, length=len(data))
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    files["net.onnx"] = model.SerializeToString()
    return files


_VNNLIB = """(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (<= X_0 1.0)) (assert (>= X_0 -1e-1)) (assert (and (<= X_1 1) (>= X_1 0)))
(assert (or (and (<= Y_0 Y_1) (>= (* 2.0 Y_1) 3)) (and (<= (+ Y_0 Y_1) -1)) (< (- Y_0) 0)))
"""
_VNNLIB2 = """(vnnlib-version <2.0>)
(declare-network N (declare-input X Real [1, 2]) (declare-output Y Real [2]))
(assert (and (<= X[0,0] 1.0) (>= X[0,0] 0.0) (<= X[0,1] 1.0) (>= X[0,1] 0.0)))
(assert (or (<= Y[0] Y[1]) (>= Y[1] 3.0)))
"""
_RLV = """Input a
Input b
Linear l 0.5 1.0 a -2.0 b
ReLU r 0 1 l 1 a
MaxPool m r l
Assert <= 0 1 a
Assert >= 1 1 a
Assert <= 0 1 b
Assert >= 1 1 b
Assert >= 0.5 1.0 m
"""
_PLAN = """[campaign]
name = "f"
seed = 3
replicates = 2
[[networks]]
path = "net.onnx"
[[problems]]
dataset = "data.npz"
radii = [0.1, 0.2]
indices = "0:2"
[[problems]]
vnnlib = ["p.vnnlib"]
[estimator]
method = "auto"
[matrix]
log_p_min = [-10, -20]
[budget]
calls = 1000
"""


def _arrays(name: str, compressed: bool = False) -> Files:
    import numpy as np

    out, pixels = io.BytesIO(), np.arange(2 * 4, dtype=np.uint8).reshape(2, 4)
    if name.endswith(".npy"):
        np.save(out, pixels.astype("f4") / 8)
    else:
        (np.savez_compressed if compressed else np.savez)(out, images=pixels, labels=np.array([0, 1]))
    return {name: out.getvalue()}


def _picture(kind: str) -> Files:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (4, 4), (10, 200, 30)).save(out, kind)
    return {f"a.{kind.lower()}": out.getvalue()}


def _weights(kind: str) -> Files:
    import torch
    from safetensors.torch import save

    state = torch.nn.Linear(4, 3).state_dict()
    if kind == "safetensors":
        return {"w.safetensors": save(state)}
    out = io.BytesIO()
    torch.save(state, out, _use_new_zipfile_serialization=kind == "pt")
    return {"w.pt": out.getvalue()}


def _exported() -> Files:
    import torch

    out, module = io.BytesIO(), torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    torch.export.save(torch.export.export(module.eval(), (torch.zeros(2, 4),)), out)
    return {"net.pt2": out.getvalue()}


def _witnesses() -> bytes:
    import numpy as np

    from rarely.campaign.witnesses import WitnessSet, pack_witnesses

    return pack_witnesses(WitnessSet(np.zeros((3, 4), "f4"), np.ones(3, "f4"), np.zeros(4, "f4")))


def _result() -> bytes:
    import torch

    from rarely import Box, LinearConstraint, MonteCarlo, Problem, estimate

    found = estimate(
        Problem(torch.nn.Identity(), LinearConstraint(torch.eye(2)[:1], torch.tensor([0.5])), Box([0, 0], [1, 1])),
        MonteCarlo(1000),
    )
    return found.to_json().encode()


def _store() -> Files:
    from rarely import Campaign

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, data in {**_onnx(0), **_arrays("data.npz")}.items():
            (place / name).write_bytes(data)
        plan = _PLAN.replace('[[problems]]\nvnnlib = ["p.vnnlib"]\n', "").replace(
            "[matrix]\nlog_p_min = [-10, -20]\n", ""
        )
        (place / "plan.toml").write_text(plan)
        Campaign(place / "plan.toml").run(place / "out", workers=1).close()
        return {"campaign.sqlite": (place / "out" / "campaign.sqlite").read_bytes()}


def _labelled() -> Files:
    import numpy as np

    out = io.BytesIO()
    np.save(out, np.array([0, 1]))
    return {"labels.npy": out.getvalue(), **_arrays("a.npz")}


def _script() -> Files:
    import torch

    out, module = io.BytesIO(), torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    torch.jit.save(torch.jit.trace(module.eval(), torch.zeros(2, 4)), out)
    return {"net.ts": out.getvalue()}


def _load(path: Path) -> None:
    from rarely import load_network

    load_network(path, architecture=(lambda: __import__("torch").nn.Linear(4, 3)) if path.stem == "w" else None)


def _read_plan(path: Path) -> None:
    from rarely.campaign.expansion import expand_plan
    from rarely.campaign.plan import read_plan

    expansion = expand_plan(*read_plan(path))
    for _ in zip(expansion.chunks(), range(3), strict=False):
        pass


def _read_images(path: Path) -> None:
    from rarely.io.formats.images import load_images

    if path.name == "labels.npy":
        load_images(path.with_name("a.npz"), None, path)
        return
    load_images(path if path.suffix.startswith(".np") else path.parent, None, None).check((0.0, 1.0), "the range")


def _read_results(path: Path) -> None:
    from rarely.report.tally import read_records, tally

    tally(list(read_records([path])))


def _read_store(path: Path) -> None:
    from rarely.campaign.store import Store
    from rarely.report.page import write_page

    with Store.open(path.parent) as store:
        write_page(path.with_name("page.html"), store.header, store.records(), store.witnesses)


def _read_witnesses(path: Path) -> None:
    """As the archive of a store whose checksums are those of the damage."""
    from rarely.campaign.trouble import readable
    from rarely.campaign.witnesses import unpack_witnesses

    with readable(path, "the archive"):
        unpack_witnesses(path.read_bytes())


def _call(module: str, name: str) -> Callable[[Any], Any]:
    return lambda path: getattr(__import__(module, fromlist=[name]), name)(path)


def _text(name: str, content: str) -> Callable[[], list[Files]]:
    return lambda: [{name: content.encode()}]


def _packed(files: Files) -> Files:
    return {
        f"{name}.gz" if i == 0 else name: gzip.compress(data) if i == 0 else data
        for i, (name, data) in enumerate(files.items())
    }


_SOURCE = """import os, helper
from pkg import *
from . import other
class Net:
    path = os.path.join("a", "b")
    def __call__(self, x, *rest, key=lambda: 1):
        return open(self.path).read() if x else [y for y in rest]
"""
_SUMMARY = """instance,verdict,seconds,comment
a_p.txt,sat,1.50,"two
lines"
'=b_p.txt,unsat,0.10,
"""
_COUNTEREXAMPLE = "sat\n((X_0 0.5)\n(X_1 1e-3)\n(Y_0 -2))\n"
PARSERS: dict[str, tuple[Callable[[], list[Files]], Callable[[Path], Any]]] = {
    "onnx": (lambda: [_onnx(kind) for kind in range(6)], _load),
    "onnx-external": (lambda: [_onnx(0, True), _onnx(2, True)], _load),
    "onnx-gz": (lambda: [_packed(_onnx(kind)) for kind in range(4)], _load),
    "vnnlib": (_text("p.vnnlib", _VNNLIB), _call("rarely.io.formats.vnnlib", "read_vnnlib")),
    "vnnlib2": (_text("p.vnnlib", _VNNLIB2), _call("rarely.io.formats.vnnlib", "read_vnnlib")),
    "text-gz": (
        lambda: [_packed({"p.vnnlib": _VNNLIB.encode()}), _packed({"p.vnnlib": _VNNLIB2.encode()})],
        _call("rarely.io.formats.vnnlib", "read_vnnlib"),
    ),
    "rlv": (_text("p.rlv", _RLV), _call("rarely.io.formats.rlv", "read_rlv")),
    "instances": (
        lambda: [{"instances.csv": b"net.onnx,p.vnnlib,60\n", "p.vnnlib": _VNNLIB.encode(), **_onnx(0)}],
        _call("rarely.io.formats.vnncomp", "read_instances"),
    ),
    "verdict": (_text("r.txt", _COUNTEREXAMPLE), _call("rarely.io.formats.vnncomp", "read_result")),
    "plan": (
        lambda: [{"plan.toml": _PLAN.encode(), "p.vnnlib": _VNNLIB.encode(), **_onnx(0), **_arrays("data.npz")}],
        _read_plan,
    ),
    "images": (
        lambda: [_arrays("a.npy"), _arrays("a.npz"), _arrays("a.npz", True), _labelled()],
        _read_images,
    ),
    "pictures": (
        lambda: [*map(_picture, ("PNG", "BMP", "GIF", "JPEG", "WEBP", "TIFF", "PPM"))],
        _read_images,
    ),
    "weights": (lambda: [_weights(kind) for kind in ("safetensors", "pt", "legacy")], _load),
    "results": (lambda: [{"r.json": _result()}, {"r.json": b"[" + _result() + b"]"}], _read_results),
    "summary": (_text("results.csv", _SUMMARY), _call("rarely.campaign.benchmark", "read_summary")),
    "exported": (lambda: [_exported()], _load),
    "torchscript": (lambda: [_script()], _load),
    "python": (
        lambda: [{"net.py": _SOURCE.encode(), "helper.py": b"import net\n", "other.py": b"x = 1\n"}],
        lambda path: _call("rarely.campaign.content", "content_of")(f"{path}:Net"),
    ),
    "witnesses": (lambda: [{"w.npz": _witnesses()}], _read_witnesses),
    "store": (lambda: [_store()], _read_store),
}


_NUMBERS = [*b"-1 0 1e999 nan NaN -inf 2147483648 1e-400 true null".split(), b"9" * 30, b"9" * 5000]
_PIECES = b"( ) [ ] { } \" ' . , \n \0 \xff \xf0\x9f\x92\xa9 ../ ; = :".split(b" ")


def mutate(files: Files, rng: random.Random) -> Files:
    """Some changes to one of the files, mostly the first."""
    names = list(files)
    name = names[0] if rng.random() < 0.85 else rng.choice(names)
    data = bytearray(files[name])
    packed = name.endswith(".gz") and rng.random() < 0.8  # else the compression itself is damaged
    if packed:
        data = bytearray(gzip.decompress(bytes(data)))
    for _ in range(1 + int(rng.expovariate(0.7))):
        _change(data, rng)
    return {**files, name: gzip.compress(bytes(data), 1) if packed else bytes(data)}


def _change(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + int(rng.expovariate(0.1)))
    match rng.randrange(9):
        case 0 if data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[min(at, len(data) - 1)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end]
        case 4:
            data[at:at] = rng.choice(_PIECES) * rng.choice((1, 1, 1, 2, 50, 20_000))
        case 5:
            _replace_number(data, at, rng)
        case 6:  # a varint or a length of another size
            data[at:end] = rng.choice((b"\xff" * 8 + b"\x01", b"\xff\xff\xff\xff\x07", bytes(8), b"\xff" * 4))
        case 7:
            other = rng.randrange(len(data) + 1)
            data[at:at] = data[other : other + int(rng.expovariate(0.02))]
        case _:
            del data[at if rng.random() < 0.3 else len(data) :]


def _replace_number(data: bytearray, at: int, rng: random.Random) -> None:
    digits = b"0123456789.-+e"
    start = next((i for i in range(at, len(data)) if data[i] in digits), len(data))
    end = next((i for i in range(start, len(data)) if data[i] not in digits), len(data))
    data[start:end] = rng.choice(_NUMBERS)
