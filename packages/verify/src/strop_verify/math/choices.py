r"""Letters of multiple choice: `B`, `(B)`, `B. 12`, `\textbf{(B)}\ 12`; `A, C` and `AC` where several are right.

An answer that begins with the label of one option and names another one, `B. C.` or `(B) 12, (C) 13`, lists both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strop_verify.math.expressions import Token
from strop_verify.math.token_lists import is_symbol
from strop_verify.math.wordings import COPULAS, HEDGES

_OPTIONS = "ABCDEFGHIJ"
_ANNOUNCED = ("option", "choice", "answer", "options", "choices")
_LABEL = re.compile(r"\(([A-J])\)|([A-J])(?:[.)]|:(?![A-Z]))")
_CONNECTIVES = frozenset("and or not nor but maybe perhaps possibly also either then vs is".split())  # noqa: SIM905
_GROUPING = frozenset(("both", "neither", "only", "all", "none", "between"))  # words of an option that names options
_REASONS = ("because", "since", "as", "while", "whereas")  # what follows is no text of the option
_SEPARATES = (".", ",", ";", ":", "/", "&", "|", "~", "(", ")", "\\\\", "→", "⇒", "…", "?")
_OPERATORS = ("+", "-", "*", "∪", "∩")


def choice_letters(found: Sequence[Token]) -> str | None:
    """The options that an answer names: commas between those that are listed, bars between alternatives.

    None where it is no choice.
    """
    found = [token for token in found if not is_symbol(token, "{", "}")]
    while len(found) > 1 and found[0].text.lower() in _ANNOUNCED:
        found = found[1:]
    text = "".join(
        f" {token.text} " if token.kind == "word" and len(token.text) > 1 else token.text for token in found
    ).strip()
    listed = [part.strip(" ().") for part in re.split(r",|;| and | or ", text)]
    listed = [part for part in listed if part]
    if len(listed) > 1 and all(len(part) == 1 and part in _OPTIONS for part in listed):
        return ("|" if " or " in text else ",").join(listed)
    bare = text.rstrip(".)").lstrip("(").strip()
    if 0 < len(bare) < 6 and set(bare) <= set(_OPTIONS) and not any(token.space for token in found[1:]):
        return bare
    labelled = _LABEL.match(text)
    if labelled is None or labelled.end() == len(text):
        return None
    first = labelled[1] or labelled[2]
    rest = found[labelled.end() :]
    if rest[:1] and rest[0].text in COPULAS and any(token.text.lower() in HEDGES.split() for token in rest):
        return None  # (B) is wrong
    others = _others(first, rest)
    return ",".join(dict.fromkeys((first, *others)))


def option_text(found: Sequence[Token]) -> list[Token]:
    """What follows the label of an option, `12` in `(B) 12`; nothing where there is no label."""
    found = [token for token in found if not is_symbol(token, "{", "}")]
    labelled = _LABEL.match("".join(token.text for token in found))
    return found[labelled.end() :] if labelled is not None else []


def lower_choice(found: Sequence[Token]) -> str | None:
    """The options that an answer in lower-case letters names, in capitals: `b`, `(b)`, `b) 12`; None for anything else.

    A letter is only an option where it stands alone or as a label.
    """
    raised = [
        token._replace(text=token.text.upper()) if len(token.text) == 1 and token.text in _OPTIONS.lower() else token
        for token in found
    ]
    return None if any(is_option(token) for token in found) else choice_letters(raised)


def options_in(found: Sequence[Token]) -> set[str]:
    """The letters of options that stand in an answer, whatever else does, in capitals."""
    found = [token for token in found if not is_symbol(token, "{", "}")]
    return {token.text.upper() for token in found if len(token.text) == 1 and token.text.upper() in _OPTIONS}


def is_option(token: Token) -> bool:
    """Whether a token is the capital letter of an option."""
    return token.kind in ("letter", "word") and len(token.text) == 1 and token.text in _OPTIONS


def _others(first: str, rest: Sequence[Token]) -> list[str]:
    """The options that are named after the label of one, and are no part of the text of it."""
    reasons = (place for place, token in enumerate(rest) if token.text.lower() in _REASONS)
    rest = rest[: next(reasons, len(rest))]
    said = [token.text.lower() for token in rest if token.kind == "word"]
    grouped = bool(said) and said[0] in _GROUPING
    found = [token.text for place, token in enumerate(rest) if is_option(token) and _is_named(rest, place, grouped)]
    roman = "I" in found and first < "H" and not any(is_symbol(token, "(") for token in rest)  # A. I and III
    return [letter for letter in found if letter != "I" or not roman]


def _is_named(rest: Sequence[Token], place: int, grouped: bool) -> bool:
    """Whether a letter names an option: as a label, after a separator or connective; no unit, name or article."""
    before, after = rest[:place], rest[place + 1 :]
    follows = after[0] if after else None
    ends = follows is None or follows.text in _SEPARATES or follows.text.lower() in _CONNECTIVES
    if before and is_symbol(before[-1], "("):  # (C), but not f(C)
        applied = len(before) > 1 and not before[-1].space and before[-2].kind in ("letter", "word", "command")
        return follows is not None and follows.text == ")" and not applied
    if not before or all(token.text in (*_SEPARATES, *_OPERATORS) for token in before):
        listed = follows is not None and is_option(follows) and (follows.space or all(map(is_option, after)))
        return ends or listed or (follows is not None and follows.kind == "number")
    label = follows is not None and follows.text in (".", ")", ":") and len(after) > 1
    led = before[-1].text in (",", ";", "/", "|", "&", ".", "\\\\") or before[-1].text.lower() in _CONNECTIVES
    joined = is_option(before[-1]) and rest[place].space
    return not grouped and ends and (led or joined or (label and rest[place].space))
