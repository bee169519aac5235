"""For engineers of language models: which words does a model hardly ever answer with, and after what?

Run it with `python examples/rare_words.py`. The model is the demo's; yours goes in its place, as
`rarely.io.language.load_language_model(folder)` or any module that turns numbers of tokens into logits.
"""

from __future__ import annotations

import rarely
from rarely.demo.text import language_model
from rarely.inputs import Tokens

SUBJECTS = ("the", "a", "an", "this", "any", "each")
NOUNS = ("value", "object", "class", "function", "name", "method")
VERBS = ("is", "are", "can", "may", "must", "was")
RARE = ("before", "attribute")


def main() -> None:
    model = language_model()
    number = {word: k for k, word in enumerate(model.vocabulary)}
    # The k-th of the words that may stand in a place is k^2 times rarer than the first.
    slots = (
        SUBJECTS,
        NOUNS,
        ("of", "in", "to", "for", "by"),
        SUBJECTS,
        NOUNS,
        VERBS,
        ("not", "only", "also", "called"),
    )
    law = Tokens(
        [{word: 1 / (k + 1) ** 2 for k, word in enumerate(slot)} for slot in slots], vocabulary=model.vocabulary
    )
    problems = [rarely.Problem(model, rarely.Predicted(number[word]), law, name=word) for word in RARE]
    for answer in rarely.estimate(problems):
        print(f"{answer.name!r} follows:", answer)
        for sentence in sorted(set(law.texts(answer.witnesses.inputs)))[:2]:
            print(f"    {sentence} ... {answer.name}")


if __name__ == "__main__":
    main()
