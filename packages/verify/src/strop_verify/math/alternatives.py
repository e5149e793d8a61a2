"""An answer read in another way, which the other answer suggests: the text of an option, a comma as decimal point."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from strop_verify.math import expressions as ex
from strop_verify.math.choices import option_text
from strop_verify.math.expressions import Node, Token, Unreadable
from strop_verify.math.grammar import Reading, read_tokens
from strop_verify.math.token_lists import depth_of, is_symbol


def option_of(reading: Reading) -> Node | None:
    """The text of an option after its label, `12` in `(B) 12`; None where there is none."""
    try:
        return read_tokens(option_text(reading.tokens)).answer
    except Unreadable:
        return None


def with_decimal_comma(found: Sequence[Token], any_whole: bool = False) -> Node | None:
    """What an answer is with its comma as a decimal point: `0,111`; None where it may not be one.

    Before it stands a single 0, with `any_whole` any integer, and there is no other comma.
    """
    commas = [place for place, token in enumerate(found) if is_symbol(token, ",")]
    if len(commas) != 1 or any(depth_of(token) and token.text not in "{}" for token in found[: commas[0]]):
        return None
    place = commas[0]
    around = [token for token in (*found[place - 1 : place], *found[place + 1 : place + 2])]
    if len(around) != 2 or any(not token.text.isdigit() for token in around) or found[place].space or around[1].space:
        return None
    whole, digits = (token.text for token in around)
    if whole != "0" and not any_whole:
        return None
    number = Token("number", f"{whole}.{digits}", around[0].space)
    try:
        return read_tokens([*found[: place - 1], number, *found[place + 2 :]]).answer
    except Unreadable:
        return None


def with_indian_commas(found: Sequence[Token]) -> Node | None:
    """What an answer is whose commas part lakhs and crores, `1,50,000`; None where they do not."""
    commas = [place for place, token in enumerate(found) if is_symbol(token, ",")]
    if len(commas) < 2 or any(second - first != 2 for first, second in pairwise(commas)):
        return None
    begin, end = commas[0] - 1, commas[-1] + 2
    groups = found[max(begin, 0) : end : 2]
    sizes = [len(token.text) for token in groups]
    spaced = any(token.space for token in found[begin + 1 : end])
    grouped = sizes[0] <= 2 and sizes[1:] == [2] * (len(commas) - 1) + [3]
    if spaced or not grouped or not all(token.text.isdigit() for token in groups):
        return None
    number = Token("number", "".join(token.text for token in groups), found[begin].space)
    try:
        return read_tokens([*found[:begin], number, *found[end:]]).answer
    except Unreadable:
        return None


def as_ratio(found: Sequence[Token], reference: Node) -> Node | None:
    """The ratio that a time without am or pm may be, `6:10`, where the reference is a quotient; else None."""
    said = [token for token in found if not is_symbol(token, "{", "}")]
    if len(said) != 3 or not (said[0].text.isdigit() and said[2].text.isdigit()) or not ex.holds(reference, "power"):
        return None
    return ex.over(*(ex.number(int(token.text)) for token in (said[0], said[2])))
