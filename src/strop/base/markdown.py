"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """A Markdown table whose columns line up: those named in `numbers` at the right, the others at the left."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    widths = [max(3, *(len(row[place]) for row in escaped)) for place in range(len(heads))]
    right = [head in numbers for head in heads]
    places = list(zip(widths, right, strict=True))
    lines = [
        [cell.rjust(width) if number else cell.ljust(width) for cell, (width, number) in zip(row, places, strict=True)]
        for row in escaped
    ]
    rule = ["-" * (width - 1) + ":" if number else "-" * width for width, number in places]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def parsed_table(text: str) -> tuple[list[str], list[list[str]], list[str]]:
    """The heads and rows of a table that `markdown_table` wrote, and the heads of the columns with numbers."""
    heads, rule, *rows = (
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()
    )
    return heads, rows, [head for head, mark in zip(heads, rule, strict=True) if mark.endswith(":")]
