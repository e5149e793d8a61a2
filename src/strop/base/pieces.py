"""Pieces: frozen pydantic models that are the configuration and the algorithm at once.

A family is an abstract subclass of `Piece`; a piece is a concrete subclass of a family. Its fields are its
hyper-parameters, its `__call__` is a pure function. It is written as `{"piece": "Cispo", "max_ratio": 5.0}` and found
again by name among the subclasses of the family that the field asks for. The family names the modules of strop that
define its pieces; they are imported when a piece is first looked for. A piece of the user's own is
`{"piece": "module:Class"}`; its module must have been named with `--import` (see `imports`).

State lives apart: a `StatefulPiece` is asked for `initial()` and `update(state, statistics)`, both JSON-able.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from strop.base.imports import is_allowed, not_allowed
from strop.base.near import nearest
from strop.base.types import InputError

State = dict[str, Any]

T = TypeVar("T")
# A tuple that a single value may stand for: `--set trackers=tensorboard`.
OneOrMore = Annotated[tuple[T, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str | int) else given)]

class Settings(BaseModel):
    """A frozen section of the configuration: plain values, without a choice of implementation.

    `alternatives` names fields of which one is given: an edit that gives one of them takes the others back.
    `documented_by` is a class whose docstring says what fields of the same names are.
    """

    # Most pieces of a family are never used by a run: their validators are built when they are.
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", allow_inf_nan=False)
    alternatives: ClassVar[tuple[str, ...]] = ()
    documented_by: ClassVar[type] = object


class Piece(Settings, ABC):
    """A frozen set of hyper-parameters that is also the function they parametrise.

    `modules` of a family are those in which strop defines its pieces.
    """

    modules: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def piece_name(cls) -> str:
        """How this piece is written in a configuration."""
        if cls.__module__.split(".")[0] == "strop":
            return cls.__name__
        return f"{cls.__module__}:{cls.__name__}"

    @classmethod
    def from_text(cls, text: str) -> dict[str, Any]:
        """The dictionary a bare string stands for; a family may know short forms too, not only names of pieces.

        Raises:
            ValueError: the text means nothing here.
        """
        return {"piece": text}

    @model_serializer(mode="wrap")
    def _write_name(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"piece": self.piece_name(), **handler(self)}

    @model_validator(mode="wrap")
    @classmethod
    def _find_by_name(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, str):
            value = cls.from_text(value)
        if not isinstance(value, dict):
            return handler(value)
        fields = dict(value)
        name = fields.pop("piece", None)
        if name is None and not inspect.isabstract(cls):
            return handler(fields)
        target = find(cls, name)
        if target is cls:
            return handler(fields)
        found = target.model_validate(fields)
        assert isinstance(found, cls)  # `find` looks among the subclasses
        return found


class StatefulPiece(Piece):
    """A piece that carries a JSON-able state through the run, checkpointed under the piece's path (see `States`)."""

    @abstractmethod
    def initial(self) -> State:
        """The state before the first step."""

    @abstractmethod
    def update(self, state: State, statistics: Mapping[str, float | None]) -> State:
        """The state after a step whose metrics are `statistics`; pure."""


def complaint(first: ErrorDetails) -> str:
    """A pydantic error as text to follow a key and its value."""
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    if first["type"] == "model_type":
        return "must be a table of settings"  # pydantic would name the class
    message = first["msg"].replace("Input should be ", "must be ")
    return f"{message[0].lower()}{message[1:]}"


def refused_flag(error: ValidationError) -> InputError:
    """The first error as a line about the flag of that field: `--level 90: must be less than 1`."""
    first = error.errors(include_url=False)[0]
    return InputError(f"--{str(first['loc'][0]).replace('_', '-')} {first['input']}: {complaint(first)}")


def choices(family: type[Piece]) -> dict[str, type[Piece]]:
    """Every concrete piece of a family by the name it is written with."""
    for module in family.modules:
        importlib.import_module(module)
    found: dict[str, type[Piece]] = {}
    if not inspect.isabstract(family):
        found[family.piece_name()] = family
    for subclass in family.__subclasses__():
        found.update(choices(subclass))
    return found


def find(family: type[Piece], name: Any) -> type[Piece]:
    """The concrete piece called `name` in `family`.

    Raises:
        ValueError: no such piece (with the nearest name), or its module was not allowed with `--import`.
    """
    if name is None:
        raise ValueError(f"say which piece: one of {', '.join(sorted(choices(family)))}")
    if not isinstance(name, str):
        raise ValueError(f"piece must be a name, not {name!r}")
    module, colon, _ = name.partition(":")
    if colon and not is_allowed(module):
        raise ValueError(f"piece {not_allowed(name, module)}")
    known = choices(family)
    if name in known:
        if colon:
            _refuse_misfit(known[name])
        return known[name]
    raise ValueError(f"no {family.__name__} is called {name!r}; {nearest(name, known)}")


