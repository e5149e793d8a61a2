r"""Answers by kind: what a text is (a quantity, a word, a time, an interval …) is decided before it is compared.

One recursive reader over the tokens: `;`, then "or", "and" and `,`, then relations, then what stands alone. The kinds
are those of `expressions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from strop.verifiers.math import expressions as ex
from strop.verifiers.math.expressions import Node, Token, TooMuch, Unreadable
from strop.verifiers.math.latex import tokens
from strop.verifiers.math.parser import Parser
from strop.verifiers.math.units import CURRENCY, MULTIPLES, Unit, counts, read_unit

MOST_PARTS = 512


class Measure(NamedTuple):
    """What an expression is measured in or counts, and the words that belong to it."""

    unit: Unit | None = None
    percent: bool = False
    thing: str = ""
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        unit = "" if self.unit is None else f"[{self.unit}] "
        return f"{unit}{'% ' * self.percent}{self.thing} {' '.join(self.words)}".strip()


class Reading(NamedTuple):
    """An answer as it was read.

    Attributes:
        answer: by kind.
        letters: the letters of the choices that it may be, commas between those that are listed; None where it is none.
        tokens: what it was read from.
    """

    answer: Node
    letters: str | None
    tokens: tuple[Token, ...]

    @property
    def text(self) -> str:
        """What was read, with the same spacing for the same tokens."""
        return " ".join(token.text for token in self.tokens)

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        op = self.answer.op
        return "choice" if self.letters else op if op in ex.KINDS or not self.answer.args else "expression"


_OPENERS, _CLOSERS = ("(", "[", "{", "⦃"), (")", "]", "}", "⦄")
_RELATIONS = ("=", "≠", "<", ">", "≤", "≥", "≈", "≡", "∈", "∉")
_MONTHS = "january february march april may june july august september october november december"
_COPULAS = ("is", "are", "equals", "be", "equal", "was")
_HEDGES = (
    "not no never neither nor cannot wrong incorrect false more less fewer greater than most least over under between "
    "maybe perhaps possibly probably might could if unless or either instead except almost nearly above below exceeds"
)
_CONDITIONS = ("where", "for", "if", "when", "with", "see", "but", "which", "maybe")
_SYNONYMS = {
    **dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions", "there is no solution",
                     "there are no solutions", "empty", "empty set", "∅", "no real roots", "no values", "nothing"), "none"),
    **dict.fromkeys(("dne", "doesnotexist", "no limit"), "does not exist"),
    **dict.fromkeys(("infinite", "infinity", "infinitely many", "infinitely many solutions"), "∞"),
    **dict.fromkeys(("all real numbers", "all reals", "real numbers", "reals", "any real number"), "ℝ"),
    **dict.fromkeys(("integers", "all integers"), "ℤ"), "not possible": "impossible", "not defined": "undefined",
    "north": "n", "south": "s", "east": "e", "west": "w", "bce": "bc", "ce": "ad",
}  # fmt: skip
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
# What a sentence says before "no solution" and the like; words at the end of a quantity that say nothing of it.
_SAYS = re.compile(
    r"^(?:limit|equation|system|problem|integral|series|inequality|value|sum|expression|there|it|this) "
    r"(?:(?:is|are|has|have) )?(?=does not exist$|no (?:real )?solutions?$)"
)
_CLOSING = re.compile(r"(?:^| )(?:in total|in all|total|altogether|overall|answer|old)$")
_EXCEPT = re.compile(r"(?:all )?(?:real numbers|reals)(?: x)? (?:except|except for|other than|but)")
_NEGATIVE = ("minus", "negative")
_UNIT_LETTERS = frozenset((*"msghlLJNWVAKCF", "Omega", "mu"))
_REMAINDERS = ("r", "remainder", "rem", "with remainder", "with a remainder of")
_LEADS = ("approximately", "approx", "roughly", "therefore", "thus", "hence", "so")
_CLOCK = re.compile(r"(\d{1,2})(?: : (\d\d))?(?: : \d\d)?(?: (a|p)(?: \.)? ?m(?: \.)?)?", re.IGNORECASE)
_CHOICE = re.compile(r"(?:\(([A-J])\)|([A-J])[.:)])(?=.)")


def read(text: str) -> Reading:
    """Read an answer.

    Raises:
        Unreadable: it is of no kind.
        TooMuch: it is of a kind, and too large.
    """
    found = _trimmed(tokens(text))
    letters = _letters(found)
    try:
        answer = _answer(found)
    except Unreadable:
        if letters is None:
            raise
        answer = words(letters)
    return Reading(answer, letters, tuple(found))


def words(text: str) -> Node:
    """Words, synonyms made one."""
    text = _SAYS.sub("", re.sub(r"^(?:the|an?) ", "", text.lower()))
    return Node("words", (), tuple(_SYNONYMS.get(text, text).split()))


def is_region(answer: Node) -> bool:
    """Whether an answer is a set of real numbers that intervals or inequalities describe."""
    if answer.op == "relation":
        return set(answer.value) <= {"<", ">", "≤", "≥", "≠"} or (answer.value == ("∈",) and is_region(answer.args[1]))
    return answer.op in ("interval", "∪", "∩", "∖")


# ---------------------------------------------------------------------- lists of tokens


def _is(token: Token, *texts: str) -> bool:
    return token.kind == "symbol" and token.text in texts


def _text(found: Sequence[Token]) -> str:
    return " ".join(token.text for token in found)


def _trimmed(found: Sequence[Token]) -> list[Token]:
    """Without punctuation at the ends, signs of approximation in front, and braces around everything."""
    found = list(found)
    while len(found) > 1:
        if _is(found[-1], ".", ",", ";", ":", "\\\\", "$"):
            found.pop()
        elif _is(found[0], ",", ";", ":", ".", "\\\\", "≈", "=", "⇒", "→") or found[0].text.lower() in _LEADS:
            found.pop(0)
        elif _is(found[0], "{") and _closing(found) == len(found) - 1:
            found = found[1:-1]
        else:
            break
    return [] if len(found) == 1 and _is(found[0], ".", ",", ";", ":", "=") else found


def _depth(token: Token) -> int:
    if token.kind == "symbol":
        return (token.text in _OPENERS) - (token.text in _CLOSERS)
    return (token.text[:6] == "begin ") - (token.text[:4] == "end ") if token.kind == "command" else 0


def _closing(found: Sequence[Token]) -> int:
    """Where the bracket at the beginning is closed, by whatever bracket."""
    depth = 0
    for place, token in enumerate(found):
        depth += _depth(token)
        if depth == 0:
            return place
    return len(found)


def _split(found: Sequence[Token], here: Callable[[Token], bool]) -> tuple[list[list[Token]], tuple[str, ...]]:
    """The parts between separators outside all brackets, and the separators."""
    parts: list[list[Token]] = [[]]
    separators = []
    depth = bars = 0
    for token in found:
        depth += _depth(token)
        bars ^= _is(token, "|")
        if depth == 0 and not bars and here(token):
            parts.append([])
            separators.append(token.text)
        else:
            parts[-1].append(token)
    if len(parts) > MOST_PARTS:
        raise TooMuch(f"{len(parts)} members")
    return parts, tuple(separators)


def _pieces(found: Sequence[Token], *separators: str) -> list[list[Token]]:
    """The parts between symbols, or words, that are not empty."""
    parts = map(
        _trimmed, _split(found, lambda token: token.text.lower() in separators and token.kind in ("symbol", "word"))[0]
    )
    return [part for part in parts if part]


# ---------------------------------------------------------------------- what is said of several things


def _answer(found: Sequence[Token]) -> Node:
    found = _unlabelled(_trimmed(found))
    if not found:
        raise Unreadable("nothing stands there")
    whole = _as_words(found) or _special(found)
    if whole is not None:
        return whole
    groups = [_listed(group) for group in _pieces(found, ";")]
    if len(groups) > 1 and all(
        group.op == "list" and all(part.op == "relation" for part in group.args) for group in groups
    ):
        return Node("set", tuple(group._replace(op="tuple") for group in groups))  # p = 5, q = 2; p = 7, q = 2
    return _joined("set", groups)


def _listed(found: Sequence[Token]) -> Node:
    for word, op in (("or", "∪"), ("and", "∩")):
        parts = _pieces(found, word)
        if len(parts) > 1:
            compound = _quantity([token for token in found if token.text != "and"]) if word == "and" else None
            if compound is not None and compound.op == "measure" and compound.value.unit is not None:
                return compound  # 2 hours and 30 minutes
            read_parts = list(map(_listed, parts))
            if all(map(is_region, read_parts)):
                return Node(op, tuple(read_parts))
            choice = word == "or" and any(part.op in ("words", "title") for part in read_parts)
            return _joined("set", read_parts)._replace(value="or" if choice else None)
    pieces = _pieces(found, ",")
    if not pieces:
        raise Unreadable("nothing stands there")
    date = _date(found) if len(pieces) > 1 else None
    if date is not None:
        return date
    index = _index(pieces[-1]) if len(pieces) > 1 else None
    if index is not None:
        rest = [token for piece in pieces[:-1] for token in (Token("symbol", ","), *piece)]
        return Node("family", (_listed(rest[1:]),), index)
    said = next((place for place, token in enumerate(found) if place and token.text in ("for", "where")), None)
    index = _index(found[said:]) if said is not None else None
    if index is not None:  # 7m + 5 for integers m
        return Node("family", (_listed(found[:said]),), index)
    found_parts = list(map(_related, pieces))
    if any(
        part.op == "relation" and "∈" in part.value or (part.op == "words" and part.value[0] in _CONDITIONS)
        for part in found_parts[1:]
    ):
        raise Unreadable("a condition")
    first = found_parts[0]
    if label(first) is not None and all(part.op != "relation" for part in found_parts[1:]):  # x = 1, 2
        found_parts[1:] = [Node("relation", (first.args[0], part), ("=",)) for part in found_parts[1:]]
    return _joined("list", found_parts)


def _joined(how: str, found: list[Node]) -> Node:
    """Parts as one answer; lists joined by words become one, and what has one name is a set: `x = 1, x = 2`."""
    if len(found) == 1:
        return found[0]
    if how == "set":
        found = [part for each in found for part in (each.args if each.op in ("list", "set") else (each,))]
    names = {label(part) for part in found}
    return Node("set" if len(names) == 1 and None not in names else how, tuple(found))


def label(part: Node) -> Node | None:
    """What an equation gives the value of: a name, a function of names, |AB|, words; None for anything else."""
    if part.op != "relation" or not set(part.value) <= {"=", "≈"}:
        return None
    first = part.args[0]
    if first.op in ("name", "words", "title", "tuple") or first.op.startswith("apply "):
        return first
    return first if first.op in ("abs", "norm", "det") and ex.names_in(first) and not ex.holds(first, "sum") else None


def _index(piece: Sequence[Token]) -> str | None:
    r"""k, where a piece says `k \in \mathbb{Z}` or "where k is an integer"."""
    names = [
        token.text
        for token in piece
        if token.kind == "letter" or (len(token.text) == 1 and token.text.isalpha() and token.text != "a")
    ]
    said = [token.text.lower() for token in piece]
    integer = ("∈" in said and said[-1] in ("ℤ", "ℕ")) or "integer" in said or "integers" in said
    names = [each for each in names if each not in "ℤℕ"]
    return names[0] if len(names) == 1 and integer else None


def _related(found: Sequence[Token]) -> Node:
    found = _unlabelled(_trimmed(found))
    residue = _residue(found)
    if residue is not None:
        return residue
    sides, ops = _split(found, lambda token: _is(token, *_RELATIONS))
    if not ops:
        return _alone(found)
    return Node("relation", tuple(map(_alone, sides)), ops)


def _residue(found: Sequence[Token]) -> Node | None:
    r"""`x \equiv 5 \pmod{7}`, `5 \pmod 7`, `5 (mod 7)`; not `17 \bmod 5 = 2`."""
    place = next(
        (place for place, token in enumerate(found) if place and token.text in ("pmod", "mod", "modulo")), None
    )
    if place is None:
        return None
    before = [token for token in found[: place - _is(found[place - 1], "(")] if not _is(token, ",")]
    named, ops = _split(before, lambda token: _is(token, "≡"))
    modulus = [token for token in found[place + 1 :] if not _is(token, "(", ")", "{", "}")]
    marked = found[place].text == "pmod" or _is(found[place - 1], "(") or bool(ops)
    if not marked or not modulus or any(_is(token, *_RELATIONS) for token in modulus):
        return None
    return Node(
        "residue",
        (_listed(found[len(before) - len(named[-1]) : place - _is(found[place - 1], "(")]), Parser(modulus).whole()),
    )


# ---------------------------------------------------------------------- words, times, names


def _unlabelled(found: Sequence[Token]) -> list[Token]:
    """Without words in front that only say that the answer comes: `The answer is`, `Answer:`, `Area is`."""
    end = next((place for place, token in enumerate(found) if token.kind not in ("word", "letter")), len(found))
    if not end or found[0].kind != "word":
        return list(found)
    said = [token.text.lower() for token in found[:end]]
    hedged = [place for place, word in enumerate(said) if word in _HEDGES.split()]
    if end < len(found) and _is(found[end], ":") and not hedged:
        return list(found[end + 1 :])
    last = max(
        (place for place, word in enumerate(said) if word in _COPULAS and 0 < place < len(found) - 1), default=None
    )
    return list(found) if last is None or any(place <= last for place in hedged) else list(found[last + 1 :])


def _as_words(found: Sequence[Token]) -> Node | None:
    """The words that all of an answer are; small numbers in words are numbers."""
    inner = ("-", "′", ".")  # well-known, Tom's, a.m.
    if any(token.kind not in ("word", "letter") and not _is(token, *inner) for token in found):
        return None
    if _is(found[0], *inner) or _is(found[-1], "-", "′"):
        return None
    text = " ".join(token.text for token in found if token.kind != "symbol").lower()
    if not any(token.kind == "word" and len(token.text) > 1 for token in found):
        return None
    if {"and", "or"}.intersection(text.split()):
        return None
    numbers = _NUMBERS.split()
    return ex.number(numbers.index(text)) if text in numbers else words(text)


def _special(found: Sequence[Token]) -> Node | None:
    """Names, times, dates, divisions, digits in a base."""
    shape = found[0].text if found[0].text in ("angle", "triangle") else ""
    letters = [token for token in found[1:] if not _is(token, "{", "}")] if shape else found
    named = bool(letters) and all(token.kind in ("letter", "word") and token.text.isupper() for token in letters)
    if (
        named
        and (shape or len("".join(token.text for token in found)) > 1)
        and not any(token.space for token in found[1:] if not shape)
    ):
        text = "".join(token.text for token in letters)
        if shape == "angle" and len(text) == 3:  # ABC and CBA are one angle
            text = min(text, text[::-1])
        return Node("title", (), f"{shape} {text}".strip())
    return _clock(found) or _date(found) or _division(found) or _based(found)


def _clock(found: Sequence[Token]) -> Node | None:
    """The minute of the day; without am or pm as it stands."""
    match = _CLOCK.fullmatch(_text([token for token in found if not _is(token, "{", "}")]))
    if match is None or (match[2] is None and match[3] is None):
        return None
    hour, minute, half = int(match[1]), int(match[2] or 0), (match[3] or "").lower()
    if hour > 24 or minute > 59 or (half and not 1 <= hour <= 12):
        return None
    return Node("clock", (), 60 * (hour % 12 + 12 * (half == "p") if half else hour) + minute)


def _date(found: Sequence[Token]) -> Node | None:
    """Month, day and, where there is one, year."""
    said = [token for token in found if not _is(token, ",", ".") and token.text.lower() not in ("of", "the")]
    numbers = [int(token.text) for token in said if token.kind == "number" and token.text.isdigit()]
    months = [month for token in said if token.kind == "word" and (month := _month(token.text.lower()))]
    if (
        len(months) != 1
        or not numbers
        or len(said) != len(months) + len(numbers)
        or len(numbers) > 2
        or not 1 <= numbers[0] <= 31
    ):
        return None
    return Node("date", (), (months[0], *numbers))


def _month(word: str) -> int:
    months = _MONTHS.split()
    return next(
        (
            place
            for place, month in enumerate(months, 1)
            if word == month or (len(word) > 2 and word == month[: len(word)])
        ),
        0,
    )


def _division(found: Sequence[Token]) -> Node | None:
    """Quotient and remainder: `5 R 2`, `5 \\text{ remainder } 2`."""
    if (
        len(found) < 3
        or found[0].kind != "number"
        or found[-1].kind != "number"
        or _text(found[1:-1]).lower() not in _REMAINDERS
    ):
        return None
    return Node("division", (), (Fraction(found[0].text), Fraction(found[-1].text)))


def _based(found: Sequence[Token]) -> Node | None:
    """Digits and their base: `2516_8`."""
    texts = [token.text for token in found if not _is(token, "{", "}", "(", ")")]
    if len(texts) < 3 or texts[-2] != "_":
        return None
    numbers = {word: str(number) for number, word in enumerate(_NUMBERS.split())}
    digits, said = "".join(texts[:-2]).upper(), numbers.get(texts[-1], texts[-1])
    if said not in map(str, range(2, 37)):
        return None
    base = int(said)
    plain = digits.isalnum() and digits.isascii() and digits[0].isdigit() and len(digits) < 200
    if not plain or any(int(digit, 36) >= base for digit in digits):
        return None
    return Node("digits", (), (digits.lstrip("0") or "0", base))


def _letters(found: Sequence[Token]) -> str | None:
    r"""The letters of multiple choice that an answer may be: `B`, `(B)`, `B. 12`, `\textbf{(B)}\ 12`; `A,C`, `AC`."""
    found = [token for token in found if not _is(token, "{", "}")]
    while len(found) > 1 and found[0].text.lower() in ("option", "choice", "answer", "options", "choices"):
        found = found[1:]
    text = "".join(
        f" {token.text} " if token.kind == "word" and len(token.text) > 1 else token.text for token in found
    ).strip()
    listed = [part.strip(" ().") for part in re.split(r",|;| and | or ", text)]
    listed = [part for part in listed if part]
    if len(listed) > 1 and all(len(part) == 1 and part in "ABCDEFGHIJ" for part in listed):
        return ("|" if " or " in text else ",").join(listed)
    bare = text.rstrip(".)").lstrip("(").strip()
    if 0 < len(bare) < 6 and set(bare) <= set("ABCDEFGHIJ") and not any(token.space for token in found[1:]):
        return bare
    labelled = _CHOICE.match(text)
    return (labelled[1] or labelled[2]) if labelled is not None else None


# ---------------------------------------------------------------------- what stands alone


def _alone(found: Sequence[Token]) -> Node:
    found = _trimmed(found)
    if not found:
        raise Unreadable("nothing stands there")
    if len(found) == 1 and _is(found[0], "∅", "…", *"ℝℤℕℚℂ"):
        return Node("…") if found[0].text == "…" else words(found[0].text)
    special = _as_words(found) or _special(found)
    if special is not None:
        return special
    found = _difference(found)
    for op in ("∪", "∖", "∩"):
        parts, ops = _split(found, lambda token, op=op: _is(token, op))  # type: ignore[misc]
        if ops:
            return Node(op, tuple(map(_alone, parts)))
    if found[0][:2] == ("command", "begin cases"):
        return _cases(found[1:-1])
    enclosed = _enclosed(found)
    if enclosed is not None:
        return enclosed
    ratio, colons = _split(found, lambda token: _is(token, ":") or token.text == "to")
    if colons:
        nodes = tuple(Parser(part).whole() for part in ratio)
        return ex.over(*nodes) if len(nodes) == 2 else Node("ratio", nodes)
    quantity = _quantity(found)
    if quantity is None:
        raise Unreadable(f"cannot be read: {_text(found)[:60]}")
    return matrix_of(quantity) or quantity


def _difference(found: Sequence[Token]) -> list[Token]:
    r"""`\mathbb{R} - \{2\}`, "all real numbers except 2" with the sign of a difference of sets."""
    minus, braces = Token("symbol", "∖"), (Token("symbol", "⦃"), Token("symbol", "⦄"))
    if len(found) > 2 and _is(found[0], *"ℝℤℕℚℂ") and _is(found[1], "-"):
        return [found[0], minus, *found[2:]]
    end = next((place for place, token in enumerate(found) if token.kind not in ("word", "letter")), 0)
    if end and _EXCEPT.fullmatch(_text(found[:end]).lower()):
        return [Token("symbol", "ℝ"), minus, braces[0], *found[end:], braces[1]]
    return list(found)


def _enclosed(found: Sequence[Token]) -> Node | None:
    """Intervals, tuples and sets: what one pair of brackets encloses; `]a, b[` is an interval, too."""
    first, last, inner = found[0], found[-1], found[1:-1]
    turned = (_is(first, "]") and _is(last, "[", "]")) or (_is(first, "(", "[") and _is(last, "["))
    if not turned and not (_is(first, *_OPENERS) and _closing(found) == len(found) - 1):
        return None
    if _is(first, "⦃"):
        return _set(inner)
    parts = _pieces(inner, ",", ";")
    if len(parts) < 2:
        return (
            _alone(inner)
            if inner and all(token.kind in ("number", "letter", "word") or _depth(token) for token in inner)
            else None
        )
    nodes = tuple(map(_alone, parts))
    closed = (_is(first, "["), _is(last, "]") and not _is(first, "]") or (_is(first, "]") and _is(last, "]")))
    if len(nodes) == 2 and (any(closed) or turned or any(map(ex.is_infinite, nodes))):
        return Node("interval", nodes, closed)
    return Node("list" if all(closed) else "tuple", nodes)


def _set(inner: Sequence[Token]) -> Node:
    r"""What stands in `\{ \}`: members, or a condition after a bar."""
    bar = next((place for place, token in enumerate(inner[:6]) if _is(token, "|", ":")), None)
    if bar and sum(_is(token, "|") for token in inner) % 2 == (inner[bar].text == "|"):
        return _listed(inner[bar + 1 :])
    found = _listed(inner) if inner else words("∅")
    if not inner:
        return found
    return found._replace(op="set") if found.op in ("list", "set") else Node("set", (found,))


def _cases(inner: Sequence[Token]) -> Node:
    rows = []
    for row in _pieces(inner, "\\\\"):
        parts = _pieces(row, "&")
        if len(parts) != 2:
            raise Unreadable("a case without its condition")
        condition = [
            token for token in parts[1] if token.text.lower() not in ("if", "for", "when", "where", "is", "are")
        ]
        try:
            read_condition = _listed(condition)
        except Unreadable:
            read_condition = words(_text(condition))
        rows.append(Node("case", (_answer(parts[0]), read_condition)))
    return Node("cases", tuple(rows))


# ---------------------------------------------------------------------- quantities


def measured(node: Node, measure: Measure) -> Node:
    """An expression with its measure; without one where there is nothing to say."""
    return node if measure == Measure() else Node("measure", (node,), measure)


def _quantity(found: Sequence[Token]) -> Node | None:
    """An expression with what it counts or is measured in; None where that is not all."""
    found = list(found)
    if found and found[0].text.lower() in _NEGATIVE:
        found[0] = Token("symbol", "-")
    for place in range(1, len(found) - 1):  # 2 h 30 min
        if found[place].text in ("h", "d") and found[place - 1].kind == found[place + 1].kind == "number":
            found[place] = found[place]._replace(kind="word")
    money = (place for place in {0, 1, len(found) - 1} if found[place : place + 1] and _is_currency(found[place]))
    sign = next(money, None)
    measure = Measure(unit=None if sign is None else read_unit([found.pop(sign)]))
    percent = bool(found) and _is(found[-1], "%")
    parser = Parser(found[: len(found) - percent])
    try:
        node = parser.expression()
    except Unreadable:
        return None
    rest = list(parser.tokens[parser.place :])
    while rest and rest[0].text.lower().removesuffix("s") in MULTIPLES:
        node = ex.times(node, ex.number(MULTIPLES[rest.pop(0).text.lower().removesuffix("s")]))
    said = _text(rest).lower()
    for words_ in ("percent", "percentage", "pct", "per cent", "%"):
        if said == words_ or said.startswith(f"{words_} "):
            percent, rest = True, rest[len(words_.split()) :]
    if rest and rest[0].text in ("degrees", "degree", "deg"):
        node, rest = ex.call("degree", node), rest[1:]
    scale = {"c": "celsius", "f": "fahrenheit"}.get(rest[0].text.lower(), rest[0].text.lower()) if rest else ""
    if node.op == "degree" and scale in ("celsius", "fahrenheit"):
        node, rest = node.args[0], [rest[0]._replace(text=scale), *rest[1:]]
    return _with_rest(node, measure._replace(percent=percent), rest)


def _with_rest(node: Node, measure: Measure, rest: list[Token]) -> Node | None:
    """An expression with the unit, the things or the words that follow it."""
    following = [place for place, token in enumerate(rest) if place and token.kind == "number" and token.space]
    if following and not _is(rest[following[0] - 1], "^", "{"):
        return _compound(node, read_unit(rest[: following[0]]), _quantity(rest[following[0] :]))
    rest = [token for token in rest if not _is(token, "(", ")")]
    end = (
        next((end for end in range(len(rest), 0, -1) if read_unit(rest[:end]) is not None), 0)
        if measure.unit is None
        else 0
    )
    measure = measure._replace(unit=read_unit(rest[:end])) if end else measure
    if any(token.kind not in ("word", "letter") and not _is(token, ".", "-") for token in rest[end:]):
        return None
    said = tuple(
        _CLOSING.sub("", " ".join(token.text.lower() for token in rest[end:] if token.kind != "symbol")).split()
    )
    if said[:2] in (("for", "all"), ("for", "any"), ("for", "every")):  # f(x) = 2x for all x
        said = ()
    if said and measure.unit is None and counts(said):
        return measured(node, measure._replace(thing=said[-1]))
    if (
        said
        and measure.unit is not None
        and (said[0] in ("of", "in", "each") or counts(said))
        and not set(said) & set(_HEDGES.split())
    ):
        return measured(node, measure)  # 5 liters of water
    return measured(node, measure._replace(words=words(" ".join(said)).value if said else ()))


def _compound(node: Node, unit: Unit | None, second: Node | None) -> Node | None:
    """`2 hours 30 minutes`: a quantity and one in a smaller unit of the same dimension."""
    smaller = second.value.unit if second is not None and second.op == "measure" and not second.value.words else None
    if second is None or unit is None or smaller is None or smaller.dimension != unit.dimension:
        return None
    share = smaller.factor / unit.factor
    return measured(ex.plus(node, ex.times(second.args[0], ex.number(share))), Measure(unit)) if share < 1 else None


def _is_currency(token: Token) -> bool:
    return _is(token, *CURRENCY) or token.text.lower() in ("usd", "eur", "gbp", "inr", "rs")


def in_letters(found: Sequence[Token]) -> Node | None:
    """A number whose unit is written in bare letters, `5m`, `3 m/s`: for answers to a reference without names."""
    for place in range(1, len(found)):
        bare = [token.text for token in found[place:] if token.kind == "letter"]
        unit = read_unit(found[place:]) if set(bare) <= _UNIT_LETTERS and found[place].text != "*" else None
        node = _quantity(found[:place]) if unit is not None else None
        if node is not None and not ex.names_in(node) and node.op != "measure":
            return measured(node, Measure(unit))
    return None


def matrix_of(node: Node) -> Node | None:
    """The matrix that a matrix, a sum of matrices, or a number times one is; None for anything else."""
    if node.op == "matrix" or node.op not in ("sum", "product") or not any(map(matrix_of, node.args)):
        return node if node.op == "matrix" else None
    parts = list(map(matrix_of, node.args))
    matrices = [part.args for part in parts if part is not None]
    rest = [arg for arg, part in zip(node.args, parts, strict=True) if part is None]
    shapes = {tuple(len(row.args) for row in rows) for rows in matrices}
    if len(shapes) > 1 or (rest if node.op == "sum" else len(matrices) > 1):
        raise Unreadable("matrices that do not fit")
    combine = ex.plus if node.op == "sum" else lambda *entry: ex.times(*rest, *entry)
    rows = (
        tuple(combine(*entries) for entries in zip(*(row.args for row in each), strict=True))
        for each in zip(*matrices, strict=True)
    )
    return Node("matrix", tuple(Node("row", row) for row in rows))
