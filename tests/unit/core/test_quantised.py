"""Networks quantised to int8 by torch itself: asked like any other, against a plain count of the same network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rarely import Gaussian, Misclassification, MonteCarlo, Outcome, Predicted, Problem, estimate
from rarely.demo.text import language_model
from rarely.inputs import Tokens

# Torch warns that it will drop its quantised tensors; until then people have networks made of them.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch")


def _quantised(network: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)


def test_a_dense_network_in_int8() -> None:
    torch.manual_seed(0)
    network = _quantised(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).eval())
    label = int(network(torch.zeros(1, 4)).argmax())
    problem = Problem(network, Misclassification(label), Gaussian([0.0] * 4, 0.2))
    answer, counted = estimate(problem), estimate(problem, MonteCarlo(400_000), seed=1)
    assert answer.outcome is Outcome.VIOLATED
    error = math.hypot(answer.log_prob_std, counted.log_prob_std)
    assert error < 0.3
    assert abs(answer.log_prob - counted.log_prob) < 5 * error


def test_a_language_model_in_int8() -> None:
    model = language_model()
    law = Tokens({"the": 1.0, "a": 1.0, "not": 1.0, "is": 1.0}, 3, vocabulary=model.vocabulary)
    network, every = _quantised(model), torch.cartesian_prod(*[law.ids[0]] * 3)
    with torch.no_grad():
        answers = network(every).argmax(1)
    word = int(answers.mode().values)
    result = estimate(Problem(network, Predicted(word), law), MonteCarlo(4000))
    share = float((answers == word).double().mean())
    assert abs(result.prob - share) < 5 * math.sqrt(share * (1 - share) / 4000)
