"""Plain words in sources and pages, and files that are named there exist."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("model", "training", "algorithms", "base")
PAGES = ("lora", "sharding", "gpus", "models", "curves", "length_control", "extend")
TURNS = re.compile(
    r"\b(speaks? against|is told|are told|of (?:its|their|one's) own|beside|alone|whose doing|what becomes of|"
    r"belongs to nobody|in a line each|is no setting|has had its part|was the cause)\b"
)
ALLOWED = re.compile(r"\bstand-alone\b|\bof its own tokens\b|\bof its own chunk\b")
FILE = re.compile(r"(?<![\w./*<>{}$~-])((?:[\w-]+/)*[\w-]+\.py)\b")
EXAMPLES = {"hackable.py", "sums.py", "soft_clip.py", "script.py"}  # that a reader would write, as are all my_….py


def tracked(*places: str) -> list[Path]:
    """The files of the repository in these places."""
    listed = subprocess.run(["git", "ls-files", "--", *places], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code blocks, or of a module's comments and docstrings, with their numbers."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        inside = False
        for number, line in enumerate(text.splitlines(), 1):
            inside ^= line.lstrip().startswith("```")
            if not inside:
                yield number, line
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines = text.splitlines()[first.lineno - 1 : first.end_lineno]
            yield from enumerate(lines, first.lineno)


def places_of_words() -> list[Path]:
    """The modules and pages that are held to plain words."""
    return [
        *(path for room in ROOMS for path in tracked(f"src/strop/{room}") if path.suffix == ".py"),
        *(ROOT / "docs" / f"{page}.md" for page in PAGES),
    ]


@pytest.mark.parametrize("path", places_of_words(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_words_are_plain(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    found = [f"{number}: {line.strip()}" for number, line in lines if TURNS.search(ALLOWED.sub("", line))]
    assert not found, f"say it in plain words ({path.name}):\n" + "\n".join(found)


def test_files_that_are_named_exist() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in tracked()}
    ends = {name[start:] for name in files for start in (0, *(i + 1 for i, letter in enumerate(name) if letter == "/"))}
    places = tracked("src", "packages", "docs", "README.md", "CONTRIBUTING.md")
    read = [path for path in places if "numbers" not in path.parts]  # the papers' own scripts are named there
    missing = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path in read
        if path.suffix in (".py", ".md")
        for number, line in prose(path)
        for name in FILE.findall(line)
        if name not in ends and name not in EXAMPLES and not name.startswith("my_")
    ]
    assert not missing, "\n".join(missing)
