"""What a file may ask for: refused before it is taken, with a sentence that says how to raise the limit."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rarely.campaign.plan import read_plan
from rarely.core import limits
from rarely.core.errors import FormatError, InputError, RarelyError
from rarely.io.files import read_bytes, read_json, read_text
from rarely.io.formats.images import load_images
from rarely.io.formats.rlv import parse_rlv
from rarely.io.formats.vnnlib import parse_vnnlib
from rarely.io.networks import load_network
from rarely.io.onnx.runtime import gaps
from rarely.questions.result import Estimate

onnx = pytest.importorskip("onnx")
ROOT = Path(__file__).parents[3]


def model(path: Path, nodes: list[Any], shape: tuple[int, ...] = (1, 4), **stored: Any) -> Path:
    helper = onnx.helper
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    path.write_bytes(made.SerializeToString())
    return path


def doubling(first: str, times: int = 29) -> list[Any]:
    names = [first, *(f"c{i}" for i in range(times - 1)), "d"]
    return [onnx.helper.make_node("Concat", [a, a], [b], axis=1) for a, b in pairwise(names)]


node = onnx.helper.make_node
ONES = np.ones((1, 60_000), np.float32)
HOSTILE = {
    "concat": ([*doubling("x"), node("Relu", ["d"], ["y"])], (1, 4), {}),
    "constants": (
        [*doubling("k"), node("ReduceSum", ["d"], ["s"]), node("Add", ["x", "s"], ["y"])],
        (1, 4),
        {"k": np.ones((1, 4), np.float32)},
    ),
    "expand": ([node("Expand", ["x", "s"], ["y"])], (1, 4), {"s": np.array([2**20, 2**12, 1])}),
    "tile": ([node("Tile", ["x", "s"], ["y"])], (1, 4), {"s": np.array([1, 2**30])}),
    "pad": ([node("Pad", ["x", "s"], ["y"])], (1, 4), {"s": np.array([0, 2**30, 0, 2**30])}),
    "outer": ([node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["t", "x"], ["y"])], (1, 60_000), {}),
    "outer sum": ([node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Add", ["t", "x"], ["y"])], (1, 60_000), {}),
    "outer constant": (
        [
            node("Transpose", ["k"], ["t"], perm=[1, 0]),
            node("MatMul", ["t", "k"], ["m"]),
            node("ReduceSum", ["m"], ["s"]),
            node("Add", ["x", "s"], ["y"]),
        ],
        (1, 4),
        {"k": ONES},
    ),
    "transposed convolution": (
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[20_000, 20_000])],
        (1, 1, 8, 8),
        {"w": np.ones((1, 1, 1, 1), np.float32)},
    ),
    "work of a convolution": (
        [node("Conv", ["x", "w"], ["y"], pads=[50] * 4)],
        (1, 1, 2000, 2000),
        {"w": np.ones((1, 1, 101, 101), np.float32)},
    ),
    "columns of a convolution": (
        [node("Conv", ["x", "w"], ["y"], dilations=[2, 2])],
        (1, 1, 1000, 1000),
        {"w": np.ones((1, 1, 21, 21), np.float32)},
    ),
    "work of a pool": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[401, 401], pads=[200] * 4)],
        (1, 1, 1000, 1000),
        {},
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_graph_is_asked_before_it_takes(kind: str, tmp_path: Path) -> None:
    nodes, shape, stored = HOSTILE[kind]
    path = model(tmp_path / "net.onnx", nodes, shape, **stored)
    with pytest.raises(FormatError, match=r"is too large: .* are allowed; .* RARELY_LIMITS") as caught:
        load_network(path)
    assert str(path) in str(caught.value)


def nested(path: Path, levels: int, **extra: Any) -> Path:
    """Functions of which each calls the one before ten times; calls fill in the attribute `value`, if there is one."""
    helper, imports = onnx.helper, [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("f", 1)]
    functions = []
    for level in range(levels):
        names = ["a", *(f"t{i}" for i in range(9)), "b"]
        pairs = list(pairwise(names))
        inside = [node(f"F{level - 1}", [a], [b], domain="f") if level else node("Relu", [a], [b]) for a, b in pairs]
        if extra:
            for i in range(9):
                inside.append(node("Constant", [], [f"k{i}"]))
                reference = onnx.AttributeProto(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR)
                inside[-1].attribute.append(reference)
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], inside, imports, list(extra)))
    graph = helper.make_graph(
        [node(f"F{levels - 1}", ["x"], ["y"], domain="f", **extra)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 4))],
        [helper.make_empty_tensor_value_info("y")],
    )
    made = helper.make_model(graph, opset_imports=imports, functions=functions)
    made.ir_version = 8
    path.write_bytes(made.SerializeToString())
    return path


def test_functions_of_functions_are_counted_before_they_are_put_in_place(tmp_path: Path) -> None:
    """Three kilobytes that ask for a billion nodes."""
    with pytest.raises(FormatError, match=r"local functions put in place, is too large: 1,111,111,111 nodes"):
        load_network(nested(tmp_path / "net.onnx", 9))
    tensor = onnx.numpy_helper.from_array(np.zeros(300_000_000 // 9 // 4, np.float32))
    with pytest.raises(FormatError, match=r"local functions put in place, is too large: .* bytes"):
        load_network(nested(tmp_path / "net.onnx", 2, value=tensor))
    assert load_network(nested(tmp_path / "net.onnx", 3))(torch.ones(2, 4)).shape == (2, 4)


@pytest.mark.parametrize("archive", [False, True])
def test_a_name_that_torch_would_search_for_hours(archive: bool, tmp_path: Path) -> None:
    """torch looks through what it has to say against a name in the square of the name's length."""
    pickled = b"\x80\x02c" + b"a" * 1_000_000 + b"\nb\n."
    path = tmp_path / "w.pt"
    path.write_bytes(pickled)
    if archive:
        with zipfile.ZipFile(path, "w") as out:
            out.writestr("w/data.pkl", pickled)
            out.writestr("w/version", "3")
    with pytest.raises(FormatError, match=r"its pickle has a name of 1,000,00. characters"):
        load_network(path, architecture=lambda: torch.nn.Linear(4, 3))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_damaged_torchscript_is_a_sentence(tmp_path: Path) -> None:
    """What its pickle calls a weight, its code does not know: an IndexError of torch."""
    path = tmp_path / "net.ts"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(4, 3).eval(), torch.zeros(2, 4)), path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "damaged.ts", "w") as out:
        for name in whole.namelist():
            out.writestr(name, whole.read(name).replace(b"weight", b"weighs" if "data.pkl" in name else b"weight"))
    with pytest.raises(FormatError, match="not a TorchScript file that can be loaded"):
        load_network(tmp_path / "damaged.ts")


