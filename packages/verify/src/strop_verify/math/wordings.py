r"""Answers that are no expressions: words, names of angles, times, dates, quotients with remainder, digits."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import date
from fractions import Fraction

from strop_verify.math import expressions as ex
from strop_verify.math.expressions import Node, Token, TooMuch
from strop_verify.math.units import MULTIPLES, counted
from strop_verify.words import COPULAS, HEDGES, WORDS, by_word

MOST_PARTS = 512
OPENERS, _CLOSERS = ("(", "[", "{", "⦃"), (")", "]", "}", "⦄")
_SAID_FIRST = "approximately approx roughly therefore thus hence so exactly"
_LEADS = frozenset((*_SAID_FIRST.split(), *_SAID_FIRST.title().split()))  # not SO, which is a formula
_BEFORE, _AFTER = (",", ";", ":", ".", "\\\\", "≈", "=", "⇒", "→"), (".", ",", ";", ":", "\\\\", "$")


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
        first, last = found[0], found[-1]
        if last.text in _AFTER and last.kind == "symbol":
            found.pop()
        elif (first.text in _BEFORE and first.kind == "symbol") or first.text in _LEADS:
            found.pop(0)
        elif first.text == "{" and first.kind == "symbol" and closing_place(found) == len(found) - 1:
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
    """Where the bracket at the beginning is closed, by a bracket of any kind."""
    depth = 0
    for place, token in enumerate(found):
        depth += depth_of(token)
        if depth == 0:
            return place
    return len(found)


def split_at(found: Sequence[Token], *separators: str) -> tuple[list[list[Token]], tuple[str, ...]]:
    """The parts between symbols, or words, outside all brackets, and those that are there."""
    here = [token.kind in ("symbol", "word") and token.text.lower() in separators for token in found]
    if True not in here:
        return [list(found)], ()
    parts: list[list[Token]] = [[]]
    there = []
    depth = bars = 0
    for token, separates in zip(found, here, strict=True):
        depth += depth_of(token)
        bars ^= is_symbol(token, "|")
        if depth == 0 and not bars and separates:
            parts.append([])
            there.append(token.text)
        else:
            parts[-1].append(token)
    if len(parts) > MOST_PARTS:
        raise TooMuch(f"{len(parts)} members")
    return parts, tuple(there)


def pieces_of(found: Sequence[Token], *separators: str) -> list[list[Token]]:
    """The parts between symbols, or words, that are not empty."""
    return [part for each in split_at(found, *separators)[0] if (part := trimmed(each))]


_SAYS = re.compile("[^不非没未]+[是为為は]")  # 最大值为
_MEANINGS: dict[str, str] = by_word("meanings", ",")
NO_VALUE = (("none",), ("does", "not", "exist"), ("∞",), ("ℝ",))  # what words say of solutions, limits and numbers
_NUMBERS = by_word("numbers")
_TENS = {word: number for word, number in _NUMBERS.items() if number > 19}
_SPELLED: dict[str, int | Fraction] = {"a": 1, "half": Fraction(1, 2), **_NUMBERS}
_PARTS = "half/halve third quarter/fourth fifth sixth seventh eighth ninth tenth".split()  # noqa: SIM905
_SHARES = {each + s: 2 + at for at, names in enumerate(_PARTS) for each in names.split("/") for s in ("", "s")}
_SPOKEN = {*("and", "零", "分", "之", "の"), *_SPELLED, *_SHARES, *MULTIPLES}
_EXISTS = re.compile(r"^there (?:is|are) (?=no )|(?<=solution|olutions|al roots) exists?$")
_NONE = re.compile(r"no such \w+(?: \w)?(?: exists?)?|none exists?|no (?:values? of )?[a-z]")
_ENDING = re.compile(r"(?<=\w{5})(?:e[sd]?|ing|ent|ence)$|(?<=\w\w)wards?$")  # diverges, divergent
_OF_ALL = re.compile(r"(?:(?:set|of|the|all|any|every|each) )+((.*?)(?: [a-z])?)")  # the set of all … n
_CLOCK = re.compile(r"(\d{1,2})(?: : (\d\d))?(?: : (\d\d))?(?: (a|p)(?: \.)? ?m(?: \.)?)?", re.IGNORECASE)


def words(text: str) -> Node:
    """Words, synonyms made one, also behind "the set of all"."""
    text = _STATED.sub("", text.lower())
    text = _EXISTS.sub("", re.sub(r"^(?:directed |to the |towards? the |the |an? |it |on |due )", "", text))
    text = "none" if _NONE.fullmatch(text) else text
    every = _OF_ALL.fullmatch(text)
    text = every[1 + (every[2] in _MEANINGS)] if every is not None else text
    text = next((name for name in (*_DAYS, *_MONTHS) if text[2:] and name.startswith(text)), text)
    return Node("words", (), tuple(_ENDING.sub("", each) for each in _MEANINGS.get(text, text).split()))


def unlabelled(found: Sequence[Token]) -> list[Token]:
    """Without words in front that only say that the answer comes: `The answer is`, `Answer:`, `Area is`."""
    end = next((place for place, token in enumerate(found) if token.kind not in ("word", "letter")), len(found))
    noun = len(found) == 2 and found[0].text.islower() and found[0].text not in ("angle", "triangle", *HEDGES)
    if noun and found[0].kind == "word" and found[1].kind == "letter" and found[1].text.isupper():  # point E
        return list(found[1:])
    if not end or found[0].kind != "word":
        return list(found)
    said = [token.text.lower() for token in found[:end]]
    hedged = [place for place, word in enumerate(said) if word in HEDGES]
    if end < len(found) and is_symbol(found[end], ":") and not hedged and not labelled(found):
        return list(found[end + 1 :])
    says = (place for place, word in enumerate(said) if word in COPULAS or _SAYS.fullmatch(word))
    last = max((place for place in says if place < len(found) - 1), default=None)
    return list(found) if last is None or any(place <= last for place in hedged) else list(found[last + 1 :])


def labelled(found: Sequence[Token]) -> list[list[list[Token]]]:
    """Several values with their names in words before a colon, `Alice: 5, Bob: 3`; none where that is not all."""
    parts = [split_at(piece, ":")[0] for piece in pieces_of(found, ",", ";", "and")] if ":" in text_of(found) else []
    names = [token.kind for part in parts for token in part[0]]
    named = len(parts) > 1 and set(names) <= {"word", "letter"} and all(len(part) == 2 and part[1] for part in parts)
    return parts if named else []


_STATED = re.compile(rf"(?<=\w)(?:{WORDS['states']})$")  # 偽である
_TRUTHS = {word: value == "true" for word, value in by_word("truth").items()}


def truth(found: Sequence[Token]) -> bool | None:
    """The truth value that an answer begins with, where the rest is a reason: `Yes, it is prime`; else None."""
    said = _STATED.sub("", found[0].text.lower()) if found else ""
    if said not in _TRUTHS or (found[1:] and not is_symbol(found[1], *",.;:-(")):
        return None
    value = _TRUTHS[said]
    same = {word for word in _TRUTHS if _TRUTHS[word] is value} | (set() if value else {"not"})
    rest = {token.text.lower() for token in found[2:]} - (same - {said})
    clause = len(found) > 3 or not rest  # yes, odd: two answers
    return value if clause and not rest & (HEDGES | _TRUTHS.keys()) else None


def repeats(reference: Sequence[Token], found: Sequence[Token], question: str) -> bool:
    """Whether an answer is the reference and then words of the question: `Bob has a winning strategy`."""
    size, said = len(reference), [token.text.lower() for token in found]
    apart = HEDGES.union(("and", "or")).intersection(said) or len(said) == size
    asked = re.sub(r"[\W_]+", " ", f" {question.lower()} ")
    return text_of(reference).lower().split() == said[:size] and not apart and f" {' '.join(said[size:])} " in asked


def as_words(found: Sequence[Token]) -> Node | None:
    """The words that all of an answer are; small numbers in words are numbers."""
    inner = ("-", "′", ".")  # well-known, Tom's, a.m.
    if any(token.kind not in ("word", "letter") and not is_symbol(token, *inner) for token in found):
        return None
    if is_symbol(found[0], *inner) or is_symbol(found[-1], "-", "′"):
        return None
    text = " ".join(token.text for token in found if token.kind != "symbol").lower()
    if not any(each.kind == "word" and (each.text[1:] or unicodedata.category(each.text) == "Lo") for each in found):
        return None
    first, *rest = in_digits(found)
    if first.kind == "number" and (not rest or counted([token.text for token in rest]) is not None):  # twelve faces
        return None if rest else ex.number(Fraction(first.text))
    if {"and", "or"}.intersection(text.split()):
        return None
    return None if first.kind == "symbol" else words(text)  # minus five


def in_digits(found: Sequence[Token]) -> list[Token]:
    """An answer with the number that it begins with in digits, where it has it in words: `two and a half hours`."""
    said = [token.text.lower() for token in found[:20]] if found and found[0].text.isalpha() else []
    sign = {"minus": "-", "negative": "-", "positive": "+"}.get(said[0]) if said[1:] else None
    if sign is not None and (rest := in_digits(found[1:]))[0].kind != "word":
        return [Token("symbol", sign), *rest]
    known = [word in _SPOKEN or (word > "\u3040" and _SPOKEN.issuperset(word)) for word in said]  # 三十五
    end = next((at for at, word in enumerate(said) if not known[at] and (not at or word != "-")), len(said))
    for at in range(end, said[:1] == ["a"], -1):
        text = " ".join(" ".join(word) if word > "\u3040" else word for word in said[:at])
        number = _spoken(text.replace(" - ", " "))
        if number is not None:
            return [Token("number", str(number)), *found[at:]]
    return list(found)


def _spoken(text: str) -> Fraction | None:
    """The number that words say: `twenty one`, `two hundred and five`, `three quarters`, `two and a half`."""
    if text in _SPELLED:
        return Fraction(_SPELLED[text])
    bottom, _, top = re.sub(" 分 [之の] ", "/", text).partition("/")
    if top:  # 六分之一
        parts = _spoken(top), _spoken(bottom)
        return parts[0] / parts[1] if all(parts) else None  # type: ignore[operator]
    before, _, last = text.rpartition(" ")
    if last in _SHARES and before:
        whole, _, top = before.rpartition("and ")
        count, more = _spoken(top), _spoken(whole.strip()) if whole else Fraction(0)
        return None if count is None or more is None or count >= _SHARES[last] else more + count / _SHARES[last]
    for word, size in (*MULTIPLES.items(), *_TENS.items()):
        before, found, after = (part.strip() for part in f" {text} ".partition(f" {word} "))
        if found:
            single = not before and (word in _TENS or word > "\u3040")
            count = Fraction(1) if single else _spoken(before) if word in MULTIPLES else None
            more = _spoken(after.removeprefix("and ").removeprefix("零 ")) if after else Fraction(0)
            least = size if word in MULTIPLES else 10
            return None if count is None or more is None or more >= least else count * size + more
    return None


_PLAIN, _APART = ("number", "letter", "word"), (*",.:-/_(){}",)  # of times, dates and digits in a base


def special_kind(found: Sequence[Token]) -> Node | None:
    """Names of geometry, times, digits in a base."""
    shape = found[0].text if found[0].text in ("angle", "triangle") else ""
    letters = [token for token in found[1:] if not is_symbol(token, "{", "}")] if shape else found
    named = bool(letters) and all(token.kind in ("letter", "word") and token.text.isupper() for token in letters)
    text = "".join(token.text for token in letters)
    if named and (shape or (len(text) > 1 and not any(token.space for token in found[1:]))):
        if shape == "angle" and len(text) == 3:  # ABC and CBA are one angle
            text = min(text, text[::-1])
        return Node("title", (), f"{shape} {text}".strip())
    apart = len(found) > 1 and all(each.kind in _PLAIN or each.text in _APART for each in found)
    return _clock(found) or _date(found) or _based(found) if apart else None


_MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
_DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()  # noqa: SIM905


def _date(found: Sequence[Token]) -> Node | None:
    """A day of the calendar: `May 4, 2024`, `the 4th of May`, `2024-05-04`; a weekday before it must be right."""
    said = [token.text.lower() for token in found if token.text not in (*",.{}", "of", "the", "on")]
    weekday = said.pop(0) if said[:1] and said[0] in _DAYS else None
    numbers = [each for each in said if each.isdigit()]
    longer = [each for each in said if each[2:].isalpha()]
    months = [1 + place for each in longer for place, name in enumerate(_MONTHS) if name.startswith(each)]
    if re.fullmatch(r"\d{4} ([-/]) \d\d \1 \d\d", " ".join(said)):
        year, month, number = map(int, numbers)
    elif len(months) == 1 and [len(each) for each in numbers[1:]] in ([], [4]) and len(said) == 1 + len(numbers) < 4:
        month, number, year = months[0], int((numbers or ["0"])[0]), int((numbers[1:] or ["0"])[0])
    else:
        return None
    try:
        day = date(year or 2000, month, number)
    except ValueError:
        return None
    return None if weekday and year and _DAYS[day.weekday()] != weekday else Node("date", (), (month, number, year))


def _clock(found: Sequence[Token]) -> Node | None:
    """The minute of the day, with the seconds as a part of it; without am or pm as it stands."""
    text = text_of([token for token in found if not is_symbol(token, "{", "}")]).lower()
    text = re.sub(r"\.(?=\d\d uhr$)", " : ", text).removesuffix(" uhr")
    match = _CLOCK.fullmatch(text)
    padded = " 0" in f" {text}"  # no part of a ratio begins with 0
    if match is None or (match[4] is None and (match[2] is None or (match[3] is not None and not padded))):
        return None  # 5:12:13 is a ratio
    hour, minute, second = (int(match[place] or 0) for place in (1, 2, 3))
    half = (match[4] or "").lower()
    if hour > 24 or minute > 59 or second > 59 or (half and not 1 <= hour <= 12):
        return None
    return Node("clock", (), 60 * (hour % 12 + 12 * (half == "p") if half else hour) + minute + Fraction(second, 60))


def _based(found: Sequence[Token]) -> Node | None:
    """Digits and their base: `2516_8`."""
    texts = [token.text for token in found if not is_symbol(token, "{", "}", "(", ")") and token.text != "in"]
    texts[-2:-1] = ["_" if text == "base" else text for text in texts[-2:-1]]  # 1101 (base 2)
    if len(texts) < 3 or texts[-2] != "_":
        return None
    digits, said = "".join(texts[:-2]).upper(), str(_NUMBERS.get(texts[-1], texts[-1]))
    if said not in map(str, range(2, 37)):
        return None
    base = int(said)
    begins = digits[0].isdigit() or (base == 16 and len(digits) > 1)
    plain = digits.isalnum() and digits.isascii() and begins and len(digits) < 200
    if not plain or any(int(digit, 36) >= base for digit in digits):
        return None
    return Node("digits", (), (digits.lstrip("0") or "0", base))
