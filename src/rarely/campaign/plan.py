"""`campaign.toml`: what to run, checked before anything runs. Errors name the file and the key."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from rarely import registry
from rarely.core.errors import FormatError, InputError
from rarely.core.limits import KEY_PARTS, PLAN, SETTINGS
from rarely.io.files import one_line, read_text

NormName = Literal["inf", "2", "1"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
InputModelName = Annotated[str | None, Field(description=f"How inputs fall in the box: {registry.input_model_help()}.")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class General(_Table):
    name: str = ""  # of the campaign; the file's unless given
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # the same one gives the same numbers
    replicates: Annotated[int, Field(ge=1, lt=2**31)] = 1  # runs of each problem, each with its own random numbers
    batch: Annotated[int, Field(ge=1, lt=2**31)] = 32  # problems that run, and are stored, together
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of the intervals


class NetworkTable(_Table):
    path: Text  # a file, or module:attribute
    name: str = ""  # in results and in `networks` below; the path unless given
    architecture: str | None = None  # module:callable that makes the network, for files of weights alone
    trust_pickle: bool = False  # open pickled files, which can run any code
    mean: tuple[Finite, ...] | None = None  # subtracted from pixels before the network, per channel
    std: tuple[Positive, ...] | None = None  # divides pixels; radii stay in pixel units

    @property
    def shown(self) -> str:
        return self.name or self.path


class DatasetTable(_Table):
    """Images and their labels: each at every radius of every norm."""

    dataset: Text  # .npz, .npy or a folder of pictures
    radii: Annotated[tuple[Positive, ...], Field(min_length=1)]  # in the units of the images
    norms: Annotated[tuple[NormName, ...], Field(min_length=1)] = ("inf",)  # noise is uniform in their balls
    labels: str | None = None  # .npy; those in the .npz, else the network's own answers, unless given
    classes: tuple[str, ...] = ()  # names of the labels
    indices: tuple[Annotated[int, Field(ge=0)], ...] | str | None = None  # a list, or "start:stop"
    clip: tuple[Finite, Finite] | None = None  # range of legal pixels
    networks: tuple[str, ...] = ()  # names; all of them unless given

    @field_validator("norms", mode="before")
    @classmethod
    def _norms_are_words(cls, value: Any) -> Any:
        """TOML's 2 and 1 mean "2" and "1"."""
        return [str(v) if isinstance(v, int) else v for v in value] if isinstance(value, list | tuple) else value

    @field_validator("radii", "norms", "indices")
    @classmethod
    def _no_repeats(cls, value: Any) -> Any:
        if isinstance(value, tuple) and len(set(value)) < len(value):
            raise ValueError("a value stands there twice")
        return value

    @field_validator("indices")
    @classmethod
    def _a_range(cls, value: Any) -> Any:
        if isinstance(value, str):
            parts = value.split(":")
            if len(parts) != 2 or not all(part == "" or part.isdigit() for part in parts):
                raise ValueError('a range is written "start:stop", as in "0:100"')
        return value

    @field_validator("clip")
    @classmethod
    def _clip_in_order(cls, value: Any) -> Any:
        if value is not None and not value[0] < value[1]:
            raise ValueError("the first number must be the smaller one")
        return value


