"""Rows of a table: numbers, integers and categories side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.fitted import Column
from rarely.core.input_model import ArrayLike, Shape, assign, leading, tensor
from rarely.core.rng import TORCHS, Rng
from rarely.core.words import law_in_words
from rarely.inputs.beside import Beside
from rarely.inputs.common import as_matrix, no_density
from rarely.inputs.laws import Choice, Empirical, Fixed, Law, OneHot, category_chances
from rarely.inputs.tokens import Tokens

_SHRINK = 1e-6  # towards independence: a copy of a column would make the correlation singular
_TOLD = 8  # columns that words tell one by one


@dataclass(frozen=True, init=False)
class Tabular:
    """A row of columns, each with a law of rarely.inputs.laws: Normal, Uniform, Empirical, Choice, OneHot, Fixed.

    Columns are independent unless `correlation` is given: that of the normals behind the columns, in their order (a
    Gaussian copula), without the fixed ones. A OneHot column is as many inputs as it has categories.
    """

    laws: tuple[Law, ...]
    factor: Tensor  # (n, n) lower Cholesky factor of the correlation of the n columns that vary
    names: tuple[str, ...]
    event_shape: Shape
    log_density = no_density

    def __init__(self, columns: Mapping[str, Law] | Sequence[Law], correlation: ArrayLike | None = None) -> None:
        named = dict(columns) if isinstance(columns, Mapping) else {str(i): law for i, law in enumerate(columns)}
        if not named:
            raise InputError("a table needs at least one column")
        for name, law in named.items():
            if not callable(getattr(law, "from_normal", None)) or not hasattr(law, "width"):
                raise InputError(
                    f"column {name!r} must have a law such as Normal(0, 1), Choice([1, 2]) or Fixed(3), got {law!r}"
                )
        varying = sum(not isinstance(law, Fixed) for law in named.values())
        if varying == 0:
            raise InputError("every column is fixed; there is nothing to draw")
        assign(
            self,
            laws=tuple(named.values()),
            factor=_factor(correlation, varying),
            names=tuple(str(name) for name in named),
            event_shape=(sum(law.width for law in named.values()),),
        )

    @classmethod
    def fit(
        cls,
        data: Any,
        *,
        categorical: Sequence[str | int] = (),
        integer: Sequence[str | int] = (),
        fixed: Mapping[str | int, float] | None = None,
        laws: Mapping[str | int, Law] | None = None,
        one_hot: bool = True,
        correlated: bool = True,
    ) -> Tabular:
        """The laws of the columns of `data`, a 2-D array or a pandas frame.

        Columns are named as in the frame, or numbered. What is not text, `categorical`, `integer` or `fixed` is
        continuous and follows its empirical quantiles; `laws` overrules all this. Integer and categorical columns take
        the values seen, as often as seen. With `correlated`, continuous and integer columns keep their rank
        correlations; categories are independent of the rest.
        """
        table = _columns(data)
        chosen, pinned = dict(laws or {}), dict(fixed or {})
        unknown = [key for key in (*categorical, *integer, *pinned, *chosen) if key not in table]
        if unknown:
            raise InputError(f"there is no column {unknown[0]!r}; the columns are {', '.join(map(str, table))}")
        found: dict[str, Law] = {}
        scores: list[np.ndarray[Any, Any] | None] = []  # per column that varies: normal scores, None when independent
        for key, values in table.items():
            text = values.dtype.kind in "OUSb"
            if key in chosen:
                law = chosen[key]
            elif key in pinned:
                law = Fixed(pinned[key])
            elif key in categorical or text:
                law = _category(values, one_hot)
            elif key in integer:
                law = _integers(_numbers(values, key), key)
            else:
                law = Empirical(_numbers(values, key))
            found[str(key)] = law
            if not isinstance(law, Fixed):
                ordered = correlated and not text and key not in categorical and law.width == 1
                scores.append(_normal_scores(_numbers(values, key)) if ordered else None)
        return cls(found, _correlation(scores) if correlated else None)

    @property
    def words(self) -> str:
        columns = [f"{name} {law_in_words(of)}" for name, of in zip(self.names, self.laws, strict=True)]
        rest = f" and {len(columns) - _TOLD} more" * (len(columns) > _TOLD)
        return f"rows of a table: {', '.join(columns[:_TOLD])}{rest}"

    @property
    def normal_dim(self) -> int:
        return int(self.factor.shape[-1])

    @property
    def center(self) -> Tensor:
        return torch.cat([law.center for law in self.laws], -1)

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        lows, highs = zip(*(law.support for law in self.laws), strict=True)
        return torch.cat(lows, -1), torch.cat(highs, -1)

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        return self.from_normal(rng.normal((*leading(shape), self.normal_dim), self.factor.dtype))

    def from_normal(self, z: Tensor) -> Tensor:
        together = z @ as_matrix(self.factor).mT
        parts, column = [], 0
        for law in self.laws:
            if isinstance(law, Fixed):
                parts.append(law.from_normal(torch.zeros_like(together[..., :1])))
            else:
                parts.append(law.from_normal(together[..., column : column + 1]))
                column += 1
        return torch.cat(parts, -1)

    @property
    def codes(self) -> Tokens | Beside | None:
        """Of a table of independent columns, a number for each category, and the normals of all other columns."""
        known = [chances for law in self.laws if (chances := category_chances(law)) is not None]
        categories = sum(len(chances) > 1 for chances in known)
        if not categories or not torch.equal(self.factor, torch.eye(len(self.factor)).to(self.factor)):
            return None
        law = Tokens(known)
        return law if len(known) == len(self.laws) else Beside(law, len(self.laws) - len(known))

    @property
    def coded_parts(self) -> int:
        return len(self.laws)

    def coded(self, codes: Tensor) -> Tensor:
        laws: Any = self.laws
        coded = [hasattr(law, "coded") for law in laws]
        code, normal, parts = 0, sum(coded), []
        for law, category in zip(laws, coded, strict=True):
            if category:
                parts.append(law.coded(codes[..., code : code + 1].long()))
                code += 1
            else:
                parts.append(law.from_normal(codes[..., normal : normal + 1]))
                normal += 1
        return torch.cat(parts, -1)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Where each column stands in an input, and what its categories are called."""
        named = zip(self.names, self.laws, strict=True)
        return tuple(Column(name, law.width, getattr(law, "names", ())) for name, law in named)

    def records(self, x: Tensor) -> list[dict[str, float | str]]:
        """Rows (n, *event) by the names of their columns, categories by their names: witnesses that people can read."""
        rows: list[dict[str, float | str]] = [{} for _ in range(len(x))]
        if not rows:  # no witness at all has no columns either
            return rows
        place = 0
        for column in self.columns:
            part = x[:, place : place + column.width].numpy(force=True)
            place += column.width
            for row, value in zip(rows, column.values(part).tolist(), strict=True):
                row[column.name] = value
        return rows


