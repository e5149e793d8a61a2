"""docs/figures.md: every figure of every paper has a row, and what a row names is there."""

import re
from pathlib import Path

import pytest

from strop.evaluation.protocols import PROTOCOLS
from strop.recipes import catalogue
from strop.report.curves import GROUPS
from strop.report.token_figures import FIGURES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "figures.md").read_text()
FIGURES_OF = {"Skywork-OR1": 27, "Open-Reasoner-Zero": 8, "Archer": 11, "OPEFO": 6, "ScaleRL": 26}
OWN_SHAPE = {"Benchmarks in training", "Held-out pass rate by compute", "Where the time goes"}


def rows(paper: str) -> list[list[str]]:
    section = PAGE.partition(f"## {paper}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def numbers(heading: str) -> set[int]:
    """Figures of a row's first cell, `14, 16 to 18` and `2a` too; not those of tables or sections."""
    text = re.split(r"Table|and", heading)[0]
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)[a-c]?(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("paper", FIGURES_OF)
def test_every_figure_has_a_row_and_no_row_is_empty(paper: str) -> None:
    found = rows(paper)
    assert all(len(row) == 3 and all(row) for row in found), found
    assert set().union(*(numbers(row[0]) for row in found)) == set(range(1, FIGURES_OF[paper] + 1))


def test_what_a_row_names_is_there() -> None:
    recipes = {recipe.name for recipe in catalogue()}
    titles = {each.title for group in GROUPS.values() for each in group} | OWN_SHAPE
    charts = set(re.findall("“([^”]+)”", PAGE))
    assert len(charts) > 15 and charts <= titles, charts - titles
    runs = set(re.findall(r"runs/([\w.]*\w)", PAGE)) - {"NAME", "ablate", "grpo", "dapo", "first", "s0", "s1", "s2"}
    assert len(runs) > 20 and runs <= recipes, runs - recipes
    assert set(re.findall(r"strop ablate (\S+) --", PAGE)) - {"RECIPE"} <= recipes
    assert set(re.findall(r"--figure (\w+)", PAGE)) == set(FIGURES)
    assert set(re.findall(r"--protocol (\w+)", PAGE)) == set(PROTOCOLS) - {"scalerl"}


def test_the_pictures_are_small() -> None:
    pictures = {path.name: path.stat().st_size for path in (DOCS / "figures").iterdir()}
    assert set(re.findall(r"\(figures/(\w+\.png)\)", PAGE)) == set(pictures)
    assert max(pictures.values()) < 30_000 and sum(pictures.values()) < 400_000
