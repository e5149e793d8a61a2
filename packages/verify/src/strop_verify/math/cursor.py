"""A place in a list of tokens that moves on as they are read."""

from __future__ import annotations

from collections.abc import Sequence

from strop_verify.math.expressions import Token, Unreadable

CLOSERS = {"(": ")", "[": "]", "{": "}", "⦃": "⦄", "⌊": "⌋", "⌈": "⌉", "|": "|", "‖": "‖"}
END = Token("end", "")


class Cursor:
    """Tokens, and the place of the one that comes next; raises `Unreadable` where another one must stand there."""

    def __init__(self, tokens: Sequence[Token], place: int = 0) -> None:
        self.tokens = tokens
        self.place = place
        self._bars = self._depth = 0  # open absolute values, open expressions

    @property
    def next(self) -> Token:
        """The token that comes next; of kind `end` after the last."""
        return self.tokens[self.place] if self.place < len(self.tokens) else END

    def _at(self, *texts: str) -> bool:
        return self.next.kind == "symbol" and self.next.text in texts

    def _step(self) -> str:
        if self.next is END:
            raise Unreadable("the expression breaks off")
        self.place += 1
        return self.tokens[self.place - 1].text

    def _take(self, text: str) -> None:
        if not self._at(text):
            raise Unreadable(f"{text!r} is missing before {self.next.text!r}")
        self.place += 1

    def inside(self, opener: str) -> list[Token]:
        """The tokens of a group that begins here; steps over it."""
        depth = 0
        for place in range(self.place, len(self.tokens)):
            token = self.tokens[place]
            depth += (token.text == opener) - (token.text == CLOSERS[opener])
            if depth == 0:
                inner = list(self.tokens[self.place + 1 : place])
                self.place = place + 1
                return inner
        raise Unreadable(f"{opener!r} is never closed")
