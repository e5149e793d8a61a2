"""From the name of a recipe or a file to the configuration of a run.

    config = resolve("scalerl", ["optim.lr=2e-6", "data.source=train.jsonl"])

A run is resolved from a recipe (a Python function that returns a `RunConfig`), a TOML file (`recipe = "scalerl"` and
what it changes), a `config.json` of an earlier run, or a Python file with a function `recipe()`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from strop import recipes
from strop.base.imports import allow_edits, blamed, load_module, refuse_code
from strop.base.types import InputError
from strop.config.edits import apply_edits, explain
from strop.config.parse import edit, parse, validated
from strop.config.schema import RunConfig
from strop.config.tiny import edits_of, tiny
from strop.model.location import asked_with


def resolve(target: str, sets: list[str] | tuple[str, ...] = (), small: bool = False) -> RunConfig:
    """The configuration for a recipe name or a .toml, .json or .py file, with `--set` edits applied.

    With `small` it is the tiny form of that (see `tiny`) which is edited.

    Raises:
        InputError: no such recipe or file, an invalid setting, or one of a file that runs code and that no edit names.
    """
    suffix = Path(target).suffix
    if suffix in (".toml", ".json", ".py"):
        if not Path(target).is_file():
            raise InputError(f"{target}: no such file; name a .toml, .json or .py file, or a recipe: strop recipes")
        readers = {".toml": _from_toml, ".json": lambda path: _from_json(path, sets), ".py": _from_python}
        try:
            config = readers[suffix](Path(target))
        except RecursionError as error:
            raise InputError(f"{target}: it is nested too deeply") from error
    elif "/" in target and Path(target).is_dir():  # a folder here may be called as a recipe is
        raise InputError(f"{target} is a folder; name a recipe (strop recipes), or a .toml, .json or .py file")
    else:
        config = recipes.build(target)
    config = finished(config, sets, small)
    if suffix in (".toml", ".json"):
        allow_edits(sets)
        refuse_code(config.model_dump(mode="json"), target)
    return config


def finished(
    config: RunConfig, sets: Sequence[str] = (), small: bool = False, base: RunConfig | None = None
) -> RunConfig:
    """The configuration, or with `small` its tiny form next to that of `base` (see `tiny`), with `sets` applied."""
    if small:
        config, sets = tiny(config, base=base), [*edits_of(sets), *sets]
    return as_asked(edit(config, list(sets)) if sets else validated(config))


def as_asked(config: RunConfig) -> RunConfig:
    """The configuration with the prompts that its model has learned to answer; see `asked_with`."""
    template = asked_with(config.data.template, config.model)
    if template == config.data.template:
        return config
    return edit(config, ["data.template.instruct=false"])  # its model is asked so wherever it lies later


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start + 1})") from error


def _from_json(path: Path, sets: Sequence[str]) -> RunConfig:
    try:
        return parse(json.loads(_text(path)), str(path), to_run=False, replacing=sets)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error


# What `--set verifier=NAME --set verifier.extract=any` is in TOML, where a key is either a value or a table.
PIECE_AND_SETTINGS = (
    '; a piece that has settings below it is named with .piece, as in verifier.piece = "MathVerifier", a data file as '
    'in data.source.piece = "CsvFile" and data.source.path = "FILE"'
)


def _from_toml(path: Path) -> RunConfig:
    try:
        changes = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        way_out = PIECE_AND_SETTINGS if "Cannot overwrite" in str(error) else ""
        raise InputError(f"{path}: not TOML: {error}{way_out}") from error
    name = changes.pop("recipe", None)
    if not isinstance(name, str):
        raise InputError(f'{path}: say which recipe it changes, e.g. recipe = "grpo"; the list: strop recipes')
    try:
        data = apply_edits(recipes.build(name).model_dump(mode="json"), changes, RunConfig)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return parse(data, str(path), to_run=False)


def _from_python(path: Path) -> RunConfig:
    try:
        module = load_module(path)
        found = module.__dict__.get("recipe")
        config = found() if callable(found) else found
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error)}") from error
    except InputError:
        raise
    except Exception as error:  # the user's own code, which may raise anything
        raise InputError(blamed(error, {str(path)}) or f"{path}: {error}") from error
    if not isinstance(config, RunConfig):
        raise InputError(f"{path}: define a function recipe() that returns a strop.config.schema.RunConfig")
    return config
