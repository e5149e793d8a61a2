"""The program in a response: its last closed ```python block."""

from __future__ import annotations

from strop_verify.extract import after_thinking

FENCE = "```"
LANGUAGES = ("python", "py", "python3")


def last_python_block(text: str) -> str | None:
    """The content of the last closed block that is marked as Python; None without one, or in an open think block.

    A block ends at a line of backticks alone, so that a program may hold fences in its texts.
    """
    final = after_thinking(text)
    if final is None:
        return None
    found: str | None = None
    begun: list[str] | None = None
    for line in final.split("\n"):
        bare = line.strip()
        if begun is None or not bare.startswith(FENCE):
            if begun is not None:
                begun.append(line)
            elif FENCE in bare and bare.rpartition(FENCE)[2].strip().lower() in LANGUAGES:
                begun = []
        elif bare == FENCE:
            found, begun = "\n".join(begun), None
        elif bare[len(FENCE) :].strip().lower() in LANGUAGES:
            begun = []  # the block before was never closed
        else:
            begun.append(line)
    return found
