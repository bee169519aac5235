from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rarely.core.errors import FormatError, RarelyError
from rarely.io.formats.rlv import parse_rlv, read_rlv

fuzz = settings(deadline=None, derandomize=True, max_examples=100)


def interpret(text: str, x: np.ndarray, names: list[str]) -> np.ndarray:
    """The nodes `names` at the points x (n, inputs), node by node in float64: slow, and plainly right."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    table = {words[1]: words for words in lines if words[0] != "Assert"}
    inputs = [words[1] for words in lines if words[0] == "Input"]
    values = {name: x[:, i] for i, name in enumerate(inputs)}

    def value(name: str) -> np.ndarray:
        if name not in values:
            kind, _, *words = table[name]
            if kind == "MaxPool":
                values[name] = np.max([value(word) for word in words], axis=0)
            else:
                total = np.full(len(x), float(words[0]))
                for weight, operand in zip(words[1::2], words[2::2], strict=True):
                    total = total + float(weight) * value(operand)
                values[name] = np.maximum(total, 0) if kind == "ReLU" else total
        return values[name]

    return np.stack([value(name) for name in names], axis=1)


def kinds(network: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in network.children()]


BOX = "Assert <= -1.0 1.0 a\nAssert >= 1.0 1.0 a\nAssert <= -2 1 b\nAssert >= 6 2 b\n"
NET = """Input a
Input b
ReLU h0 0.5 1.0 a -1.0 b
ReLU h1 0.0 2.0 b
ReLU h2 -0.25 0.5 a
ReLU h3 0.0 -1.0 a
MaxPool p0 h0 h1
MaxPool p1 h2 h3
Linear y0 1.0 1.0 p0 -1.0 p1
Linear y1 0.0 0.5 p1
Linear out0 0.0 1.0 y0
Linear out1 0.0 1.0 y1
"""
OUT = "Assert >= 0.0 -1.0 out1 1.0 out0\n"


def test_layers_outputs_and_specification() -> None:
    problem = parse_rlv(NET + BOX + OUT, "f.rlv")
    network, spec = problem.network, problem.specification
    assert kinds(network) == ["Linear", "ReLU", "MaxPool1d", "Linear"]
    assert (network.input_shape, network.output_shape) == ((2,), (2,))
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    (case,) = spec.cases
    assert (spec.n_inputs, spec.n_outputs, spec.source) == (2, 2, "f.rlv")
    np.testing.assert_array_equal(case.low, [-1, -2])
    np.testing.assert_array_equal(case.high, [1, 3])
    np.testing.assert_array_equal(case.outputs[0].A, [[1, -1]])  # 0 >= out0 - out1, columns in file order
    x = np.random.default_rng(0).normal(size=(50, 2))
    with torch.no_grad():
        y = network(torch.tensor(x, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(y, interpret(NET, x, ["out0", "out1"]), atol=1e-5)


def test_batches_of_problems_run_as_they_are() -> None:
    network = parse_rlv(NET + BOX + OUT).network
    x = torch.randn(3, 5, 2)
    assert network(x).shape == (3, 5, 2)
    torch.testing.assert_close(network(x)[1], network(x[1]))


def test_same_network_is_the_same_object() -> None:
    first = parse_rlv(NET + BOX + OUT).network
    other = BOX.replace("6 2 b", "4 2 b") + "Assert <= 0.0 -1.0 out1 1.0 out0\n"
    assert parse_rlv(other + "\n" + NET.replace(" ", "  ")).network is first
    double = parse_rlv(NET + BOX + OUT, dtype=torch.float64).network
    assert double is not first
    assert next(double.parameters()).dtype == torch.float64
    assert double.fingerprint == first.fingerprint
    assert parse_rlv(NET.replace("0.25", "0.5") + BOX + OUT).network.fingerprint != first.fingerprint
    one = parse_rlv(NET + BOX + "Assert <= 0.0 1.0 out1\n").network
    assert one.output_shape == (1,)
    assert one.fingerprint != first.fingerprint


def test_reading_draws_no_random_numbers() -> None:
    state = torch.random.get_rng_state()
    parse_rlv(NET.replace("0.25", "0.125") + BOX + OUT)
    assert torch.equal(state, torch.random.get_rng_state())


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.rlv").write_text((NET + BOX + OUT).replace("\n", "\r\n"))
    (tmp_path / "a.rlv.gz").write_bytes(gzip.compress((NET + BOX + OUT).encode()))
    assert read_rlv(tmp_path / "a.rlv").network is read_rlv(tmp_path / "a.rlv.gz").network
    with pytest.raises(FormatError, match="cannot be read"):
        read_rlv(tmp_path / "absent.rlv")


def check(text: str, names: list[str], layers: list[str] | None = None) -> nn.Module:
    """The network agrees with the interpreter, plain and traced; returns it."""
    network = parse_rlv(text, dtype=torch.float64).network
    if layers is not None:
        assert kinds(network) == layers
    x = np.random.default_rng(1).normal(size=(20, network.input_shape[0]))
    expected = interpret(text, x, names)
    for run in (network, torch.fx.symbolic_trace(network)):
        np.testing.assert_allclose(run(torch.from_numpy(x)).numpy(), expected, rtol=1e-9, atol=1e-9)
    return network


def test_separate_relu_layer_needs_no_matrix() -> None:
    text = "Input a\nInput b\nLinear m 0.5 2 a\nLinear n -1 1 b 1 a\nReLU r 0 1 m\nReLU s 0 1 n\n"
    assertion = "Assert <= 0 1 r 1 s\n"
    check(text + BOX + assertion, ["r", "s"], ["Linear", "ReLU"])


def test_irregular_windows_and_order() -> None:
    text = NET.replace("MaxPool p0 h0 h1", "MaxPool p0 h3 h0 h1")
    check(text + BOX + OUT, ["out0", "out1"], ["Linear", "ReLU", "PickMax", "Linear"])
    backwards = "\n".join(reversed(NET.splitlines())) + "\n"
    check(backwards + BOX + OUT, ["out1", "out0"])


def test_skips_hidden_outputs_aliases_and_dead_nodes() -> None:
    text = (
        "Input a\nInput b\nReLU h 0 1 a 1 b\nLinear same 0 1 a\nReLU dead 0 1 h\nMaxPool m h same b\n"
        "Linear y 1 1 m -2 a 0.5 h 0.5 h\n"
    )
    network = check(text + BOX + "Assert <= 0 1 y 1 h\nAssert <= -5 1 same\n", ["h", "y"])
    assert network.output_shape == (2,)
    case = parse_rlv(text + BOX + "Assert <= 0 1 y 1 h\nAssert <= -0.5 1 same\n").specification.cases[0]
    assert case.low[0] == -0.5  # an alias of an input is that input


def test_linear_assertions_across_inputs_and_equalities() -> None:
    more = "Assert <= -1.5 1 a 1 b\nAssert = 0.5 1 out0\n"
    (case,) = parse_rlv(NET + BOX + more).specification.cases
    assert case.input_constraints is not None
    np.testing.assert_array_equal(case.input_constraints.A, [[-1, -1]])
    np.testing.assert_array_equal(case.input_constraints.b, [1.5])
    np.testing.assert_array_equal(case.outputs[0].b, [-0.5, 0.5])


MALFORMED: list[tuple[Callable[[str], str], int | None, str]] = [
    (lambda text: text.replace("h0 h1", "h0 nowhere"), 7, "unknown node 'nowhere'"),
    (lambda text: text.replace("1.0 out0", "1.0 nowhere"), 17, "unknown node 'nowhere'"),
    (lambda text: text.replace("ReLU h1 0.0 2.0 b", "ReLU h1 0.0 2.0 y0"), 4, "cycle"),
    (lambda text: text.replace("ReLU h1 0.0 2.0 b", "ReLU h1 0.0 2.0 h1"), 4, "cycle"),
    (lambda text: text.replace("Input b", "Input a"), 2, "defined twice"),
    (lambda text: text.replace("Linear y1", "Linear y0"), 10, "defined twice"),
    (lambda text: text.replace("Linear y1", "Sigmoid y1"), 10, "unknown kind of node 'Sigmoid'"),
    (lambda text: text.replace("Linear y1 0.0 0.5 p1", "Linear y1 0.0 0.5"), 10, "pairs"),
    (lambda text: text.replace("Linear y1 0.0 0.5 p1", "Linear y1"), 10, "no operands"),
    (lambda text: text.replace("MaxPool p1 h2 h3", "MaxPool p1"), 8, "no operands"),
    (lambda text: text.replace("Input b", "Input b 1"), 2, "too many operands"),
    (lambda text: text.replace("Input b", "Input"), 2, "needs a name"),
    (lambda text: text.replace("0.5 p1", "half p1"), 10, "half"),
    (lambda text: text.replace("0.5 p1", "1e999 p1"), 10, "not finite"),
    (lambda text: text.replace("Assert >= 0.0", "Assert != 0.0"), 17, "an assertion reads"),
    (lambda text: text.replace("Assert >= 0.0", "Asserted >= 0.0"), 17, "unknown kind of node 'Asserted'"),
    (lambda text: text.replace("-1.0 out1 1.0 out0", ""), 17, "an assertion reads"),
    (lambda text: text.replace("1.0 out0", "1.0 a"), 17, "mixes inputs"),
    (lambda text: text.replace("1.0 out0", "1.0 out1").replace(">= 0.0", "<= 1.0"), 17, "never hold"),
    (
        lambda text: text.replace("Assert >= 1.0", "Assert >= -3"),
        14,
        "contradictory bounds: the lower bound of a",
    ),
    (lambda text: text.replace("Assert >= 1.0 1.0 a", ""), 1, "a has no upper bound"),
    (lambda text: text.replace(OUT, ""), None, "no output constraint"),
    (lambda text: "", None, "no Input"),
]


@pytest.mark.parametrize(("change", "line", "reason"), MALFORMED, ids=[case[2] for case in MALFORMED])
def test_malformed(change: Callable[[str], str], line: int | None, reason: str) -> None:
    text = change(NET + BOX + OUT)
    assert text != NET + BOX + OUT
    with pytest.raises(FormatError) as caught:
        parse_rlv(text, "f.rlv")
    assert reason in caught.value.reason
    assert caught.value.line == line


def test_absurd_sizes_are_refused() -> None:
    chain = "Input a\n" + "".join(f"ReLU n{i} 1 1 {'a' if i == 0 else f'n{i - 1}'}\n" for i in range(10_001))
    with pytest.raises(FormatError, match="10,001 layers"):
        parse_rlv(chain + "Assert <= 0 1 n10000\nAssert <= 0 1 a\nAssert >= 1 1 a\n")
    wide = "".join(f"Input x{i}\nAssert <= 0 1 x{i}\nAssert >= 1 1 x{i}\n" for i in range(16_400))
    wide += "".join(f"ReLU h{i} 0 1 x{i}\n" for i in range(16_400))
    sums = " ".join(f"1 h{i}" for i in range(16_400))
    with pytest.raises(FormatError, match="weights"):
        parse_rlv(wide + f"Linear y 0 {sums}\nAssert <= 0 1 y\n")


@st.composite
def networks(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Any acyclic graph, its lines in any order; all values are exact in float64."""
    names = ["a", "b"]
    lines = []
    numbers = st.sampled_from([-1.0, -0.5, 0.0, 1.0, 1.5])
    for i in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from(["Linear", "ReLU", "MaxPool"]))
        operands = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        if kind == "MaxPool":
            lines.append(f"MaxPool n{i} {' '.join(operands)}")
        else:
            pairs = " ".join(f"{draw(numbers)} {operand}" for operand in operands)
            lines.append(f"{kind} n{i} {draw(numbers)} {pairs}")
        names.append(f"n{i}")
    lines = draw(st.permutations(lines))
    written = [line.split()[1] for line in lines]
    outputs = draw(st.lists(st.sampled_from(written), min_size=1, max_size=3, unique=True))
    text = "Input a\nInput b\n" + "\n".join(lines) + "\n"
    return text, sorted(outputs, key=written.index)


