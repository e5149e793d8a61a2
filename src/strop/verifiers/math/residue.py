r"""Answers modulo something: `x \equiv 5 \pmod{7}` and `5 \pmod 7` state the residue 5, and of what."""

from __future__ import annotations

import re
from typing import NamedTuple

_MODULUS = re.compile(
    r"[\s,]{0,4}\(?\s{0,4}\\(pmod|bmod|mod|pod)(?![A-Za-z])\s{0,4}(?:\{([^{}]{1,40})\}|(\w{1,40}))\s{0,4}\)?[\s.]*$"
)
_NAMED = re.compile(r"^\s*[A-Za-z](?:_\w|_\{\w{1,10}\})?\s*\\equiv(?![A-Za-z])\s*")
_WHOLE = re.compile(r"\d{1,40}")


class Residue(NamedTuple):
    """The text of a residue, and of its modulus."""

    text: str
    modulus: str


def residue(latex: str) -> Residue | None:
    r"""The residue that an answer states; None where it names no modulus. `17 \bmod 5` is computed: 2."""
    found = _MODULUS.search(latex, max(0, len(latex) - 200))
    if found is None:
        return None
    text = _NAMED.sub("", latex[: found.start()]).strip()
    kind, modulus = found.group(1), (found.group(2) or found.group(3)).strip()
    if kind in ("bmod", "mod") and _WHOLE.fullmatch(text) and _WHOLE.fullmatch(modulus) and int(modulus):
        text = str(int(text) % int(modulus))
    return Residue(text, modulus) if text else None
