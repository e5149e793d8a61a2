"""An answer read in another way, which the other answer suggests: the text of an option, a comma as decimal point."""

from __future__ import annotations

from collections.abc import Sequence

from strop.verifiers.math.choices import option_text
from strop.verifiers.math.expressions import Node, Token, Unreadable
from strop.verifiers.math.grammar import Reading, read_tokens
from strop.verifiers.math.token_lists import depth_of, is_symbol


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