def test_a_sum_of_many_words(tmp_path: Path) -> None:
    text = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (<= (+ " + "Y_0 " * 5_000_000 + ") 0))"
    with pytest.raises(FormatError, match=r"the property is too large: 5,000,\d\d\d words, where 5,000,000 are"):
        parse_vnnlib(text)


def test_many_outputs_are_compared_some_at_a_time() -> None:
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(4, 3_000_000)).astype(np.float32)
    actual = expected.copy()
    actual[1, 2_999_999] += 1
    actual[2, 5] = np.nan
    tracemalloc.start()
    found = gaps(actual, expected)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] == found[3] == 0
    assert found[1] == pytest.approx(1 / (np.abs(expected[1]).max() + 1e-2), rel=1e-5)
    assert np.isinf(found[2])
    assert peak < 2e8, "a longdouble for each of twelve million numbers, twice, would be more"


def test_what_nobody_reads_is_not_run(tmp_path: Path) -> None:
    network = load_network(model(tmp_path / "net.onnx", [*doubling("x"), node("Relu", ["x"], ["y"])]))
    assert network(torch.zeros(2, 4)).shape == (2, 4)


def test_a_black_box_is_tried_with_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    big = [node("Hardmax", ["x"], ["h"]), node("Expand", ["h", "s"], ["e"]), node("Relu", ["e"], ["y"])]
    path = model(tmp_path / "net.onnx", big, s=np.array([2**15, 2**15, 4]))
    with pytest.raises(FormatError, match="what one input takes in onnxruntime is too large"):
        load_network(path)
    with monkeypatch.context() as patch:
        patch.setenv(limits.VARIABLE, "1e-6")
        with pytest.raises(RarelyError):
            load_network(model(tmp_path / "small.onnx", [node("Hardmax", ["x"], ["y"])]))
    assert load_network(model(tmp_path / "small.onnx", [node("Hardmax", ["x"], ["y"])]))(torch.zeros(2, 4)).shape == (
        2,
        4,
    )