@fuzz
@given(networks())
def test_random_graphs_agree_with_the_interpreter(graph) -> None:
    text, outputs = graph
    assertion = "Assert <= -1e9 " + " ".join(f"{2**i} {name}" for i, name in enumerate(outputs)) + "\n"
    try:
        problem = parse_rlv(text + BOX + assertion, dtype=torch.float64)
    except FormatError as error:  # outputs that repeat inputs are no outputs
        reasons = ("mixes inputs", "no output constraint")
        if not any(reason in error.reason for reason in reasons):
            raise
        return
    x = np.random.default_rng(2).integers(-4, 5, (20, 2)).astype(float)
    y = problem.network(torch.from_numpy(x)).numpy()
    (polytope,) = problem.specification.cases[0].outputs
    # Outputs may be aliases of each other, so it is the asserted combination that must agree.
    weights = np.array([2**i for i in range(len(outputs))])
    np.testing.assert_array_equal(-(y @ polytope.A[0]), interpret(text, x, outputs) @ weights)


PIECES = [
    "\n",
    " ",
    "Input ",
    "ReLU ",
    "MaxPool ",
    "Assert ",
    "h0",
    "a",
    "0.5",
    "1e400",
    "nan",
    "<= ",
    "\0",
    "é",
]


@fuzz
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9), st.sampled_from(PIECES)), max_size=4))
def test_mutated_files_raise_only_our_errors(changes) -> None:
    text = NET + BOX + OUT
    for start, length, piece in changes:
        text = text[:start] + piece + text[start + length :]
    with contextlib.suppress(RarelyError):
        parse_rlv(text)


@fuzz
@given(st.binary(max_size=60) | st.lists(st.sampled_from(PIECES)).map(lambda p: "".join(p).encode()))
def test_random_bytes_raise_only_our_errors(tmp_path_factory, content) -> None:
    path = tmp_path_factory.getbasetemp() / "random.rlv"
    path.write_bytes(content)
    with pytest.raises(RarelyError):
        read_rlv(path)
