"""Language models from Hugging Face's own package: token numbers in, the logits of what comes next out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rarely.core.errors import FormatError, InputError, MissingExtra


class NextToken(nn.Module):
    """Logits (n, tokens) of what follows sequences (n, length), from a model that has them for every place.

    `model` gives logits (n, length, tokens), or an object that holds them, as the causal models of `transformers` do.
    """

    def __init__(self, model: nn.Module, decode: Callable[[list[int]], str] | None = None) -> None:
        super().__init__()
        self.model = model
        self.decode = decode  # a sequence as text, where there is a tokenizer
        self.train(model.training)

    def forward(self, tokens: Tensor) -> Tensor:
        answer = self.model(tokens)
        logits: Tensor = getattr(answer, "logits", answer)
        if logits.ndim != 3:
            raise InputError(
                f"a language model gives logits (n, length, tokens), and this one {tuple(logits.shape)}; "
                "one that answers for the last place alone needs no NextToken"
            )
        return logits[:, -1]


def load_language_model(folder: str | Path) -> NextToken:
    """A causal model that `save_pretrained` wrote into a folder, with its tokenizer if there is one.

    Nothing is downloaded: to get a model, `huggingface-cli download NAME --local-dir FOLDER`.
    """
    place = Path(folder)
    if not (place / "config.json").is_file():
        raise FormatError(place, "no config.json; give a folder that save_pretrained of a causal model wrote")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtra("language models need transformers: pip install 'rarely[transformers]'") from error
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise FormatError(place, f"transformers cannot make a causal model of it: {reason}") from error
    # Saved without a tokenizer its inputs are numbers, for which the package would make up an empty one.
    named = any((place / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    decode = AutoTokenizer.from_pretrained(place, local_files_only=True).decode if named else None
    return NextToken(model.eval(), decode)
