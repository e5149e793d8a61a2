"""The known name that an unknown one probably means; none if no name is close."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

ALIKE = 0.72  # of difflib's ratio: gpro and grpo are 0.75 alike, nope and opefo 0.67
PART = 3  # letters that a part of a name must have to stand for it
LONGEST = 100  # of a name that is looked at: comparing takes the product of both lengths
LISTED = 20


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` misspells, abbreviates or extends; None if none is close."""
    if len(name) > LONGEST:
        return None
    low = name.lower()
    alike = {other: SequenceMatcher(None, low, other.lower()).ratio() for other in sorted(known)}
    # A slip in a short name changes much of it; a part of a long one is little of it.
    close = [other for other, ratio in alike.items() if ratio >= ALIKE or _one_slip(low, other.lower())]
    parts = [
        other
        for other in alike
        if min(len(low), len(other)) >= PART and (low in other.lower() or other.lower() in low)
    ]
    return max(close or parts, key=lambda other: alike[other], default=None)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the name that was probably meant, else the known names."""
    names = sorted(known)
    meant = near(name, names)
    if meant is not None:
        return f"did you mean {meant!r}?"
    return f"known: {', '.join(names[:LISTED])}" + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def _one_slip(one: str, other: str) -> bool:
    """Whether one letter changed, added or removed, or two swapped letters, turn `one` into `other`."""
    if min(len(one), len(other)) < 2:
        return False
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return len(one) <= 1 and len(other) <= 1 or (len(one) == 2 and one == other[::-1])