class VnnlibTable(_Table):
    """Property files, or patterns of them, on every network."""

    vnnlib: Annotated[tuple[Text, ...], Field(min_length=1)]
    input_model: InputModelName = None
    networks: tuple[str, ...] = ()

    @field_validator("vnnlib", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class InstancesTable(_Table):
    """A benchmark of VNN-COMP, which names its own networks."""

    instances: Text
    input_model: InputModelName = None


class RlvTable(_Table):
    """One .rlv file or a folder of them, which hold network and property."""

    rlv: Text
    input_model: InputModelName = None


_KINDS = ("dataset", "vnnlib", "instances", "rlv")


def _kind(value: Any) -> str | None:
    given = [kind for kind in _KINDS if kind in (value if isinstance(value, dict) else value.__dict__)]
    return given[0] if len(given) == 1 else None


ProblemTable = Annotated[
    Annotated[DatasetTable, Tag("dataset")]
    | Annotated[VnnlibTable, Tag("vnnlib")]
    | Annotated[InstancesTable, Tag("instances")]
    | Annotated[RlvTable, Tag("rlv")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message=f"one of the keys {', '.join(_KINDS)} is needed, and only one",
    ),
]


class EstimatorBase(_Table):
    """What `rarely estimate` has as options; what is not given keeps the estimator's own default."""

    def given(self) -> dict[str, Any]:
        """What stands in the plan."""
        return self.model_dump(exclude_none=True)

    @property
    def shown(self) -> str:
        """The settings in words."""
        given = self.given()
        return " ".join([given.pop("method"), *(f"{key}={value}" for key, value in given.items())])


def _setting(setting: registry.Setting) -> Any:
    kind: Any = setting.kind | Literal[setting.word] if setting.word else setting.kind
    return kind | None, Field(None, description=setting.help)


_METHODS: Any = Literal[tuple(registry.ESTIMATORS)]
_KERNELS: Any = Literal[tuple(registry.KERNELS)]
EstimatorTable: Any = create_model(
    "EstimatorTable",
    __base__=EstimatorBase,
    __doc__=EstimatorBase.__doc__,
    method=(_METHODS, Field("auto", description="Method of estimation.")),
    kernel=(_KERNELS | None, Field(None, description="Markov kernel of splitting.")),
    **{name: _setting(setting) for name, setting in registry.SETTINGS.items()},
)


class BudgetTable(_Table):
    calls: Annotated[int, Field(ge=1)] | None = None  # network calls of each problem, a gradient counted as three
    seconds: Positive | None = None  # of each problem; one that takes longer is failed as "out of time"
    chunk_seconds: Positive | None = None  # of each batch; `seconds` times its problems unless given

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        if self.seconds is not None and self.chunk_seconds is not None and self.chunk_seconds < self.seconds:
            raise ValueError("chunk_seconds is for all problems of a batch together: it cannot be less than seconds")
        return self


class Plan(_Table):
    campaign: General = General()
    networks: tuple[NetworkTable, ...] = ()
    problems: Annotated[tuple[ProblemTable, ...], Field(min_length=1)]
    estimator: EstimatorTable = EstimatorTable()
    matrix: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = {}
    budget: BudgetTable = BudgetTable()

    @model_validator(mode="after")
    def _networks_fit(self) -> Self:
        names = [network.shown for network in self.networks]
        if len(set(names)) < len(names):
            raise ValueError("networks: two have the same name; give each a `name` of its own")
        for i, table in enumerate(self.problems):
            if isinstance(table, DatasetTable | VnnlibTable):
                if not names:
                    raise ValueError(f"problems[{i}] needs a network: add [[networks]] with a `path`")
                unknown = [name for name in table.networks if name not in names]
                if unknown:
                    raise ValueError(f"problems[{i}].networks: {unknown[0]!r} is none of {', '.join(names)}")
        self.settings()
        return self

    def settings(self) -> list[EstimatorBase]:
        """The estimator's settings, every combination that [matrix] asks for."""
        reason = SETTINGS.excess(math.prod(map(len, self.matrix.values())), "matrix:")
        if reason is not None:
            raise ValueError(reason)
        combinations = [dict(zip(self.matrix, values, strict=True)) for values in product(*self.matrix.values())]
        base = self.estimator.given()
        try:
            found = [EstimatorTable.model_validate({**base, **some}) for some in combinations]
        except ValidationError as error:
            raise ValueError(f"matrix.{_sentence(error)}") from error
        if len(set(found)) < len(found):
            raise ValueError("matrix: a value stands there twice")
        return found

    def chosen(self, table: DatasetTable | VnnlibTable) -> list[NetworkTable]:
        return [network for network in self.networks if not table.networks or network.shown in table.networks]

    def to_toml(self) -> str:
        """The plan in TOML, without what is left at its default."""
        return to_toml(self.model_dump(mode="json", exclude_defaults=True))


def read_plan(plan: Mapping[str, Any] | str | Path) -> tuple[Plan, Path]:
    """A plan from a file or from its content, and the folder that its paths are relative to."""
    if isinstance(plan, Mapping):
        try:
            return Plan.model_validate(dict(plan)), Path.cwd()
        except ValidationError as error:
            raise InputError(f"the plan: {_sentence(error)}") from error
    file = Path(plan)
    try:
        text = read_text(file, PLAN).replace("\r\n", "\n")
        _check_keys(text, file)
        checked = Plan.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise FormatError(file, _sentence(error)) from error
    except RecursionError:
        raise FormatError(file, "not TOML for a plan: nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, or a whole number with thousands of digits
        raise FormatError(file, f"not TOML: {one_line(error)}") from error
    if not checked.campaign.name:
        checked = checked.model_copy(update={"campaign": checked.campaign.model_copy(update={"name": file.stem})})
    return checked, file.resolve().parent


# Strings, also unfinished ones, comments and all that is neither a key nor a dot in one.
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?|"(?:[^"\\\n]|\\.)*+"?|'
    r"'''(?:[^']|'(?!''))*+(?:''')?|'[^'\n]*+'?|\#[^\n]*+|[\w \t-]++|.|\n",
    re.DOTALL,
)


def _check_keys(text: str, file: Path) -> None:
    """A dotted key costs the square of its parts, so that a line of dots could take hours."""
    parts = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        parts = (
            parts + (token == ".")
            if token == "." or token[0] in "\"'" or token[0].isalnum() or token[0] in "_- \t"
            else 0
        )
        if parts > KEY_PARTS:
            line = text.count("\n", 0, match.start()) + 1
            raise FormatError(file, f"not TOML for a plan: a key of more than {KEY_PARTS} parts", line)


def _sentence(error: ValidationError) -> str:
    """Key and reason of the first fault."""
    fault = error.errors()[0]
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = "there is no such key"
    parts = list(fault["loc"])
    if parts[:1] == ["problems"] and len(parts) > 2:
        del parts[2]  # pydantic's name of the kind of table
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    return f"{where}: {message}" if where else message


def to_toml(content: Mapping[str, Any]) -> str:
    """Tables of scalars and lists, and lists of such tables: all that a plan has."""
    lines: list[str] = []
    for key, value in content.items():
        tables = value if isinstance(value, list) else [value]
        head = f"[[{key}]]" if isinstance(value, list) else f"[{key}]"
        for table in tables:
            lines += [head, *(f"{name} = {_value(v)}" for name, v in table.items() if v is not None), ""]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
