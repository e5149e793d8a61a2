r"""Formulas and equations of chemistry: `H2SO4`, `\text{SO}_4^{2-}`, `{}^{14}_{6}C`, `2H_2 + O_2 \to 2H_2O`.

How indices are written does not count, nor the order of the terms; coefficients, atoms, groups and charges do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strop_verify.math.expressions import Node, Token

_ATOM = r"[A-Z][a-z]?_?\d*"
_GROUP = rf"[(\[](?:{_ATOM}|\((?:{_ATOM})+\)_?\d*)+[)\]]_?\d*"
_SPECIES = rf"(?:{_ATOM}|{_GROUP})+(?:\*\d*(?:{_ATOM})+)?(?:\^(?:\d*[+-]|[+-]\d*)|[+-])?|e\^?-"
_NUCLIDE = r"(?:_-?\d+)?\^(?P<mass>\d+)(?:_-?\d+)?(?P<of>[A-Z][a-z]?|[en])|(?P<also>[A-Z][a-z]?)-(?P<heavy>\d+)"
_TERM = re.compile(rf"(?P<count>\d*)(?:{_NUCLIDE}|(?P<species>{_SPECIES}))(?:\((?:aq|s|l|g)\))?")
_PLUS = re.compile(r"(?<!\^)(?<!\^\d)\+(?= ?[^ +→])")  # of a sum, not of a charge


def formula(found: Sequence[Token]) -> Node | None:
    """A formula, or the sides of an equation; None where it is neither."""
    text = "".join(" " * token.space + token.text for token in found if token.text not in ("{", "}"))
    sides = [[_TERM.fullmatch(term.replace(" ", "")) for term in _PLUS.split(side)] for side in text.split("→")]
    if not all(map(all, sides)):
        return None
    return Node("formula", (), tuple(tuple(sorted(_plain(term) for term in side if term)) for side in sides))


def _plain(term: re.Match[str]) -> str:
    """A term in one spelling; a nuclide without the number that its symbol says."""
    species = re.sub(r"_|\^(?=-)|\^(?=\d*\+)", "", term["species"] or "").translate(str.maketrans("[]", "()"))
    return f"{term['count']} {species or (term['of'] or term['also']) + (term['mass'] or term['heavy']).rjust(4)}"
