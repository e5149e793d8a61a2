"""Lists of tokens: cut apart at separators outside all brackets, and without what means nothing at their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strop_verify.math.expressions import Token, TooMuch

MOST_PARTS = 512
OPENERS, _CLOSERS = ("(", "[", "{", "⦃"), (")", "]", "}", "⦄")
_LEADS = ("approximately", "approx", "roughly", "therefore", "thus", "hence", "so", "exactly")


def is_symbol(token: Token, *texts: str) -> bool:
    """Whether a token is one of some symbols."""
    return token.kind == "symbol" and token.text in texts


def text_of(found: Sequence[Token]) -> str:
    """What some tokens say."""
    return " ".join(token.text for token in found)


def trimmed(found: Sequence[Token]) -> list[Token]:
    """Without punctuation at the ends, signs of approximation in front, and braces around everything."""
    found = list(found)
    while len(found) > 1:
        if is_symbol(found[-1], ".", ",", ";", ":", "\\\\", "$"):
            found.pop()
        elif is_symbol(found[0], ",", ";", ":", ".", "\\\\", "≈", "=", "⇒", "→") or found[0].text.lower() in _LEADS:
            found.pop(0)
        elif is_symbol(found[0], "{") and closing_place(found) == len(found) - 1:
            found = found[1:-1]
        else:
            break
    return [] if len(found) == 1 and is_symbol(found[0], ".", ",", ";", ":", "=") else found


def depth_of(token: Token) -> int:
    """1 for what opens a bracket or environment, -1 for what closes one, else 0."""
    if token.kind == "symbol":
        return (token.text in OPENERS) - (token.text in _CLOSERS)
    return (token.text[:6] == "begin ") - (token.text[:4] == "end ") if token.kind == "command" else 0


def closing_place(found: Sequence[Token]) -> int:
    """Where the bracket at the beginning is closed, by whatever bracket."""
    depth = 0
    for place, token in enumerate(found):
        depth += depth_of(token)
        if depth == 0:
            return place
    return len(found)


def split_at(found: Sequence[Token], here: Callable[[Token], bool]) -> tuple[list[list[Token]], tuple[str, ...]]:
    """The parts between separators outside all brackets, and the separators."""
    parts: list[list[Token]] = [[]]
    separators = []
    depth = bars = 0
    for token in found:
        depth += depth_of(token)
        bars ^= is_symbol(token, "|")
        if depth == 0 and not bars and here(token):
            parts.append([])
            separators.append(token.text)
        else:
            parts[-1].append(token)
    if len(parts) > MOST_PARTS:
        raise TooMuch(f"{len(parts)} members")
    return parts, tuple(separators)


def pieces_of(found: Sequence[Token], *separators: str) -> list[list[Token]]:
    """The parts between symbols, or words, that are not empty."""
    parts = map(
        trimmed, split_at(found, lambda token: token.text.lower() in separators and token.kind in ("symbol", "word"))[0]
    )
    return [part for part in parts if part]
