"""Editing a configuration as a dictionary: `--set key=value` and TOML files, with errors that name the nearest key."""

from __future__ import annotations

import contextlib
import inspect
import json
import tomllib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from strop.base.near import near
from strop.base.pieces import Piece, Settings, choices, complaint, field_type, find, first_model, spoken
from strop.base.types import InputError
from strop_verify.verdict import shortened


def parse_set(text: str) -> dict[str, Any]:
    """`a.b=value` as a nested dictionary; the value is read as TOML, else taken as a bare string.

    Example: `optim.lr=2e-6` → `{"optim": {"lr": 2e-06}}`, `data.source=gsm8k` → `{"data": {"source": "gsm8k"}}`;
    `none` (TOML has no null) → None.
    """
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text!r}: write key=value, e.g. --set optim.lr=2e-6")
    return nested(key.strip(), _value(raw.strip()))


def flatten(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`("optim.lr", "2e-06")` for every setting, written as `--set` reads it."""
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from flatten(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _as_set_reads(entry)


def differing(*configs: dict[str, Any]) -> list[tuple[str, ...]]:
    """(setting, its value in each) for each setting that differs, as `flatten` writes them; `-` for none."""
    sides = [dict(flatten(config)) for config in configs]
    keys = dict.fromkeys(key for side in sides for key in side)
    rows = [(key, *(side.get(key, "-") for side in sides)) for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def _as_set_reads(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str) and parse_set(f"key={value}")["key"] == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def nested(key: str, value: Any) -> dict[str, Any]:
    """`a.b` and a value as `{"a": {"b": value}}`."""
    for name in reversed(key.split(".")):
        value = {name: value}
    edit: dict[str, Any] = value
    return edit


def _value(raw: str) -> Any:
    if raw.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return _json(raw)
    except RecursionError as error:
        raise InputError(f"--set {raw[:40]!r}…: it is nested too deeply") from error


def _json(raw: str) -> Any:
    """Parse a table or list written as JSON; return any other text unchanged."""
    if raw.startswith(("{", "[")):
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            return json.loads(raw)
    return raw


def apply_edits(data: dict[str, Any], edits: dict[str, Any], model: type[BaseModel], path: str = "") -> dict[str, Any]:
    """`data` with `edits` merged in; `model` describes it and names what is allowed.

    Raises:
        InputError: an unknown key, with the nearest valid one.
    """
    merged = dict(data)
    edits = {key: spoken(value, field_type(model, key)) for key, value in edits.items()}
    if issubclass(model, Settings) and any(edits.get(name) is not None for name in model.alternatives):
        merged |= dict.fromkeys(name for name in model.alternatives if name not in edits)
    for key, value in edits.items():
        if key != "piece" and key not in model.model_fields:
            raise InputError(_unknown(path, key, value, model))
        kind = field_type(model, key)
        admits_none = type(None) in get_args(kind)  # else a choice may be called "none"
        merged[key] = _merge_field(merged.get(key), value, first_model(kind), f"{path}{key}.", admits_none)
    return merged


def _merge_field(old: Any, new: Any, model: type[BaseModel] | None, path: str, admits_none: bool) -> Any:
    if model is None or (new is None and admits_none):
        return "none" if new is None and not admits_none else new
    given = "" if isinstance(new, dict) else f"={new!r}"
    try:
        if issubclass(model, Piece) and isinstance(new, str):
            new = model.from_text(new)
        if not isinstance(new, dict):
            raise ValueError(_inner(model, path))
        if not issubclass(model, Piece):
            return apply_edits(old if isinstance(old, dict) else {}, new, model, path)
        # A family with a single piece needs no name.
        only = None if inspect.isabstract(model) else model.piece_name()
        name = new.get("piece", old.get("piece") if isinstance(old, dict) else only)
        target = find(model, name)
    except ValueError as error:
        raise InputError(f"{path.rstrip('.')}{given}: {error}") from error
    same = isinstance(old, dict) and old.get("piece") == name
    base = dict(old) if same and isinstance(old, dict) else {"piece": name}
    return apply_edits(base, new, target, path)


def _inner(model: type[BaseModel], path: str) -> str:
    """Say what to write instead of a single value for a section of settings or a piece."""
    if issubclass(model, Piece) and inspect.isabstract(model):
        return f"name one of {', '.join(sorted(choices(model)))}"
    return f"it is a section; set one of {', '.join(path + name for name in model.model_fields)}"


def _unknown(path: str, key: str, value: Any, model: type[BaseModel]) -> str:
    known = list(model.model_fields)
    sections = [(name, section) for name in known if (section := first_model(field_type(model, name))) is not None]
    inner = {field: f"{name}.{field}" for name, section in sections for field in section.model_fields}
    meant = near(key, known) or inner.get(near(key, inner) or "")
    hint = f"did you mean {path}{meant}?" if meant else f"known here: {', '.join(path + name for name in known)}"
    of = f" of {model.piece_name()} (another is named with {path}piece)" if issubclass(model, Piece) else ""
    return f"unknown setting {path}{key}={shortened(repr(value), 100)}{of}; {hint}"


def explain(error: ValidationError) -> str:
    """The first error of a pydantic validation in one line: key, value, reason."""
    first, *others = error.errors(include_url=False)
    loc, reason = first["loc"], complaint(first)
    if loc[-1:] == ("bool",):  # the first alternative of a union, which pydantic names
        loc = loc[:-1]
        rest = (complaint(one).removeprefix("must be ") for one in others if one["loc"][:-1] == loc)
        reason = " or ".join([reason, *rest])
    key = ".".join(map(str, loc)) or "(whole)"
    given = "" if isinstance(first["input"], dict) else f"={first['input']!r}"
    return f"{key}: missing" if first["type"] == "missing" else f"{key}{given}: {reason}"
