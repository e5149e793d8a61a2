"""Tables in Markdown."""

from __future__ import annotations

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
