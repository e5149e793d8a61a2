"""The papers' pages name code that can be imported, settings that exist, every recipe of a paper and every number."""

from __future__ import annotations

import importlib
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from tests.recipes.test_numbers import EXPECTED

from strop.config.edits import flatten
from strop.config.schema import RunConfig
from strop.evaluation.protocols import protocol
from strop.recipes import catalogue
from strop.recipes.resolve import resolve

FOLDER = Path(__file__).parents[2] / "docs" / "papers"
PAGES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("*.md"))}
TABLES = {page.stem: page.read_text() for page in sorted((FOLDER / "numbers").glob("*.md"))}
PIECES = (FOLDER.parent / "algorithms.md").read_text()
NAMES = [recipe.name for recipe in catalogue()]
KEY = re.compile(rf"`((?:{'|'.join(RunConfig.model_fields)})(?:\.[a-z_0-9]+)*)`")
CODE = re.compile(r"`(strop(?:\.\w+)+):(\w+)`")
# Keys of pieces that a recipe's page offers as the other choice, and of settings that a recipe leaves unset.
OFFERED = {"data.source", "critic.path"}


def known_keys() -> set[str]:
    """Every key of every recipe, and each of its beginnings."""
    found: set[str] = set(OFFERED)
    for name in NAMES:
        for key, _ in flatten(resolve(name).model_dump(mode="json")):
            parts = key.split(".")
            found |= {".".join(parts[: number + 1]) for number in range(len(parts))}
    return found


def test_there_is_a_page_for_every_paper() -> None:
    assert set(PAGES) == set(TABLES) == {"archer", "open_reasoner_zero", "opefo", "scalerl", "skywork_or1"}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    text = PAGES[page]
    code, keys = CODE.findall(text), set(KEY.findall(text))
    assert len(code) > 8 and len(keys) > 15
    for module, name in code:
        assert name in vars(importlib.import_module(module)), f"{module}:{name}"
    assert not keys - known_keys()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_three_parts(page: str) -> None:
    text = PAGES[page]
    for part in ("## From the paper to the code", "## Every number", "## Readings and deviations"):
        assert text.count(part) == 1


def test_every_recipe_of_a_paper_is_named_on_its_page() -> None:
    pages = "\n".join([*PAGES.values(), *TABLES.values(), PIECES])
    for name in NAMES:
        if name.startswith("scalerl_base."):
            name = "scalerl_base"
        others = ("quickstart", "distill", "self_distill")
        assert name.startswith(others) or name in EXPECTED or f"`{name}`" in pages, name


def test_the_files_that_pages_name_are_there() -> None:
    for text in PAGES.values():
        for file in re.findall(r"`(src/strop/\S+\.py)`", text):
            assert (FOLDER.parents[1] / file).is_file()


# ---------------------------------------------------------------------- every number


class Number(NamedTuple):
    """A row of a page's table of numbers."""

    where: str
    theirs: str
    recipes: tuple[str, ...]
    key: str
    ours: str
    verdict: str


def numbers_of(page: str) -> list[Number]:
    """The rows of the table, recipes named by a pattern spelled out."""
    rows = []
    for line in TABLES[page].splitlines():
        if not line.startswith("|") or line.startswith(("| where |", "| --- |")):
            continue
        where, theirs, named, key, ours, verdict = (cell.strip() for cell in line.strip("|").split("|"))
        names = re.findall("`([^`]+)`", named)
        recipes = tuple(known for name in names for known in _matching(name))
        assert len(names) == 0 or recipes, line
        rows.append(Number(where, theirs, recipes, key.strip("`"), ours, verdict))
    return rows


def _matching(name: str) -> list[str]:
    return [known for known in NAMES if fnmatchcase(known, name)] if "*" in name else [name]


@cache
def flat(name: str) -> dict[str, Any]:
    """Every setting of a recipe, or of an evaluation protocol, by its dotted key; entries of a list by their place."""
    found: dict[str, Any] = {}

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict) and value:
            for inner, more in value.items():
                walk(more, f"{key}.{inner}" if key else inner)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for place, more in enumerate(value):
                walk(more, f"{key}.{place}")
        else:
            found[key] = value

    settings: BaseModel = protocol(name.split()[1]) if name.startswith("--protocol ") else resolve(name)
    walk(settings.model_dump(mode="json"), "")
    return found


def value_of(recipe: str, key: str) -> Any:
    """What a recipe's key is, or a module's constant or the default of a class's field (`strop.module:Class.field`)."""
    if not key.startswith("strop."):
        return flat(recipe)[key]
    module, _, name = key.partition(":")
    first, *fields = name.split(".")
    found = vars(importlib.import_module(module))[first]
    for inner in fields:
        found = found.model_fields[inner].default
    return found


def shown(value: Any) -> str:
    """A value as the tables write it."""
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def number(text: str) -> float | str:
    """A cell as a number, where it is one."""
    try:
        return float(text.replace(",", "").replace("−", "-"))
    except ValueError:
        return text


@pytest.mark.parametrize("page", PAGES)
def test_every_number_of_a_paper_is_that_of_its_recipe(page: str) -> None:
    rows = numbers_of(page)
    assert len(rows) > 50
    wrong = []
    for row in rows:
        assert row.where and len(row.verdict) >= len("equal"), row
        if not row.key:
            assert not row.recipes and not row.ours and row.verdict != "equal", row
            continue
        assert row.recipes or row.key.startswith("strop."), row
        found = {shown(value_of(recipe, row.key)) for recipe in row.recipes or ("",)}
        if found != {row.ours}:
            wrong.append(f"{row.where}: {row.key} is {', '.join(sorted(found))}, the page says {row.ours}")
        if row.verdict == "equal" and number(row.theirs) != number(row.ours):
            wrong.append(f"{row.where}: {row.theirs} and {row.ours} are not equal")
    assert not wrong, "\n".join(wrong)


def test_every_recipe_of_a_paper_is_in_a_table() -> None:
    named = {recipe for page in PAGES for row in numbers_of(page) for recipe in row.recipes}
    others = ("quickstart", "distill", "self_distill", "field.")
    assert {name for name in set(NAMES) - named if not name.startswith(others)} <= set(EXPECTED)
