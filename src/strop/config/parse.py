"""Configurations from plain dictionaries and from `key=value` edits, validated."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strop.base.imports import refuse_code
from strop.base.types import InputError
from strop.config.checks import validated
from strop.config.edits import apply_edits, explain, flatten, parse_set
from strop.config.renamed import accepted
from strop.config.schema import RunConfig


def parse(data: dict[str, Any], origin: str, to_run: bool = True, replacing: Sequence[str] = ()) -> RunConfig:
    """A validated configuration from a plain dictionary, which may be an earlier version's (see `renamed`).

    Args:
        data: plain values, as a file or a run folder holds them.
        origin: where they are from, for errors.
        to_run: whether something is to be run by it; False where it is only looked at, or comes from this very user.
        replacing: `key=value` settings that will be applied to it. Where it is not valid without them, they are
            applied at once: a piece that is replaced need not be there any more.

    Raises:
        InputError: one line that names `origin`, the key, its value and what would be valid; or a setting that would
            run code, which the user has not named.
    """
    try:
        return _parsed(data, origin, to_run)
    except InputError:
        if not replacing:
            raise
        return _parsed(_edited(accepted(data), replacing), origin, to_run)


def _parsed(data: dict[str, Any], origin: str, to_run: bool) -> RunConfig:
    try:
        config = validated(RunConfig.model_validate(accepted(data)))
    except ValidationError as error:
        raise InputError(f"{origin}: {explain(error)}") from error
    except RecursionError as error:
        raise InputError(f"{origin}: it is nested too deeply") from error
    if to_run:
        refuse_code(config.model_dump(mode="json"), origin)
    return config


def edit(config: RunConfig, sets: list[str] | tuple[str, ...]) -> RunConfig:
    """The configuration with `key=value` settings applied, validated again."""
    return parse(_edited(config.model_dump(mode="json"), sets), "--set", to_run=False)


def _edited(data: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    for text in sets:
        data = apply_edits(data, accepted(parse_set(text)), RunConfig)
    return data


def edits_of_file(path: Path) -> list[str]:
    """The settings of a TOML file as `--set` takes them one by one, the choice of a piece before its fields.

    Raises:
        InputError: there is no such file, or it is not TOML.
    """
    try:
        changes = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(f"--set @{path}: no such file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--set @{path}: not a TOML file that can be read: {error}") from error
    found = sorted(flatten(changes), key=lambda item: not item[0].endswith(".piece"))
    return [f"{key}={value}" for key, value in found]
