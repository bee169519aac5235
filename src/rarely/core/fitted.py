"""Fitted models in the manner of scikit-learn, as functions of a batch; their classes by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import InputError, MissingExtra, NetworkError, RarelyError
from rarely.core.input_model import InputModel
from rarely.core.properties import Both, Either, Misclassification, Property, Targeted
from rarely.core.rng import Rng

_COMPARED = 64  # inputs on which the largest score must name the class that the model predicts
_HALVINGS = 16  # of the ways between two of them, towards the border between two classes
_LEAST = 1e-300  # of a probability, so that its logarithm is a number

Array = np.ndarray[Any, Any]


class Column(NamedTuple):
    """Where a named column of a table stands among the numbers of an input."""

    name: str
    width: int
    categories: tuple[str, ...] = ()  # by name: of as many numbers that are 0 or 1, or of one number that counts them

    def values(self, numbers: Array, typed: bool = False) -> Array:
        """The column (n,) as a table shows it, of numbers (n, width).

        `typed`: categories that read as numbers, or as True and False, are that.
        """
        if not self.categories:
            return numbers[:, 0]
        coded = self.width < len(self.categories)
        which = numbers[:, 0].astype(int) if coded else numbers.argmax(1)
        shown: Array = _typed(self.categories) if typed else np.asarray(self.categories, dtype=object)
        return np.asarray(shown[which])


def _typed(categories: tuple[str, ...]) -> Array:
    if set(categories) <= {"False", "True"}:
        return np.asarray([own == "True" for own in categories])
    try:
        return np.asarray([float(own) for own in categories])
    except ValueError:
        return np.asarray(categories, dtype=object)


@dataclass(frozen=True)
class Fitted:
    """Scores (n, classes) of a classifier, or what a model predicts, for inputs (n, *event).

    Margins come from `decision_function` where there is one. Probabilities become log-odds, each from its own column
    and the sum of the others: near 1 they are all alike in floating point, and their complements are not. A model
    whose scores do not lead to what it predicts, such as one with a threshold of its own, gives 1 for the class that it
    predicts and -1 for the others.
    """

    model: Any
    method: str
    columns: tuple[Column, ...]  # of the input, where it is a table with names
    names: tuple[str, ...]  # of the columns that the model was fitted on; none where it was fitted on an array
    classes: tuple[str, ...]
    differentiable: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        try:
            scores = self._scores(self.table(x.detach().flatten(1).cpu().numpy()))
        except RarelyError:
            raise
        except Exception as error:  # the model's own code
            kind = type(self.model).__name__
            raise NetworkError(f"{kind}.{self.method} failed on inputs of shape {tuple(x.shape)}: {error}") from error
        return torch.as_tensor(scores, device=x.device).to(x.dtype)

    def table(self, numbers: Array) -> Any:
        """Inputs (n, d) as the model takes them: a frame with the columns that it was fitted on, in their order."""
        if not self.names:
            return numbers
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise MissingExtra("the model was fitted on a table with names; install pandas to hand it one") from error
        if not self.columns:
            return DataFrame(numbers, columns=list(self.names))
        found, place = dict[str, Array](), 0
        for column in self.columns:
            part = numbers[:, place : place + column.width]
            place += column.width
            found[column.name] = column.values(part, typed=True)
            if column.width > 1:  # and a column for each category, as pandas.get_dummies names them
                found |= {f"{column.name}_{own}": part[:, k] for k, own in enumerate(column.categories)}
        return DataFrame({name: found[name] for name in self.names})

    def _scores(self, table: Any) -> Array:
        if self.method == "predict" and self.classes:
            answers = np.asarray(self.model.predict(table)).astype(str)
            return np.where(answers[:, None] == np.asarray(self.classes), 1.0, -1.0)
        raw = np.asarray(getattr(self.model, self.method)(table), dtype=np.float64)
        if self.method == "predict_proba":
            others = raw.sum(1, keepdims=True) - raw
            if raw.shape[1] < 20:  # sums of the others alone keep digits that a difference loses
                others = np.stack([np.delete(raw, k, 1).sum(1) for k in range(raw.shape[1])], 1)
            return np.asarray(np.log(np.maximum(raw, _LEAST)) - np.log(np.maximum(others, _LEAST)))
        if self.classes and raw.ndim == 1:  # two classes share one margin
            return np.stack([-raw, raw], 1)
        return raw


_KNOWN: WeakValueDictionary[tuple[Any, ...], Fitted] = WeakValueDictionary()


def as_function(network: Any, inputs: InputModel) -> Any:
    """A fitted model as a function of inputs drawn from `inputs`; what can be called already stays what it is.

    The same model for the same columns is the same function: problems share a batch by that.
    """
    ways = [name for name in ("decision_function", "predict_proba", "predict") if callable(_of(network, name))]
    if callable(network) or not ways or isinstance(network, type):
        return network
    names = tuple(str(name) for name in _given(network, "feature_names_in_"))
    columns = _columns(network, names, inputs)
    first = Fitted(network, ways[0], columns, names, _classes(network))
    key = (id(network), columns, names, first.classes)
    if key not in _KNOWN:
        # In a variable of its own: the table alone would not keep it alive.
        chosen = _chosen(first, ways, inputs) if first.classes else replace(first, method=_plain(ways))
        _KNOWN[key] = chosen
        return chosen
    return _KNOWN[key]


def class_names(network: Any) -> tuple[str, ...]:
    """The classes of a fitted classifier, as text; none where they are not known."""
    return network.classes if isinstance(network, Fitted) else ()


def labelled(prop: Property, classes: Sequence[str]) -> Property:
    """The property with classes that were named, as numbers of outputs."""
    if isinstance(prop, Both | Either):
        return type(prop)(labelled(prop.left, classes), labelled(prop.right, classes))
    if isinstance(prop, Misclassification) and prop.label is not None:
        return Misclassification(_index(prop.label, classes))
    if isinstance(prop, Targeted):
        return Targeted(_index(prop.label, classes), _index(prop.target, classes))
    return prop


def _index(label: Tensor | str, classes: Sequence[str]) -> Tensor:
    if isinstance(label, str):
        if not classes:
            raise InputError(f"the label {label!r} is text, and the network does not name its classes; give its number")
        if label not in classes:
            raise InputError(f"there is no class {label!r}; the classes are {', '.join(classes)}")
        return torch.tensor(classes.index(label))
    own = str(int(label))
    if own in classes and classes.index(own) != int(label):
        raise InputError(
            f"the classes are {', '.join(classes)}: label {own} may be the class {own} or output number {own}. "
            f'Write "{own}" for the class'
        )
    return label


def _of(model: Any, name: str) -> Any:
    """An attribute; None where the model has none, or refuses it, as wrappers do for what they wrap."""
    try:
        return getattr(model, name, None)
    except Exception:  # a property of the model's own
        return None


def _given(model: Any, name: str) -> Any:
    value = _of(model, name)
    return () if value is None else value


def _classes(model: Any) -> tuple[str, ...]:
    found = _given(model, "classes_")
    if isinstance(found, list) and found and np.ndim(found[0]):
        raise InputError(f"{type(model).__name__} predicts several classes at once; pass a function of one of them")
    return tuple(str(own) for own in found)


def _plain(ways: Sequence[str]) -> str:
    """Of a model without classes: a regression predicts, and what tells outliers has a margin."""
    return "decision_function" if "decision_function" in ways else "predict"


def _columns(model: Any, names: tuple[str, ...], inputs: InputModel) -> tuple[Column, ...]:
    """The columns of a table with names, for a model that knows them; `InputError` where the two do not fit."""
    given = getattr(inputs, "columns", ())
    columns = given if all(isinstance(column, Column) for column in given) else ()
    named = bool(names) and any(not column.name.isdigit() for column in columns)
    kind, numbers = type(model).__name__, int(np.prod(inputs.event_shape))
    if not named:
        wanted = len(names) or _of(model, "n_features_in_")
        if wanted is not None and wanted != numbers:
            raise InputError(f"{kind} was fitted on {wanted} columns, and an input has {numbers} numbers")
        return ()
    known = {column.name for column in columns}
    known |= {f"{column.name}_{own}" for column in columns if column.width > 1 for own in column.categories}
    missing = [name for name in names if name not in known]
    if missing:
        spare = [column.name for column in columns if column.name not in names]
        hint = f"; it does not know {', '.join(spare)} of the inputs" if spare else ""
        raise InputError(f"{kind} was fitted on columns that the inputs do not have: {', '.join(missing)}{hint}")
    return columns


def _chosen(first: Fitted, ways: Sequence[str], inputs: InputModel) -> Fitted:
    """The function with the first scores whose largest is what the classifier predicts, wherever that was looked at."""
    answers = replace(first, method="predict")
    x, predicted = _looked_at(answers, inputs)
    for way in ways:
        function = replace(first, method=way)
        scores = function(x)
        if scores.ndim != 2 or scores.shape[1] != len(first.classes) or scores.shape[1] < 2:
            continue
        top = scores.topk(2, 1).values
        if bool(((scores.argmax(1) == predicted) | (top[:, 0] == top[:, 1])).all()):
            return function
    return answers


def _looked_at(answers: Fitted, inputs: InputModel) -> tuple[Tensor, Tensor]:
    """Inputs, and the class that the model predicts at each: drawn ones, far ones, and both sides of borders.

    A threshold of the model's own shows between its border and that of the scores, where few inputs may be drawn.
    """
    rng = Rng(0)
    if inputs.normal_dim is None:
        x = inputs.sample(_COMPARED, rng).float()
        return x, answers(x).argmax(1)
    z = rng.normal((_COMPARED, inputs.normal_dim)) * torch.tensor([1.0, 2.0, 4.0, 8.0]).repeat(_COMPARED // 4)[:, None]
    seen = [z]
    predicted = answers(inputs.from_normal(z).float()).argmax(1)
    a, b = torch.arange(len(z)), torch.arange(len(z)).roll(1)
    apart = predicted[a] != predicted[b]
    near, far, own = z[a[apart]], z[b[apart]], predicted[a[apart]]
    for _ in range(_HALVINGS if len(near) else 0):
        middle = (near + far) / 2
        alike = (answers(inputs.from_normal(middle).float()).argmax(1) == own).unsqueeze(1)
        near, far = torch.where(alike, middle, near), torch.where(alike, far, middle)
        seen.append(middle)
    x = inputs.from_normal(torch.cat(seen)).float()
    return x, answers(x).argmax(1)