def test_the_variable_raises_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = model(tmp_path / "net.onnx", [node("Tile", ["x", "s"], ["y"])], s=np.array([1, 1000]))
    monkeypatch.setenv(limits.VARIABLE, "0.0001")
    with pytest.raises(FormatError, match=r"4,000 entries, where 3,355 are allowed"):
        load_network(wide, check=False)
    monkeypatch.setenv(limits.VARIABLE, "0.01")
    assert load_network(wide, check=False)(torch.zeros(1, 4)).shape == (1, 4000)
    monkeypatch.setenv(limits.VARIABLE, "much")
    with pytest.raises(InputError, match="not a positive number"):
        load_network(wide)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"location": "../net.data"}, "outside of its folder"),
        ({"location": "net.data", "offset": "0", "length": str(2**50)}, "fewer than named"),
        ({"location": "net.data", "offset": "-5"}, "cannot be read"),
        ({"location": "none.data"}, "cannot be read"),
    ],
)
def test_external_data_is_checked_before_it_is_read(entries: dict[str, str], reason: str, tmp_path: Path) -> None:
    (tmp_path / "net.data").write_bytes(bytes(16))
    path = model(tmp_path / "net.onnx", [node("Add", ["x", "k"], ["y"])], k=np.ones((1, 4), np.float32))
    made = onnx.load_model(path)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in entries.items())
    path.write_bytes(made.SerializeToString())
    with pytest.raises(FormatError, match=reason):
        load_network(path)


def test_bombs_are_stopped_while_they_unpack(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", 9) as stream:
        for _ in range(300):
            stream.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="the content is too large"):
            read_bytes(bomb)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    text = tmp_path / "text.gz"
    text.write_bytes(gzip.compress(b"(assert (<= X_0 1))\n" * 100_000))
    assert len(read_text(text)) == 2_000_000


def test_a_diagonal_is_not_a_matrix_of_zeros() -> None:
    count = 10_000
    head = "".join(f"(declare-const X_{i} Real)\n" for i in range(count)) + "(declare-const Y_0 Real)\n"
    box = "".join(f"(assert (<= X_{i} 1))(assert (>= X_{i} 0))\n" for i in range(count))
    rows = "".join(f"(assert (<= (+ X_{i} X_{i + 1}) 1))\n" for i in range(count - 1))
    with pytest.raises(FormatError, match=r"the property is too large: .* numbers"):
        parse_vnnlib(head + box + rows + "(assert (<= Y_0 0))")


def test_a_wide_rlv_is_refused() -> None:
    wide = "".join(f"Input x{i}\nAssert <= 0 1 x{i}\nAssert >= 1 1 x{i}\n" for i in range(9000))
    wide += "".join(f"ReLU h{i} 0 1 x{i}\n" for i in range(9000)) + "Assert <= 0 1 h0\n"
    wide += "".join(f"Assert <= 0 1 h{i}\n" for i in range(1, 9000))
    with pytest.raises(FormatError, match="is too large"):
        parse_rlv(wide)


PLAN = '[[networks]]\npath = "n.onnx"\n[[problems]]\nvnnlib = "p.vnnlib"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a." * 300_000 + "a = 1\n", "a key of more than 100 parts"),
        ('"a".' * 300_000 + "a = 1\n", "a key of more than 100 parts"),
        ("x = " + "[" * 100_000, "nested too deep|not TOML"),
        ("x = " + "9" * 10_000, "not TOML"),
        ("[campaign]\nreplicates = " + "9" * 30 + "\n" + PLAN, "campaign.replicates"),
        (PLAN + "[matrix]\n" + "".join(f"k{i} = {list(range(100))}\n" for i in range(9)), "combinations"),
        ("# " + "x" * (5 << 20), "is too large"),
    ],
)
def test_a_plan_is_counted_before_it_is_expanded(text: str, reason: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=reason):
        read_plan(plan)


def test_dots_in_strings_and_numbers_are_no_keys(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace("p.vnnlib", "a." * 200 + "vnnlib") + f"# {'b.' * 200}\n", encoding="utf-8")
    assert len(read_plan(plan)[0].problems) == 1


def test_rows_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2000, 1, 28, 28), dtype=np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "b.npz", images=pixels, labels=np.arange(2000) % 10)
    np.savez_compressed(tmp_path / "c.npz", images=np.asfortranarray(pixels))
    for name in ("a.npy", "b.npz", "c.npz"):
        images = load_images(tmp_path / name, (784,), None)
        images.check((0.0, 1.0), "")
        assert len(images) == 2000
        assert np.array_equal(images[1234], pixels[1234].reshape(784).astype(np.float32) / np.float32(255))
        assert sum(len(block) for block in images.blocks()) == 2000
    assert isinstance(load_images(tmp_path / "b.npz", None, None).stored, np.memmap)


def test_a_data_set_that_says_too_much_is_refused(tmp_path: Path) -> None:
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 1000), }".ljust(117)
    )
    (tmp_path / "a.npy").write_bytes(header + b"\n" + bytes(100))
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header + b"\n" + bytes(100))
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("images.npy", header + b"\n" + bytes(100))
    np.save(tmp_path / "d.npy", np.array([[{}]]), allow_pickle=True)
    for name in ("a.npy", "b.npz", "c.npz", "d.npy"):
        with pytest.raises(FormatError):
            load_images(tmp_path / name, None, None)


