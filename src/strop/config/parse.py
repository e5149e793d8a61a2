"""Configurations from plain dictionaries and from `key=value` edits, validated."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from strop.base.types import InputError
from strop.config.checks import validated
from strop.config.edits import apply_edits, explain, parse_set
from strop.config.renamed import accepted
from strop.config.schema import RunConfig


def parse(data: dict[str, Any], origin: str) -> RunConfig:
    """A validated configuration from a plain dictionary, which may be an earlier version's (see `renamed`).

    Raises:
        InputError: one line that names `origin`, the key, its value and what would be valid.
    """
    try:
        return validated(RunConfig.model_validate(accepted(data)))
    except ValidationError as error:
        raise InputError(f"{origin}: {explain(error)}") from error


def edit(config: RunConfig, sets: list[str] | tuple[str, ...]) -> RunConfig:
    """The configuration with `key=value` settings applied, validated again."""
    data = config.model_dump(mode="json")
    for text in sets:
        data = apply_edits(data, accepted(parse_set(text)), RunConfig)
    return parse(data, "--set")
