"""Pieces: frozen pydantic models that are the configuration and the algorithm at once.

A family is an abstract subclass of `Piece`; a piece is a concrete subclass of a family. Its fields are its
hyper-parameters, its `__call__` is a pure function. It is written as `{"piece": "Cispo", "max_ratio": 5.0}` and found
again by name among the subclasses of the family that the field asks for. The family names the modules of strop that
define its pieces; they are imported when a piece is first looked for. A piece of the user's own is
`{"piece": "module:Class"}`; its module must have been named with `--import` (see `allow_module`).

State lives apart: a `StatefulPiece` is asked for `initial()` and `update(state, statistics)`, both JSON-able.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self, TypeVar

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

from strop.base.near import nearest
from strop.base.types import InputError

State = dict[str, Any]

T = TypeVar("T")
# A tuple that a single value may stand for: `--set trackers=tensorboard`.
OneOrMore = Annotated[tuple[T, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str | int) else given)]

_allowed_modules: set[str] = set()


def allow_module(name: str) -> None:
    """Import a module of the user's own, so that its pieces may be named `module:Class`.

    Raises:
        InputError: the module cannot be imported.
    """
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"--import {name}: {error}; name a module that Python can import from here") from error
    _allowed_modules.add(name)


def load_module(path: Path) -> ModuleType:
    """Run a Python file as the module of its name, whose pieces may then be named.

    Raises:
        InputError: a module of that name is loaded already, so that pieces could be taken for one another's.
    """
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__ or "").resolve() != path.resolve():
        raise InputError(f"{path}: a module called {name!r} is loaded already; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    _allowed_modules.add(name)
    return module


class Settings(BaseModel):
    """A frozen section of the configuration: plain values a part is built from, no choice of implementation.

    `alternatives` names fields of which one is given: an edit that gives one of them takes the others back.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    alternatives: ClassVar[tuple[str, ...]] = ()


class Piece(Settings, ABC):
    """A frozen bundle of hyper-parameters that is also the function they parametrise.

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
        """The dictionary a bare string stands for; a family may know short forms beside the names of its pieces.

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
        if name is None:
            if inspect.isabstract(cls):
                raise ValueError(f"say which piece: one of {', '.join(sorted(choices(cls)))}")
            return handler(fields)
        target = find(cls, name)
        if target is cls:
            return handler(fields)
        found = target.model_validate(fields)
        assert isinstance(found, cls)  # `find` looks among the subclasses
        return found


class StatefulPiece(Piece):
    """A piece that carries a JSON-able state through the run, checkpointed under the piece's path (see `states`)."""

    @abstractmethod
    def initial(self) -> State:
        """The state before the first step."""

    @abstractmethod
    def update(self, state: State, statistics: Mapping[str, float | None]) -> State:
        """The state after a step whose metrics are `statistics`; pure."""


# What a bound is called, by its name in pydantic's complaints and in a field's JSON schema.
_BOUNDS = {
    "gt": "above", "ge": "at least", "lt": "below", "le": "at most",
    "exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most",
}  # fmt: skip


def complaint(first: ErrorDetails) -> str:
    """The reason of one of pydantic's complaints, in words that go behind a key and its value."""
    context = first.get("ctx", {})
    bounds = _within(context)
    if bounds:
        return bounds
    if first["type"] == "literal_error":
        return f"must be {str(context['expected']).replace(chr(39), '')}"
    message = first["msg"].removeprefix("Value error, ")
    return message if first["type"] == "value_error" else f"{message[0].lower()}{message[1:]}"


def refused_flag(error: ValidationError, model: type[BaseModel]) -> InputError:
    """The first complaint as a line on the flag of that field: `--level 90: must be above 0 and below 1`."""
    first = error.errors(include_url=False)[0]
    name, given = str(first["loc"][0]), first["input"]
    # Both bounds, of which pydantic names the one that was crossed.
    schema = model.model_json_schema()["properties"].get(name, {}) if _within(first.get("ctx", {})) else {}
    reason = _within(schema) or next(filter(None, map(_within, schema.get("anyOf", ()))), "") or complaint(first)
    return InputError(f"--{name.replace('_', '-')} {_short(given)}: {reason}")


def _within(bounds: Mapping[str, Any]) -> str:
    found = [f"{words} {_short(bounds[name])}" for name, words in _BOUNDS.items() if name in bounds]
    return f"must be {' and '.join(found)}" if found else ""


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_allowed(module: str) -> bool:
    """Whether a module was named with `--import`."""
    return module in _allowed_modules


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


def modules_allowed() -> list[tuple[str, str]]:
    """The allowed modules, each with its file: what another process must allow to read a configuration."""
    loaded = sorted(_allowed_modules & sys.modules.keys())
    return [(name, vars(sys.modules[name]).get("__file__") or "") for name in loaded]


def allow_modules(modules: Iterable[tuple[str, str]]) -> None:
    """Allow, in another process, what `modules_allowed` named: by name, or from its file, as a script was run.

    Raises:
        InputError: a module cannot be imported.
    """
    for name, file in modules:
        if importlib.util.find_spec(name) is not None or not file:
            allow_module(name)
        else:
            load_module(Path(file))


def modules_named(written: str) -> list[tuple[str, str]]:
    """The allowed modules that a piece written as JSON names, each with its file."""
    return [(name, file) for name, file in modules_allowed() if f'"{name}:' in written]


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
        raise ValueError(f"piece {name!r} lives in module {module!r}; allow it with --import {module}")
    known = choices(family)
    if name in known:
        return known[name]
    raise ValueError(f"no {family.__name__} is called {name!r}; {nearest(name, known)}")
