r"""Answers by kind: what a text is (a quantity, a word, a time, an interval …) is decided before it is compared.

One recursive reader over the tokens: `;`, then "or", "and" and `,`, then relations, then single answers. The kinds
are those of `expressions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from strop_verify.choices import in_capitals, named
from strop_verify.math import expressions as ex
from strop_verify.math import wordings
from strop_verify.math.expressions import Node, Token, Unreadable, label
from strop_verify.math.formulas import formula
from strop_verify.math.latex import tokens
from strop_verify.math.parser import Parser, matrix_of, number_of
from strop_verify.math.propositions import proposition
from strop_verify.math.quantities import UNIT_LETTERS, quantity_of, upright
from strop_verify.math.units import table
from strop_verify.math.wordings import as_words, depth_of, is_symbol, pieces_of, split_at, text_of, trimmed, words
from strop_verify.words import CONJUNCTIONS, HEDGES

_LIMITS = ("∈", "<", ">", "≤", "≥", "≠")
_INTEGERS = ("positive", "nonnegative", "non-negative", "natural", "negative", "odd", "even", "nonzero")
_RANGES: dict[tuple[Node, ...], str] = {
    (ex.ZERO, ex.ONE): "nonnegative", (ex.ONE, ex.number(2)): "positive", (ex.ZERO, ex.call("±", ex.ONE)): "ℤ",
}  # fmt: skip
_SUBSETS = {"^+": "positive", "_+": "positive", "_>0": "positive", "_≥0": "nonnegative", "_≥1": "positive"}


def index_of(piece: Sequence[Token]) -> tuple[str, Node] | None:
    r"""k, and which integers it is, where a piece says `k \in \mathbb{Z}` or "where k is an integer"."""
    said = [token.text.lower() for token in piece]
    no_name = "ℤℕℝ" if "∈" in said else "aℤℕℝ"  # the article
    letters = (each.text for each in piece if len(each.text) == 1 and each.text.isalpha() and each.text not in no_name)
    names = [*letters, *(each.text for each in piece if each.kind == "letter" and len(each.text) > 1)]
    free = {"constant", "constants", "real", "reals", "ℝ"}.intersection(said)
    which = "ℤ" if {"integer", "integers"}.intersection(said) else "ℝ" if free else ""
    if "∈" in said:
        place = said.index("∈") + 1
        kind, rest = said[place] if place < len(said) else "", [each for each in piece[place + 1 :] if each.text != ")"]
        which = (subset_of(rest) if rest else kind) if kind == "ℤ" else kind if kind in ("ℕ", "ℝ") and not rest else ""
    else:  # for integers n ≥ 2
        which += "".join(token.text for token in piece if which and (token.kind == "number" or token.text in "<>≤≥≠="))
    if set(said) & HEDGES:
        return None
    which = next((word for word in said if word in _INTEGERS), which)
    return (names[0], words(which)) if which and (len(names) == 1 or (names and free)) else None


def begins_condition(found: Sequence[Token], place: int) -> bool:
    r"""Whether "where …", "for …" or, in parentheses, `k \in …` begins at a place and goes on to the end."""
    if found[place].text != "(":
        with_index = found[place].text == "with" and index_of(found[place:]) is not None
        return with_index or (found[place].kind == "word" and found[place].text in ("for", "where", "if", "when"))
    rest = found[place:]
    return wordings.closing_place(rest) == len(rest) - 1 and any(is_symbol(token, *_LIMITS) for token in rest)


def subset_of(found: Sequence[Token]) -> str:
    """Which numbers of a set an index of it says: `_{>0}`, `^+`."""
    return _SUBSETS.get("".join(token.text for token in found if token.text not in ("{", "}", "(", ")")), "")


class Reading(NamedTuple):
    """An answer as it was read, and what from."""

    answer: Node
    tokens: tuple[Token, ...]
    text: str  # with the same spacing for the same tokens

    @property
    def letters(self) -> str | None:
        """The options that it names, with commas where they are listed; None where it is no choice."""
        return named(self.text)

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        op = self.answer.op
        return "choice" if self.letters else op if op in ex.KINDS or not self.answer.args else "expression"


_RELATIONS = ("=", "≠", "<", ">", "≤", "≥", "≈", "≡", "∈", "∉", "⊂", "⊆", "⊃", "⊇", "∥", "⊥", "≅")
_MODULO = ("pmod", "mod", "modulo")
_STRUCTURE = frozenset((*_RELATIONS, *_MODULO, *",;:∪∩"))  # without these, and words, an answer is single
_CONDITIONS = ("where", "for", "if", "when", "with", "see", "but", "which", "maybe")


@lru_cache(maxsize=2048)  # the samples of a group give the same few answers again and again
def read(text: str) -> Reading:
    """Read an answer; raises `Unreadable` where it is of no kind, `TooMuch` where it is too large."""
    return read_tokens(trimmed(tokens(text)))


def read_tokens(found: list[Token]) -> Reading:
    """Read an answer from its tokens."""
    pointed = _pointed(found, any_whole=True)
    measure = quantity_of(split_at(pointed := upright(pointed, table()), "=")[0][-1]) if pointed else None
    if measure is not None and measure.op == "measure" and not measure.value.words and not measure.value.thing:
        found = pointed  # 2,5 m
    try:
        answer = _answer(found)
    except Unreadable:
        if found != (measured := upright(found, UNIT_LETTERS)):  # 1 h 52 min
            return read_tokens(measured)
        text, drawn = text_of(found), formula(found)
        if not (drawn or named(in_capitals(text)) or wordings.truth(found) is not None):
            raise
        answer = drawn or words(named(text) or text)
    return Reading(answer, tuple(found), text_of(found))


def is_region(answer: Node) -> bool:
    """Whether an answer is a set of real numbers that intervals or inequalities describe."""
    if answer.op == "relation":
        within = answer.value in (("∈",), ("∉",)) and is_region(answer.args[1])
        return within or set(answer.value) <= {"<", ">", "≤", "≥", "≠"}
    if answer.op in ("list", "set"):  # x > 1, x ≠ 4
        return len(ex.names_in(answer)) == 1 and all(part.op == "relation" and is_region(part) for part in answer.args)
    return answer.op in ("interval", "∪", "∩", "∖")


def _answer(found: Sequence[Token]) -> Node:
    found = wordings.unlabelled(trimmed(found))
    if not found:
        raise Unreadable("nothing to read")
    texts = {token.text for token in found}
    beyond = split_at(found, "except")[0] if "except" in texts else []
    if len(beyond) == 2 and beyond[1] and words(text_of(beyond[0])) == words("ℝ"):  # all real numbers except 2 and 3
        rest = _listed(beyond[1][beyond[1][0].text == "for" :])
        return Node("∖", (words("ℝ"), Node("set", rest.args if rest.op in ("list", "set") else (rest,))))
    logic = not texts.isdisjoint(("→", "⇒", "↔", "neg", "lnot", "¬", "⊕"))
    inner = _single if texts.isdisjoint(_STRUCTURE) and all(token.kind != "word" for token in found) else _groups
    return as_words(found) or wordings.special_kind(found) or (proposition(found) if logic else None) or inner(found)


def _groups(found: Sequence[Token]) -> Node:
    return _joined("set", [_listed(group) for group in pieces_of(wordings.in_digits(found), ";")])


def _listed(found: Sequence[Token]) -> Node:
    residues = _residues(found)
    if residues is not None:
        return residues
    found = [each if each.kind == "letter" else each._replace(text=CONJUNCTIONS.get(each.text, each.text))
             for each in found]  # fmt: skip
    if named := wordings.labelled(found):
        sides = ((words(text_of(name)), _alone(value)) for name, value in named)
        return _joined("list", [Node("relation", each, ("=",)) for each in sides])
    inequality = any(is_symbol(token, "<", ">", "≤", "≥") for token in found)  # x ≤ -3 ∪ x ≥ 5
    together = [token for token in found if token.text not in ("and", ",")]
    compound = quantity_of(together) if len(together) < len(found) and found[-1].kind == "word" else None
    if compound is not None and compound.op == "measure" and compound.value.unit is not None:
        return compound  # 2 hours and 30 minutes
    for word, op in (("or", "∪"), ("and", "∩")):
        parts = pieces_of(found, word, op) if inequality else pieces_of(found, word)
        if len(parts) > 1:
            return _worded(list(map(_listed, parts)), word, op)
    pieces = pieces_of(found, ",")
    if not pieces:
        raise Unreadable("nothing to read")
    if len(pieces) > 1 and all(any(begins_condition(each, at) for at in range(1, len(each))) for each in pieces):
        return _joined("list", list(map(_listed, pieces)))
    index = index_of(pieces[-1]) if len(pieces) > 1 else None
    if index is not None:
        while index[1] == words("ℝ") and len(pieces) > 2 and [token.kind for token in pieces[-2]][:1:] == ["letter"]:
            pieces.pop()  # c_1, c_2 ∈ ℝ
        rest = [token for piece in pieces[:-1] for token in (Token("symbol", ","), *piece)]
        return _family(_listed(rest[1:]), *index)
    depths = list(accumulate(map(depth_of, found), initial=0))
    said = next((at for at in range(1, len(found)) if not depths[at] and begins_condition(found, at)), None)
    index = index_of(found[said:]) if said is not None else None
    if index is not None:  # 7m + 5 for integers m
        return _family(_listed(found[:said]), *index)
    if said is not None:
        closed = found[said].text == "("
        return _under(_listed(found[:said]), _listed(found[said + 1 : len(found) - closed]))
    found_parts = list(map(_related, pieces))
    limits = [part for part in found_parts[1:] if part.op == "relation" and is_region(part)]
    own = found_parts[0].op == "tuple" and all(ex.names_in(each) <= ex.names_in(found_parts[0]) for each in limits)
    stated = own or found_parts[0].op not in ("relation", "name", *ex.KINDS)
    if limits and len(limits) == len(found_parts) - 1 and stated:
        return _under(found_parts[0], limits[0] if len(limits) == 1 else Node("list", tuple(limits)))
    if any(
        part.op == "relation" and "∈" in part.value or (part.op == "words" and part.value[0] in _CONDITIONS)
        for part in found_parts[1:]
    ):
        raise Unreadable("a condition")
    at = max((at for at, part in enumerate(found_parts) if part.op == "relation"), default=0)
    last, unequal = found_parts[at], found_parts[at][::2] == ("relation", ("≠",))
    ranges = 0 < at < len(found_parts) - 1 and any(part == label(last) for part in ex.parts(found_parts[0]))
    if (ranges or not at) and (label(last) or unequal):  # x = 1, 2; e^{ik}, k = 0, 1, 2
        sign = ("≠" if unequal else "=",)
        found_parts[at + 1 :] = [Node("relation", (last.args[0], part), sign) for part in found_parts[at + 1 :]]
    if ranges:
        return _under(_joined("list", found_parts[:at]), Node("list", tuple(found_parts[at:])))
    return _joined("list", found_parts)


def _worded(parts: list[Node], word: str, op: str) -> Node:
    """Answers between which a word stands: regions by their operation, others as a set, a choice where they differ."""
    if all(map(is_region, parts)) and (op == "∪" or len(set(map(ex.names_in, parts))) == 1):
        return Node(op, tuple(parts))
    labels = {
        each.op.removeprefix("apply ") if each.op.startswith("apply ") else each.value
        for part in parts
        if (each := label(part)) is not None
    }
    choice = any(part.op in ("words", "title", "name") for part in parts) or len(labels) > 1
    joined = _joined("set", parts)
    return joined._replace(op="set", value="or") if word == "or" and choice else joined


def _residues(found: Sequence[Token]) -> Node | None:
    r"""Several residues of one modulus, `n \equiv 0, 1 \pmod 4`, `1 \text{ or } 3 \pmod 8`."""
    places = [place for place, token in enumerate(found) if token.text in _MODULO]
    if len(places) != 1:
        return None
    joined = [Token("symbol", ",") if token.text in ("or", "and") else token for token in found]
    one, several = len(pieces_of(joined[places[0] :], ",")) == 1, len(pieces_of(joined[: places[0]], ",")) > 1
    return _residue(joined) if one and several else None


def _family(body: Node, index: str, numbers: Node) -> Node:
    """An answer for each of some numbers; one without the name is not, unless it runs over all real numbers."""
    if index not in ex.names_in(body) and numbers != words("ℝ"):
        raise Unreadable("a condition")
    return Node("family", (body, numbers), index)


def _under(body: Node, condition: Node) -> Node:
    """An answer with the values of its names for which it holds."""
    limits = condition.args if condition.op in ("list", "set") else (condition,)  # a, b > 0
    if len(limits) > 1 and len(indices := set(map(label, limits))) == 1 and indices <= set(ex.parts(body)):
        if limits[-1].args[-1].op == "…":  # k = 0, ±1, ±2, …
            which = _RANGES.get(tuple(each.args[-1] for each in limits[:2]), "")
            return _family(body, str(limits[0].args[0]), words(which))
        return _joined("set", [ex.replaced(body, *each.args) for each in limits])  # k = 0, 1, 2
    named = ex.names_in(condition) and ex.names_in(condition) <= ex.names_in(body)
    if not named or not is_region(limits[-1]) or any(each.op != "name" and not is_region(each) for each in limits):
        raise Unreadable("a condition")
    both = is_region(body) and is_region(condition) and ex.names_in(body) == ex.names_in(condition)
    return Node("∩" if both else "where", (body, condition))


def _joined(how: str, found: list[Node]) -> Node:
    """Parts as one answer; lists joined by words become one, and what has one name is a set: `x = 1, x = 2`."""
    if len(found) == 1:
        return found[0]
    if all(part.op == "where" for part in found):  # x if x ≥ 0, -x if x < 0
        return Node("cases", tuple(Node("case", part.args) for part in found))
    if how == "set":
        found = [part for each in found for part in (each.args if each.op in ("list", "set") else (each,))]
    if all(part.op == "residue" and part.args[1:] == found[0].args[1:] for part in found):
        return Node("residue", (Node("list", tuple(part.args[0] for part in found)), *found[0].args[1:]))
    names = [label(part) for part in found]
    assigned = _assigned(found, names)
    if assigned is not None:
        return assigned
    if None not in names and len(set(names)) in (1, len(names)):  # values of one name; a value of each of several
        how = "set" if len(set(names)) == 1 else "list"
    return Node(how, tuple(found))


def _assigned(found: list[Node], names: list[Node | None]) -> Node | None:
    """Values of several names, given more than once: `p = 5, q = 2; p = 7, q = 2` as a set of tuples; None otherwise.

    A tuple begins where a name comes again, and each of them has the same names.
    """
    groups: list[dict[Node, Node]] = [{}]
    for name, part in zip(names, found, strict=True):
        if name is None:
            return None
        if name in groups[-1]:
            groups.append({})
        groups[-1][name] = part
    if len(groups) == 1 or len(groups[0]) == 1 or any(group.keys() != groups[0].keys() for group in groups):
        return None
    return Node("set", tuple(Node("tuple", tuple(group.values())) for group in groups))


def _related(found: Sequence[Token]) -> Node:
    found = wordings.unlabelled(trimmed(found))
    residue = _residue(found)
    if residue is not None:
        return residue
    sides, ops = split_at(found, *_RELATIONS)
    return Node("relation", tuple(map(_alone, sides)), ops) if ops else _alone(found)


def _residue(found: Sequence[Token]) -> Node | None:
    r"""`x \equiv 5 \pmod{7}`, `5 \pmod 7`, `5 (mod 7)`; not `17 \bmod 5 = 2`."""
    place = next((place for place, token in enumerate(found) if place and token.text in _MODULO), None)
    if place is None:
        return None
    before = [token for token in found[: place - is_symbol(found[place - 1], "(")] if not is_symbol(token, ",")]
    named, ops = split_at(before, "≡")
    modulus = [token for token in found[place + 1 :] if not is_symbol(token, "(", ")", "{", "}")]
    marked = found[place].text == "pmod" or is_symbol(found[place - 1], "(") or bool(ops)
    if not marked or not modulus or any(is_symbol(token, *_RELATIONS) for token in modulus):
        return None
    residue = found[len(before) - len(named[-1]) : place - is_symbol(found[place - 1], "(")]
    left = [Parser(side).whole() for side in named[:-1] if side]
    left = [side for side in left if side.op != "name" and ex.names_in(side)]  # 2x, which is no value of x
    return Node("residue", (_listed(residue), Parser(modulus).whole(), *left))


def _alone(found: Sequence[Token]) -> Node:
    found = trimmed(found)
    if not found:
        raise Unreadable("nothing to read")
    return as_words(found) or wordings.special_kind(found) or _single(found)


def _single(found: Sequence[Token]) -> Node:
    """One answer that is no words."""
    if len(found) == 1 and found[0].kind == "number":
        return number_of(found[0].text)
    if len(found) == 1 and is_symbol(found[0], "∅", "∄", "…", *"ℝℤℕℚℂ"):
        return Node("…") if found[0].text == "…" else words(found[0].text)
    if is_symbol(found[0], "ℝ") and len(found) > 1 and (which := subset_of(found[1:])):
        return words(f"{which} real numbers")
    texts = {token.text for token in found}
    for op in ("∪", "∖", "∩"):
        parts, ops = split_at(found, op) if op in texts else ([], ())
        if ops:
            return Node(op, tuple(map(_alone, parts)))
    if found[0].text == "begin cases":
        return _cases(found[1:-1])
    enclosed = _enclosed(found) if found[0].kind == "symbol" else None
    if enclosed is not None:
        return enclosed
    ratio, colons = split_at(found, ":", "to")
    if colons and not any(part and part[0].kind == "word" for part in ratio[1:]):  # not 5 m/s to the left
        nodes = tuple(Parser(part).whole() for part in ratio)
        return ex.over(*nodes) if len(nodes) == 2 else Node("ratio", nodes)
    runs = (each._replace(kind="letter", text="#k") if each.text == "ℤ" else each for each in found)
    if "ℤ" in texts and (members := quantity_of([*runs])) is not None and members.op not in ex.KINDS:  # 6 + 7ℤ
        return Node("family", (members, words("ℤ")), "#k")
    quantity = quantity_of(found)
    if quantity is None:
        raise Unreadable(f"cannot be read: {text_of(found)[:60]}")
    return matrix_of(quantity) or quantity


def _enclosed(found: Sequence[Token]) -> Node | None:
    """Intervals, tuples and sets: what one pair of brackets encloses; `]a, b[` is an interval, too."""
    first, last, inner = found[0], found[-1], found[1:-1]
    opens, closes = is_symbol(first, "(", "["), is_symbol(last, "[", "]")
    turned = (is_symbol(first, "]") and closes) or (opens and is_symbol(last, "["))
    if not turned and not (is_symbol(first, *wordings.OPENERS) and wordings.closing_place(found) == len(found) - 1):
        return None
    if is_symbol(first, "⦃"):
        return _set(inner)
    parts = pieces_of(inner, ",", ";")
    if len(parts) > 1 and is_symbol(first, "(") and all(any(is_symbol(t, "=") for t in part) for part in parts):
        return Node("tuple", tuple(map(_related, parts)))  # (p = 5, q = 2)
    if len(parts) < 2:
        plain = all(token.kind in ("number", "letter", "word") or depth_of(token) for token in inner)
        return _alone(inner) if inner and plain else None
    nodes = tuple(map(_alone, parts))
    closed = (is_symbol(first, "["), is_symbol(last, "]"))
    if len(nodes) == 2 and (any(closed) or turned or any(map(ex.is_infinite, nodes))):
        return Node("interval", nodes, closed)
    return Node("list" if all(closed) else "tuple", nodes)


def _set(inner: Sequence[Token]) -> Node:
    r"""The content of `\{ \}`: members, or a condition after a bar."""
    bar = next((place for place, token in enumerate(inner) if is_symbol(token, "|", ":")), 0)
    named = any(token.kind == "letter" for token in inner[:bar])  # not 1:2
    if named and sum(is_symbol(token, "|") for token in inner) % 2 == (inner[bar].text == "|"):
        return _built(inner[:bar], inner[bar + 1 :])
    found = _groups(inner) if inner else words("∅")
    if not inner:
        return found
    single = is_symbol(inner[0], "⦃") and wordings.closing_place(inner) == len(inner) - 1  # a set in a set
    return found._replace(op="set") if found.op in ("list", "set") and not single else Node("set", (found,))


def _built(member: Sequence[Token], condition: Sequence[Token]) -> Node:
    r"""`\{x : x > 2\}` as its condition, `\{2k : k \in \mathbb{Z}\}` as a family."""
    member = trimmed(member)
    every = member and [token.text for token in condition[-4:]] == [",", member[0].text, "∈", "ℝ"]
    condition = condition[:-4] if every else condition
    if member and member[0].kind == "letter" and (len(member) == 1 or text_of(member[1:]) == "∈ ℝ"):
        return _listed(condition)
    body, index = _related(member), index_of(condition)
    if index is not None and not (body.op == "relation" and "∈" in body.value):
        return _family(body, *index)
    try:
        return Node("case", (body, _listed(condition)))
    except Unreadable:
        return Node("case", (body, words(text_of(condition))))


def _cases(inner: Sequence[Token]) -> Node:
    rows = []
    for row in pieces_of(inner, "\\\\"):
        parts = pieces_of(row, "&")
        if not any(is_symbol(token, "&") for token in inner):  # a system of equations
            return _joined("set", [_listed(each) for each in pieces_of(inner, "\\\\")])
        if len(parts) != 2:
            raise Unreadable("a case without its condition")
        silent = ("if", "for", "when", "where", "is", "are")
        condition = [token for token in parts[1] if token.text.lower() not in silent]
        try:
            read_condition = _listed(condition)
        except Unreadable:
            read_condition = words(text_of(condition))
        rows.append(Node("case", (_answer(parts[0]), read_condition)))
    return Node("cases", tuple(rows))


def with_decimal_comma(found: Sequence[Token], any_whole: bool = False) -> Node | None:
    """What an answer is with its comma as a decimal point: `0,111`; None where it may not be one."""
    try:
        return read_tokens(pointed).answer if (pointed := _pointed(found, any_whole)) else None
    except Unreadable:
        return None


def _pointed(found: Sequence[Token], any_whole: bool) -> list[Token]:
    """An answer with its comma as a decimal point; none where it may not be one.

    Before it stands a single 0, with `any_whole` any integer, and there is no other comma.
    """
    commas = [place for place, token in enumerate(found) if is_symbol(token, ",")]
    place = commas[0] if len(commas) == 1 else 0
    if not 0 < place < len(found) - 1 or any(depth_of(token) and token.text not in "{}" for token in found[:place]):
        return []
    before, comma, after = found[place - 1 : place + 2]
    digits = before.text.isdigit() and after.text.isdigit() and not comma.space and not after.space
    if not digits or (before.text != "0" and not any_whole):
        return []
    return [*found[: place - 1], Token("number", f"{before.text}.{after.text}", before.space), *found[place + 2 :]]
