"""Language models from folders, and what is said of those that are none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rarely import MonteCarlo, Predicted, Problem, estimate
from rarely.core.errors import FormatError, MissingExtra, NetworkError
from rarely.inputs import Tokens
from rarely.io.language import NextToken, load_language_model


class Everywhere(nn.Module):
    """Logits of every place, as training needs them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.table(tokens).cumsum(1)
        return y


def test_the_last_place_answers() -> None:
    torch.manual_seed(0)
    model = Everywhere().eval()
    x = torch.randint(5, (7, 4))
    torch.testing.assert_close(NextToken(model)(x), model(x)[:, -1])
    answer = estimate(Problem(NextToken(model), Predicted(2), Tokens(torch.ones(5), 4)), MonteCarlo(1000))
    assert answer.evaluations >= 1000


def test_a_model_that_has_one_answer_is_no_language_model() -> None:
    with pytest.raises(NetworkError, match="gives logits"):
        Problem(NextToken(nn.Sequential(nn.Embedding(5, 5), nn.Flatten()).eval()), Predicted(2), Tokens([1.0] * 5, 4))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no config\.json"):
        load_language_model(tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"rarely\[transformers\]"):
        load_language_model(tmp_path)


@pytest.mark.filterwarnings("ignore")  # of the package and of what it imports
def test_a_model_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    network = load_language_model(tmp_path)
    x = torch.randint(40, (6, 5))
    torch.testing.assert_close(network(x), model(x).logits[:, -1])
    assert network.decode is None
    answer = estimate(Problem(network, Predicted(int(network(x)[0].argmax())), Tokens(torch.ones(40), 5)))
    assert answer.prob > 0
    (tmp_path / "config.json").write_text('{"model_type": "none such"}')
    with pytest.raises(FormatError, match="cannot make a causal model"):
        load_language_model(tmp_path)