def test_a_large_picture_is_refused_by_its_header(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("1", (13_000, 13_000)).save(tmp_path / "a.png")
    with pytest.raises(FormatError, match="the picture, unpacked, is too large"):
        load_images(tmp_path, None, None).check()


def test_the_variable_raises_the_limit_of_pictures_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's own limit is half of this, and would not ask the variable."""
    image = pytest.importorskip("PIL.Image")
    image.new("1", (40, 100)).save(tmp_path / "a.png")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 1000)
    load_images(tmp_path, None, None).check()
    assert image.MAX_IMAGE_PIXELS == 1000
    monkeypatch.setenv(limits.VARIABLE, "5e-5")
    with pytest.raises(FormatError, match=f"the picture, unpacked, is too large: .* {limits.VARIABLE}"):
        load_images(tmp_path, None, None).check()


def test_paths_that_no_system_takes(tmp_path: Path) -> None:
    for path in (tmp_path / ("a" * 300), tmp_path / "a\0b"):
        for suffix in (".onnx", ".pt", ".safetensors", ".rlv", ".npz"):
            with pytest.raises(RarelyError):
                load_network(f"{path}{suffix}")
        with pytest.raises(FormatError):
            read_plan(path)
        with pytest.raises(RarelyError):
            load_images(path.with_suffix(".npz"), None, None)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, '{"schema": 1', "[" * 500 + "]" * 500, "null", "3"])
def test_a_result_that_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError):
        Estimate.from_json(json.dumps(read_json(file)), str(file))


def test_the_limits_are_those_that_are_written_down() -> None:
    told = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for limit in limits.ALL:
        assert f"| {limit.what} | {limit.most:,} {limit.unit} |" in told
    assert limits.VARIABLE in told
    for number in (limits.DEPTH, limits.DEPTH_2, limits.KEY_PARTS):
        assert f"{number:,}" in told


# What `make fuzz` found, one test each.


def _npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4\n",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': ('''\n",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2 4), }\n",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }\n",
    ],
)
@pytest.mark.parametrize("packed", [None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_header_of_numpy_is_a_sentence(header: bytes, packed: int | None, tmp_path: Path) -> None:
    path = tmp_path / ("a.npy" if packed is None else "a.npz")
    if packed is None:
        path.write_bytes(_npy(header) + bytes(32))
    else:
        with zipfile.ZipFile(path, "w", packed) as archive:
            archive.writestr("images.npy", _npy(header) + bytes(32))
    with pytest.raises(FormatError):
        load_images(path, None, None)


def test_an_archive_on_several_disks_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    locator = b"PK\x06\x07" + (7).to_bytes(4, "little") + bytes(8) + (9).to_bytes(4, "little")
    path.write_bytes(bytes(64) + locator + b"PK\x05\x06" + b"\xff" * 16 + b"\0\0")
    with pytest.raises(RarelyError):
        load_network(path, architecture=lambda: torch.nn.Linear(4, 3))


def test_a_long_name_in_a_file_makes_no_long_sentence() -> None:
    said = str(FormatError("a.json", f"no {'k' * 60_000}; do this"))
    assert len(said) < 5000
    assert said.startswith("a.json: no")
    assert said.endswith("; do this")


def test_evidence_of_the_wrong_type_is_met_on_reading() -> None:
    from rarely import Box, LinearConstraint, MonteCarlo, Problem, estimate

    above = LinearConstraint(torch.eye(2)[:1], torch.tensor([0.5]))
    found = estimate(Problem(torch.nn.Identity().eval(), above, Box([0, 0], [1, 1])), MonteCarlo(1000))
    data = json.loads(found.to_json())
    data["evidence"][0]["hits"] = None
    with pytest.raises(FormatError, match="not an estimate written by rarely"):
        Estimate.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("network", "indices"), [("n" * 300, "0:1"), ("net.onnx", f"{'9' * 5000}:"), ("net.onnx", "::0")]
)
def test_a_plan_of_long_names_and_numbers_is_a_sentence(network: str, indices: str, tmp_path: Path) -> None:
    from rarely.campaign.expansion import expand_plan

    model(tmp_path / "net.onnx", [node("Relu", ["x"], ["y"])])
    np.savez(tmp_path / "d.npz", images=np.zeros((2, 4), np.uint8), labels=np.array([0, 1]))
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'[campaign]\nname = "f"\n[[networks]]\npath = "{network}"\n'
        f'[[problems]]\ndataset = "d.npz"\nradii = [0.1]\nindices = "{indices}"\n[estimator]\nmethod = "auto"\n'
    )
    with pytest.raises(RarelyError):
        expand_plan(*read_plan(plan))
