"""Links between pages lead somewhere: to a file that is there, and to a heading that it has, as GitHub names it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
WORDS_AT_MOST = 36_000


def prose(page: Path) -> str:
    """A page without its blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}: {sorted(anchors(target))}"


def test_a_link_that_leads_nowhere_is_found() -> None:
    assert {"every-setting", "pieces", "policyloss"} <= anchors(ROOT / "docs" / "settings.md")
    assert "docs/start.md" in LINK.findall(prose(ROOT / "README.md"))


def test_the_map_has_every_page() -> None:
    listed = {link.partition("#")[0] for link in LINK.findall((ROOT / "docs" / "README.md").read_text())}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "README.md" or name in listed, f"docs/README.md does not lead to {name}"


def entries(nav: list[Any]) -> Iterator[str]:
    """The pages of the site's navigation."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
            continue
        for inner in entry.values():
            yield from [inner] if isinstance(inner, str) else entries(inner)


def test_the_sites_navigation_names_pages_that_are_there() -> None:
    found = set(entries(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert "README.md" in found and len(found) > 30
    for name in found:
        assert (ROOT / name).is_file(), name


def test_the_readme_is_a_screen_and_the_pages_can_be_read() -> None:
    """What is generated, held against papers and runs by tests, or a log of measurements is looked up, not read."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160
    looked_up = (
        "settings.md", "algorithms.md", "models.md", "claims.md", "figures.md", "benchmarks.md", "metrics.md",
        "parity.md",
    )  # fmt: skip
    read = [page for page in PAGES if "docs" in page.parts and not {"measured", "numbers"} & set(page.parts)]
    words = sum(len(page.read_text().split()) for page in read if page.name not in looked_up)
    assert words <= WORDS_AT_MOST, words


def test_the_files_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
    assert len(named) > 12
    for name in named:
        assert any((ROOT / place / name).is_file() for place in ("", "src/strop", "packages/verify/src")), name
    drawing = text.partition("## The rooms")[2].partition("## Three walks")[0]
    rooms = {file.parent.name for file in (ROOT / "src" / "strop").glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+) {2,}", drawing, re.MULTILINE)) == rooms


def test_the_site_is_built_from_what_the_makefile_lays_out() -> None:
    """A dry run names the pages, the folder that zensical.toml reads, and strict mode."""
    done = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    configuration = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert f"README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs examples {configuration['docs_dir']}/" in done.stdout
    assert "--strict" in done.stdout and f"{configuration['site_dir']}/index.html" in done.stdout
