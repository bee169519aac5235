"""The same questions put to Marabou, an independent and complete verifier (extra `verify`)."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

from rarely.bounds import decide_boxes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns about a tensorflow that nobody asked for
    maraboupy = pytest.importorskip(
        "maraboupy.Marabou", reason="maraboupy is not installed: pip install 'rarely[verify]'"
    )
    from maraboupy.MarabouNetwork import MarabouNetwork


def random_network(rng: np.random.Generator) -> torch.nn.Sequential:
    torch.manual_seed(int(rng.integers(2**31)))
    widths = [int(rng.integers(2, 5)), int(rng.integers(4, 12)), int(rng.integers(4, 12)), 2]
    layers: list[torch.nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).eval()


def ask_marabou(network: torch.nn.Sequential, low: torch.Tensor, high: torch.Tensor, offset: float) -> str:
    """Is there an x in the box with y0 - y1 <= offset?"""
    query = MarabouNetwork()
    inputs = [query.getNewVariable() for _ in range(len(low))]
    values = inputs
    for layer in network:
        following = [query.getNewVariable() for _ in range(getattr(layer, "out_features", len(values)))]
        if isinstance(layer, torch.nn.Linear):
            for node, row, bias in zip(following, layer.weight.tolist(), layer.bias.tolist(), strict=True):
                query.addEquality([*values, node], [*row, -1.0], -bias)
        else:
            for before, after in zip(values, following, strict=True):
                query.addRelu(before, after)
        values = following
    for node, a, b in zip(inputs, low.tolist(), high.tolist(), strict=True):
        query.setLowerBound(node, a)
        query.setUpperBound(node, b)
    query.inputVars, query.outputVars = [np.array(inputs)], [np.array(values)]
    query.addInequality(values, [1.0, -1.0], offset)
    options = maraboupy.createOptions(verbosity=0, timeoutInSeconds=20)
    return str(query.solve(verbose=False, options=options)[0])


def test_fifty_random_networks_have_the_same_verdict():
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(50):
        network = random_network(rng)
        low = torch.tensor(rng.uniform(-1, 0.5, network[0].in_features), dtype=torch.float32)
        high = low + torch.tensor(rng.uniform(0.2, 1.0, len(low)), dtype=torch.float32)
        with torch.no_grad():
            y = network(low + torch.rand(2000, len(low)) * (high - low))
        # Around the smallest difference that samples show, so that both answers occur.
        offset = float((y[:, 0] - y[:, 1]).min()) + float(rng.choice([-0.05, 0.05]))
        outputs = [(torch.tensor([[1.0, -1.0]]), torch.tensor([offset]))]
        (ours,) = decide_boxes(network, low[None], high[None], outputs, 20.0)
        theirs = ask_marabou(network, low, high, offset)
        verdicts.append((ours.status, theirs))
    assert {("proved", "unsat"), ("violated", "sat")} == set(verdicts), verdicts