def _factor(correlation: ArrayLike | None, n: int) -> Tensor:
    if correlation is None:
        return torch.eye(n)
    given = tensor(correlation, "correlation").double()
    if given.shape != (n, n):
        raise InputError(f"correlation has shape {tuple(given.shape)}, expected {(n, n)}: one row per varying column")
    if not torch.allclose(given, given.T, atol=1e-6) or not torch.allclose(
        given.diagonal(), given.new_ones(n), atol=1e-6
    ):
        raise InputError("correlation must be symmetric with ones on its diagonal")
    lower, info = torch.linalg.cholesky_ex(given)
    if int(info):
        raise InputError("correlation is not positive definite; move it towards the identity")
    factor: Tensor = lower.to(torch.get_default_dtype())
    return factor


def _columns(data: Any) -> dict[str | int, np.ndarray[Any, Any]]:
    """The columns of a frame by name, of an array by number."""
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        return {name: np.asarray(data[name]) for name in data.columns}
    array = np.asarray(data)
    if array.ndim != 2 or array.shape[0] < 2:
        raise InputError(f"data must be a table (rows, columns) of at least two rows, got shape {array.shape}")
    return {i: array[:, i] for i in range(array.shape[1])}


def _numbers(values: np.ndarray[Any, Any], key: str | int) -> np.ndarray[Any, Any]:
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"column {key!r} is not numeric; name it in `categorical`") from error
    if not np.isfinite(numbers).all():
        raise InputError(f"column {key!r} has missing or infinite values; drop or fill those rows first")
    return numbers


def _category(values: np.ndarray[Any, Any], one_hot: bool) -> Law:
    names, counts = np.unique(values.astype(str) if values.dtype.kind in "OUSb" else values, return_counts=True)
    if one_hot:
        return OneHot(counts, [name if isinstance(name, str) else f"{name:.12g}" for name in names.tolist()])
    return Choice(names, counts)


def _integers(numbers: np.ndarray[Any, Any], key: str | int) -> Law:
    if not np.array_equal(numbers, np.round(numbers)):
        raise InputError(f"column {key!r} is named as integer and holds fractions; leave it continuous")
    values, counts = np.unique(numbers, return_counts=True)
    return Choice(values, counts)


def _normal_scores(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ranks, ties averaged, as quantiles of the normal."""
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    middle = (np.cumsum(counts) - 0.5 * counts)[place] / len(numbers)
    return np.asarray(torch.special.ndtri(torch.from_numpy(middle)))


def _correlation(scores: Sequence[np.ndarray[Any, Any] | None]) -> Tensor:
    matrix = np.eye(len(scores))
    kept = [i for i, score in enumerate(scores) if score is not None and np.ptp(score) > 0]
    if len(kept) > 1:
        matrix[np.ix_(kept, kept)] = np.corrcoef([scores[i] for i in kept])
    np.fill_diagonal(matrix, 1 + _SHRINK)
    return torch.from_numpy(matrix / (1 + _SHRINK))
