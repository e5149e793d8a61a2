"""The papers' pages name code that can be imported and settings that exist, and every recipe of a paper."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from strop.config.edits import flatten
from strop.config.schema import RunConfig
from strop.recipes import catalogue
from strop.recipes.resolve import resolve

FOLDER = Path(__file__).parents[2] / "docs" / "papers"
PAGES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("*.md"))}
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
    assert set(PAGES) == {"archer", "open_reasoner_zero", "opefo", "scalerl", "skywork_or1"}


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
    for part in ("## From the paper to the code", "## Hyper-parameters", "## Readings and deviations"):
        assert text.count(part) == 1


def test_every_recipe_of_a_paper_is_named_on_its_page() -> None:
    pages = "\n".join(PAGES.values())
    for name in NAMES:
        if name.startswith("scalerl_base."):
            name = "scalerl_base"
        assert name == "quickstart" or f"`{name}`" in pages, name


def test_the_files_that_pages_name_are_there() -> None:
    for text in PAGES.values():
        for file in re.findall(r"`(src/strop/\S+\.py)`", text):
            assert (FOLDER.parents[1] / file).is_file()