def _refuse_misfit(piece: type[Piece]) -> None:
    """Refuse a user's piece whose methods take other arguments than they are called with.

    Raises:
        ValueError: names the method and its arguments.
    """
    for base in piece.__mro__:
        for name in vars(base).get("__abstractmethods__", ()):
            declared, given = inspect.getattr_static(base, name), inspect.getattr_static(piece, name)
            if not (inspect.isfunction(declared) and inspect.isfunction(given)):
                continue
            wanted = list(inspect.signature(declared).parameters)
            try:
                inspect.signature(given).bind(*wanted)
            except TypeError as error:
                has = ", ".join(inspect.signature(given).parameters)
                raise ValueError(
                    f"{piece.__name__}.{name} takes ({has}) and is called with ({', '.join(wanted)}); define it so"
                ) from error


# ---------------------------------------------------------------------- fields and what may stand in them


def field_type(model: type[BaseModel], key: str) -> Any:
    """The type of a field; None for `piece`, and for what is no field."""
    return model.model_fields[key].annotation if key in model.model_fields else None


def spoken(value: Any, annotation: Any) -> Any:
    """`value` with the word "none" as None wherever None is allowed (TOML has no null), inside lists too."""
    if isinstance(value, str) and value.lower() == "none" and type(None) in get_args(annotation):
        return None
    if not isinstance(value, list):
        return value
    inner = next((part for part in get_args(annotation) if part is not type(None)), None)
    if get_origin(inner) is tuple:  # an optional list
        inner = get_args(inner)[0]
    return [spoken_row(row, first_model(inner)) if isinstance(row, dict) else spoken(row, inner) for row in value]


def spoken_row(row: dict[str, Any], model: type[BaseModel] | None) -> dict[str, Any]:
    """The same for settings or a piece in a list."""
    if model is not None and issubclass(model, Piece):
        model = choices(model).get(str(row.get("piece", model.piece_name())))
    if model is None:
        return row  # validation says what is wrong with it
    return {key: spoken(value, field_type(model, key)) for key, value in row.items()}


def first_model(annotation: Any) -> type[BaseModel] | None:
    """The settings or piece family of a type, looking through Optional and Annotated; None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin_is_sequence = isinstance(annotation, type) or str(annotation).startswith(("tuple", "list", "dict"))
    if origin_is_sequence:
        return None
    return next((found for part in get_args(annotation) if (found := first_model(part)) is not None), None)


def stateful_pieces(settings: BaseModel, path: str = "") -> Iterator[tuple[str, StatefulPiece]]:
    """Every stateful piece of a configuration with its path, in the order of the fields."""
    for name in type(settings).model_fields:
        value = settings.__dict__[name]
        members = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for index, member in members:
            if not isinstance(member, BaseModel):
                continue
            place = f"{path}{name}" if index is None else f"{path}{name}.{index}"
            if isinstance(member, StatefulPiece):
                yield place, member
            yield from stateful_pieces(member, f"{place}.")


class States:
    """The present states by path."""

    def __init__(self, settings: BaseModel) -> None:
        self._pieces = dict(stateful_pieces(settings))
        self.values: dict[str, State] = {path: piece.initial() for path, piece in self._pieces.items()}

    def update(self, statistics: Mapping[str, float | None]) -> None:
        """Update every piece's state with the metrics of a finished step."""
        for path, piece in self._pieces.items():
            self.values[path] = piece.update(self.values[path], statistics)

    def enter(self, settings: BaseModel) -> None:
        """Switch to the pieces of another configuration: a piece that stays keeps its state, a new one starts."""
        fresh = States(settings)
        kept = {path: self.values[path] for path, piece in fresh._pieces.items() if self._pieces.get(path) == piece}
        self._pieces, self.values = fresh._pieces, fresh.values | kept

    def load(self, values: Mapping[str, State]) -> None:
        """Restore checkpointed states.

        Raises:
            InputError: they are of other pieces than the configuration has.
        """
        if values.keys() != self._pieces.keys():
            raise InputError(
                f"the checkpoint holds states of {sorted(values)}, the configuration has {sorted(self._pieces)}: "
                "resume with the configuration it was saved with"
            )
        self.values = dict(values)

    def numbers(self) -> dict[str, float | None]:
        """Their values for a log line: every plain number as `state/PATH.KEY`."""
        return {
            f"state/{path}.{key}": float(value)
            for path, state in self.values.items()
            for key, value in state.items()
            if isinstance(value, int | float)
        }
