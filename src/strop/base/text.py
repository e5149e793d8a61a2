"""Numbers, durations and tables as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def duration(seconds: float) -> str:
    """`9 s`, `3 min 05 s`, `2 h 07 min`."""
    whole = int(round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(count: int, things: str) -> str:
    """`1 step`, `1,200 steps`; `things` are a plural in s."""
    return f"{count:,} {things.removesuffix('s') if count == 1 else things}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def number(value: float) -> str:
    """Four significant digits, without an exponent where it can be read without."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


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
