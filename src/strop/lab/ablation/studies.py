"""The papers' ablation studies, read from a table: `strop/recipes/studies.toml`, one line a variant."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from strop import recipes
from strop.base.near import near
from strop.base.pieces import Settings
from strop.base.types import InputError

TABLE = Path(recipes.__file__).with_name("studies.toml")


class StudyVariant(Settings):
    """A line of a study: its figure or table in the paper, and its settings, `KEY=VALUE` or a recipe that has them."""

    name: str
    paper: str
    set: tuple[str, ...]


class Study(Settings):
    """A comparison that a paper makes: of `recipe`, changed by `set`, with its variants."""

    recipe: str
    paper: str
    set: tuple[str, ...] = ()
    variants: tuple[StudyVariant, ...]


@cache
def studies() -> dict[str, Study]:
    """Every study by its name."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Study.model_validate(study) for name, study in table.items()}


def find_study(name: str) -> Study:
    """The study of a name.

    Raises:
        InputError: there is none; the message lists all of them.
    """
    known = studies()
    if name not in known:
        meant = near(name, known)
        raise InputError(f"--study {name}: " + (f"did you mean {meant!r}? " if meant else "") + listing())
    return known[name]


def listing() -> str:
    """All studies with the recipes that the papers study, on one line."""
    return "the studies are " + "; ".join(f"{name} (of {study.recipe})" for name, study in studies().items())


def settings_of(entries: Sequence[str]) -> list[str]:
    """The settings of a study's line, recipes replaced by what they change of the recipe that they start from."""
    return [text for entry in entries for text in ([entry] if "=" in entry else recipes.settings_of(entry))]
