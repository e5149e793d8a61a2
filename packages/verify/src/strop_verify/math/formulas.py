r"""Formulas and equations of chemistry: `H2SO4`, `\text{SO}_4^{2-}`, `{}^{14}_{6}C`, `2H_2 + O_2 \to 2H_2O`.

How indices are written does not count, nor the order of the terms; coefficients, atoms, groups and charges do. Products
of cyclic groups and matchings (`1-b, 2-a`) are read in the same way.
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
_SHELL = re.compile(r"\[[A-Z][a-z]\]|[1-7][spdf]\d\d??(?=[1-7][spdf]|$)")  # 1s^2 2s^2 2p^6
_SHELLS = re.compile(r"(?:\[[A-Z][a-z]\])?(?:[1-7][spdf]\^?\d\d??)+(?![spdf])")
_PLUS = re.compile(r"(?<!\^)(?<!\^\d)\+(?= ?[^ +→])")  # of a sum, not of a charge


def formula(found: Sequence[Token]) -> Node | None:
    """A formula, or the sides of an equation; None where it is neither."""
    text = "".join(" " * token.space + token.text for token in found if token.text not in ("{", "}"))
    if _SHELLS.fullmatch(text.replace(" ", "")):
        return Node("formula", (), tuple(sorted(_SHELL.findall(text.replace(" ", "").replace("^", "")))))
    sides = [[_TERM.fullmatch(term.replace(" ", "")) for term in _PLUS.split(side)] for side in text.split("→")]
    if not all(map(all, sides)):
        return None
    return Node("formula", (), tuple(tuple(sorted(_plain(term) for term in side if term)) for side in sides))


def _plain(term: re.Match[str]) -> str:
    """A term in one spelling; a nuclide without the number that its symbol says."""
    species = re.sub(r"_|\^(?=-)|\^(?=\d*\+)", "", term["species"] or "").translate(str.maketrans("[]", "()"))
    return f"{term['count']} {species or (term['of'] or term['also']) + (term['mass'] or term['heavy']).rjust(4)}"


_CYCLIC = re.compile(r"\(?ℤ(?:_(?P<n>\d+)|/(?P<of>\d+)ℤ)?\)?(?:\^(?P<times>[1-9]))?")
_PAIR = re.compile(r"\(?(\w+)\)?(?:[-→:]|->)\(?(\w+)\)?")


def group(found: Sequence[Token]) -> Node | None:
    """A product of cyclic groups, `ℤ × ℤ_6`, as the sorted orders of its factors, 0 for ℤ; None for anything else."""
    text = "".join(token.text for token in found if token.text not in ("{", "}"))
    factors = [_CYCLIC.fullmatch(factor) for factor in re.split("[×⊕]", text)]
    if len(found) < 2 or not all(factors):
        return None
    orders = [[int(each["n"] or each["of"] or 0)] * int(each["times"] or 1) for each in factors if each]
    return Node("group", (), tuple(sorted(sum(orders, []))))


def matching(found: Sequence[Token]) -> Node | None:
    """Which things belong to which, `1-b, 2-a`; None for anything else."""
    pairs = [_PAIR.fullmatch(text) for text in re.split("[,;]|and", "".join(token.text for token in found))]
    if len(pairs) < 2 or not all(pairs):
        return None
    return Node("matching", (), tuple(sorted(pair.groups() for pair in pairs if pair)))
