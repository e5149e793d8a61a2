r"""Copies of reference answers that are wrong for sure, and copies that are right for sure, made without the verifier.

A wrong copy changes one thing: a digit, a sign, an exponent, an operator, a name, a unit, a bound, the order of a
tuple. In an expression the change is kept only where sympy, which reads both by math-verify's parser, tells the two
apart at random points to 50 digits. A right copy is rewritten by a rule that is an identity: another spelling, a
fraction expanded, terms in another order, something added and taken away again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

POINTS, DIGITS, LARGEST_GAP = 3, 50, 1e-25
RELATION = re.compile(r"(\\(?:leq?slant|geq?slant|leq?|geq?|neq?|in|approx)(?![A-Za-z])|[=<>])")
KINDS = {
    "integer": r"-?\d+|-?\d{1,3}(?:,(?:\\!\s?)?\d{3})+",
    "decimal": r"-?\d*\.\d+",
    "fraction": r"(-?)\\[dt]?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?|(-?)(\d+)/(\d+)",
    "science": r"-?\d+(?:\.\d+)?e-?\d+",
    "base": r"(\d+)_\{?(\d)\}?",
    "choice": r"\\text\{\(([A-E])\)\}",
    "word": r"\\text\{([A-Za-z]+)\}",
    "degrees": r"(-?\d+(?:\.\d+)?)\s?\^\s?\{?\\circ\}?",
    "money": r"\\\$\s?(\d[\d,\\!]*(?:\.\d+)?)",
    "percent": r"(-?\d+(?:\.\d+)?)\s?\\?%",
    "unit": r"(-?\d+(?:\.\d+)?)\s*\\(?:text|mbox|mathrm)\{\s*(inches|cm|cents)\s*\}(\^2)?",
}
WORDS = ("east", "west", "odd", "even", "ellipse", "circle", "Navin", "Evelyn", "Briana", "yes", "no")
OTHER_UNITS = ("kg", "seconds", "liters", "miles")
TURNED = {"(": "[", "[": "(", ")": "]", "]": ")"}


class Copy(NamedTuple):
    """A copy of a reference: its text, and by what rule it was made."""

    text: str
    rule: str


Make = Callable[[str, random.Random], Iterator[Copy]]


def bare(reference: str) -> str:
    """A reference without the delimiters of formulas; the members of its lists are apart."""
    text = reference.strip().rstrip(".").strip().replace(r"\quad", " ")
    text = re.sub(r"(?<!\\)\$", " ", text).strip() if "$" in text.replace(r"\$", "") else text
    return text if kind(text) == "integer" else re.sub(r"(?<=[\d)]),(?=[-\d(])", ", ", text)


def kind(text: str) -> str:
    """What a reference is, by its looks."""
    for name, pattern in KINDS.items():
        if re.fullmatch(pattern, text):
            return name
    if r"\begin{pmatrix}" in text:
        return "matrix"
    if r"\cup" in text or r"\infty" in text or (enclosed(text) and (text[0], text[-1]) != ("(", ")")):
        return "interval"
    if text.startswith(r"\{"):
        return "set"
    if RELATION.search(text):
        return "relation"
    parts = split(text)
    if len(parts) > 1:
        return "list of tuples" if enclosed(parts[0]) else "list"
    return "tuple" if enclosed(text) and len(split(inside(text))) > 1 else "expression"


def enclosed(text: str) -> bool:
    r"""Whether one pair of brackets encloses a text."""
    text = re.sub(r"\\left|\\right", "", text)
    return len(text) > 2 and text[0] in "([" and text[-1] in ")]" and balanced(text[1:-1])


def balanced(text: str) -> bool:
    """Whether every bracket of a text is closed in it, in order."""
    depth = 0
    for character in text.replace(r"\{", "(").replace(r"\}", ")"):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def inside(text: str) -> str:
    """What brackets enclose."""
    return re.sub(r"\\left|\\right", "", text).strip()[1:-1]


def split(text: str) -> list[str]:
    """The parts between commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def exact(text: str) -> Fraction | None:
    """The value of a plain number, grouping left out; None of anything else."""
    text = re.sub(r",\s?|\\!\s?", "", text).strip()
    match = re.fullmatch(r"(-?)\\[dt]?frac\s*\{?(-?\d+)\}?\s*\{?(\d+)\}?", text)
    match = match or re.fullmatch(r"(-?)(\d+)/(\d+)", text)
    if match is not None:
        return Fraction(int(match[2]), int(match[3])) * (-1 if match[1] else 1) if int(match[3]) else None
    return Fraction(text) if re.fullmatch(r"-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?", text) else None


def plain(text: str) -> str:
    """A fraction with its braces; any other number as it is."""
    match = re.fullmatch(KINDS["fraction"], text)
    if match is None:
        return text
    return rf"{match[1] or match[4] or ''}\frac{{{match[2] or match[5]}}}{{{match[3] or match[6]}}}"


@lru_cache(maxsize=4096)
def parsed(text: str) -> Any:
    """An expression by math-verify's parser; None where it cannot read it as one."""
    from latex2sympy2_extended import latex2sympy
    from sympy import Expr

    try:
        found = latex2sympy(text)
    except Exception:  # the parser's own way to say that it cannot read it
        return None
    return found if isinstance(found, Expr) else None


def differ(first: str, second: str) -> bool:
    """Whether sympy tells two expressions apart at every one of some random points, to 50 digits."""
    from sympy import Rational

    one, other = parsed(first), parsed(second)
    if one is None or other is None:
        return False
    draw = random.Random(first + second)
    names = sorted(one.free_symbols | other.free_symbols, key=str)
    for _ in range(POINTS):
        point = {name: Rational(draw.randint(200, 5000), 997) for name in names}
        try:
            size = max(1.0, *(abs(complex(side.evalf(DIGITS, subs=point))) for side in (one, other)))
            gap = abs(complex((one - other).evalf(DIGITS, subs=point)))
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            return False
        if not gap > LARGEST_GAP * size:
            return False
    return True


# ---------------------------------------------------------------------- wrong copies


def digits_changed(text: str, draw: random.Random) -> Copy:
    """A text with one of its digits changed."""
    place = draw.choice([match.start() for match in re.finditer(r"\d", text)])
    return Copy(text[:place] + str((int(text[place]) + draw.randint(1, 8)) % 10) + text[place + 1 :], "digit")


def tokens_changed(text: str, draw: random.Random) -> Iterator[Copy]:
    """An expression with one token changed."""
    if re.search(r"\d", text):
        yield from (digits_changed(text, draw) for _ in range(8))
    for pattern, new, rule in (
        (r"(?<=[\w})\s])\+", "-", "operator"), (r"(?<=[\w})])\s?-(?!\d*\})", "+", "operator"), (r"!", "", "operator"),
        (r"\^\{?2\}?", "^{3}", "exponent"), (r"\^\{?(\d)\}?", r"^{\g<1>1}", "exponent"), (r"/", "+", "operator"),
        (r"\\sqrt\{", r"\\sqrt[3]{", "operator"), (r"\\sin", r"\\cos", "function"), (r"\\cos", r"\\sin", "function"),
        (r"\\ln|\\log", r"\\sin", "function"), (r"\\pi", "e", "constant"), (r"\\cdot|\\times", "+", "operator"),
        (r"\\lfloor(.*?)\\rfloor", r"(\g<1>)", "operator"),
    ):  # fmt: skip
        places = list(re.finditer(pattern, text))
        if places:
            match = draw.choice(places)
            yield Copy(text[: match.start()] + match.expand(new) + text[match.end() :], rule)
    names = [match for match in re.finditer(r"(?<![\\A-Za-z])[a-zA-Z](?![A-Za-z])", text) if match[0] not in "ediCcKk"]
    for match in draw.sample(names, min(3, len(names))):
        other = draw.choice([letter for letter in "xyzwtrnmab" if letter not in text] or ["q"])
        yield Copy(text[: match.start()] + other + text[match.end() :], "name")
    yield from (
        Copy(f"-({text})", "sign"), Copy(f"{text}+1", "operator"), Copy(f"2({text})", "operator"),
        Copy(rf"\frac{{1}}{{{text}}}", "operator"), Copy(f"({text})^2", "exponent"),
    )  # fmt: skip


def wrong_number(text: str, draw: random.Random) -> Iterator[Copy]:
    """A plain number with a digit, the sign or the size changed, or with something put to it."""
    yield from (digits_changed(text, draw) for _ in range(12))
    yield from (
        Copy(text[1:] if text.startswith("-") else f"-{text}", "sign"),
        Copy(f"{text}0" if "." not in text else text.replace(".", ""), "size"),
        Copy(rf"\frac{{1}}{{{text}}}", "operator"), Copy(f"{text}^2", "exponent"), Copy(f"{text}x", "name"),
        Copy(f"{text}+1", "operator"), Copy(f"{text}, {draw.randint(1, 99)}", "member"),
        Copy(rf"\sqrt{{{text}}}", "operator"), Copy(rf"{text}\pi", "constant"), Copy(rf"\text{{not }}{text}", "words"),
        Copy(rf"{text}\text{{ or {draw.randint(100, 999)}}}", "member"), Copy(f"> {text}", "relation"),
    )  # fmt: skip


def wrong(text: str, draw: random.Random) -> Iterator[Copy]:
    """Copies that are not the reference, as long as the caller asks."""
    what = kind(text)
    match = re.fullmatch(KINDS[what], text) if what in KINDS else None
    if what in ("integer", "decimal", "science", "fraction"):
        value = exact(text)
        for copy in wrong_number(plain(text), draw):
            made = exact(copy.text)
            # An unchanged value is no change, nor are 0 and 1 under powers; other forms are never the number.
            if made != value and (made is not None or value not in (0, 1, -1)):
                yield copy
    elif match is None:
        yield from wrong_parts(text, what, draw)
    elif what == "base":
        digits, base = match[1], int(match[2])
        for place, digit in enumerate(digits):
            yield Copy(f"{digits[:place]}{(int(digit) + 1) % base}{digits[place + 1 :]}_{base}", "digit")
        yield from (Copy(f"{digits}_{{{base + 1}}}", "base"), Copy(str(int(digits, base)), "base"))
    elif what == "choice":
        yield from (Copy(rf"\text{{({letter})}}", "letter") for letter in "ABCDE" if letter != match[1])
    elif what == "word":
        others = (*WORDS, f"not {match[1]}", match[1][::-1], f"{match[1]} and Tom")
        yield from (Copy(rf"\text{{{other}}}", "word") for other in others if other.lower() != match[1].lower())
    else:
        for copy in wrong_number(match[1], draw):
            if copy.rule in ("digit", "sign", "size") and exact(copy.text) != exact(match[1]):
                yield Copy(text[: match.start(1)] + copy.text + text[match.end(1) :], copy.rule)
        if what != "percent":
            yield from (Copy(rf"{match[1]}\text{{ {unit}}}", "unit") for unit in OTHER_UNITS)


def wrong_parts(text: str, what: str, draw: random.Random) -> Iterator[Copy]:
    """Structures with one part, bracket, relation or their order changed; expressions by the judgement of sympy."""
    for _ in range(6):
        for begin, leaf in leaves(text, what):
            for copy in tokens_changed(leaf, draw):
                if differ(leaf, copy.text):
                    yield Copy(text[:begin] + copy.text + text[begin + len(leaf) :], copy.rule)
        if what == "interval" and text.count("(") + text.count("[") < 3:
            for match in re.finditer(r"[\[\]()]", text):
                beside = text[: match.start()] if match[0] in ")]" else text[match.end() :]
                if re.search(r"\\infty\s*$" if match[0] in ")]" else r"^\s*-?\\infty", beside) is None:
                    yield Copy(text[: match.start()] + TURNED[match[0]] + text[match.end() :], "bound")
        if r"\cup" in text:
            yield Copy(text.replace(r"\cup", r"\cap"), "operator")
        parts = split(inside(text) if what == "tuple" else text)
        if what == "tuple":
            one, other = draw.sample(range(len(parts)), 2)
            if differ(parts[one], parts[other]):
                turned = [parts[{one: other, other: one}.get(place, place)] for place in range(len(parts))]
                yield Copy(f"({', '.join(turned)})", "order")
        if what in ("list", "tuple", "list of tuples"):
            parts.pop(draw.randrange(len(parts)))
            yield Copy(f"({', '.join(parts)})" if what == "tuple" else ", ".join(parts), "member")
        for old, new in (("<", ">"), (r"\geqslant", "<"), (r"\in", r"\notin"), ("=", r"\neq ")):
            if what == "relation" and old in text:
                yield Copy(text.replace(old, new, 1), "relation")


def leaves(text: str, what: str) -> list[tuple[int, str]]:
    """The expressions in a text, with their places."""
    if what == "expression":
        return [(0, text)]
    if what == "relation":
        last = RELATION.split(text)[-1]
        return [(text.rindex(last), last)] if balanced(last) and "," not in last else []
    pattern = r"[^,;&()\[\]\\{} ]+(?:\\frac\{[^{}]*\}\{[^{}]*\})?" if what == "matrix" else r"[^,()\[\]]+"
    found = []
    for match in re.finditer(pattern, text):
        lead = len(match[0]) - len(match[0].lstrip())
        bracket = re.search(r"\\(?:left|right|cup|begin|end|infty)|\\\{|\\\}", match[0])
        if balanced(match[0]) and re.search(r"\d", match[0]) and bracket is None:
            found.append((match.start() + lead, match[0].strip()))
    return found


# ---------------------------------------------------------------------- right copies


def right_number(text: str) -> Iterator[Copy]:
    """Other ways of writing a plain number."""
    value = exact(text)
    if value is None:
        return
    top, bottom = value.numerator, value.denominator
    for factor in (1, 2, 3, 7, 12):
        yield Copy(rf"\frac{{{top * factor}}}{{{bottom * factor}}}", "fraction")
        yield Copy(rf"\dfrac{{{top * factor}}}{{{bottom * factor}}}", "fraction")
    yield from (Copy(f"{top * 5}/{bottom * 5}", "fraction"), Copy(f"{text}+0", "sum"))
    if bottom == 1:
        yield from (
            Copy(f"{top}.0", "decimal"), Copy(f"{top}.00", "decimal"), Copy(f"{top - 3}+3", "sum"),
            Copy(f"{top + 11}-11", "sum"), Copy(rf"{top} \cdot 1", "product"), Copy(f"{top:,}", "grouping"),
            Copy(f"{top:,}".replace(",", "{,}"), "grouping"), Copy(f"{top:,}".replace(",", r"\,"), "grouping"),
        )  # fmt: skip
    scaled = abs(value) * 10**12
    if scaled.denominator == 1 and scaled < 10**24:
        digits = str(scaled.numerator).rjust(13, "0")
        decimal = f"{digits[:-12]}.{digits[-12:]}".rstrip("0").rstrip(".")
        yield Copy(f"{'-' * (value < 0)}{decimal}", "decimal")


def right_expression(text: str, draw: random.Random) -> Iterator[Copy]:
    """Other ways of writing an expression."""
    yield from (
        Copy(f"({text})", "brackets"), Copy(rf"\left({text}\right)", "brackets"), Copy(f"({text})+0", "sum"),
        Copy(rf"1\cdot({text})", "product"), Copy(rf"\frac{{2({text})}}{{2}}", "fraction"),
        Copy(f"({text})+7-7", "sum"),
        Copy(f"-(-({text}))", "sign"), Copy(rf"\frac{{{text}}}{{1}}", "fraction"), Copy(f"5+({text})-5", "sum"),
        Copy(rf"\frac{{3({text})+3}}{{3}}-1", "fraction"), Copy(text.replace(r"\frac", r"\dfrac"), "spelling"),
        Copy(text.replace("-", "\N{MINUS SIGN}"), "spelling"), Copy(rf"\left[{text}\right]\cdot 1", "brackets"),
        Copy(re.sub(r"\\sqrt\{(\d+)\}", r"\g<1>^{1/2}", text), "root"),
        Copy(rf"({text})\cdot\frac{{4}}{{4}}", "product"),
        Copy(re.sub(r"(?<![\\A-Za-z])([a-z])\^\{?2\}?(?!\d)", r"\g<1>\\cdot \g<1>", text), "power"),
        Copy(rf"\frac{{1}}{{2}}({text})+\frac{{1}}{{2}}({text})", "sum"),
    )  # fmt: skip
    terms = re.split(r"(?<=[\w})])\s*\+\s*(?![^{(\[]*[})\]])", text)
    if len(terms) > 1 and all(map(balanced, terms)):
        draw.shuffle(terms)
        yield Copy(" + ".join(terms), "order")


def right(text: str, draw: random.Random) -> Iterator[Copy]:
    """Copies that are the reference written in another way, as long as the caller asks."""
    what = kind(text)
    match = re.fullmatch(KINDS[what], text) if what in KINDS else None
    spellings = [f" {text} ", f"{text}.", rf"\displaystyle {text}", f"{{{text}}}", rf"\boxed{{{text}}}", rf"\,{text}\,",
                 rf"\color{{blue}}{{{text}}}", rf"\large {text}", rf"\mathbf{{{text}}}", rf"{text}\tag{{1}}",
                 rf"\text{{The answer is }}{text}"]  # fmt: skip
    if what == "word" and match is not None:
        word = match[1]
        spellings += [word, word.upper(), word.capitalize(), rf"\textbf{{{word}}}", rf"\mbox{{{word}}}"]
    elif what == "choice" and match is not None:
        letter = match[1]
        spellings += [letter, f"({letter})", rf"\textbf{{({letter})}}", rf"\text{{{letter}}}", f"{letter}. 12"]
    elif what == "base" and match is not None:
        spellings += [f"{match[1]}_{{{match[2]}}}", rf"{match[1]}_{{\text{{{match[2]}}}}}", f"0{match[1]}_{match[2]}"]
    elif what == "degrees" and match is not None:
        number = match[1]
        spellings += [f"{number}°", rf"{number}^\circ", rf"{number}^{{\circ}}", number, rf"{number}\text{{ degrees}}"]
    elif what == "percent" and match is not None:
        spellings += [rf"{match[1]}\%", rf"{match[1]}\text{{ percent}}", str(float(Fraction(match[1]) / 100))]
    yield from (Copy(each, "spelling") for each in spellings)
    if what in ("integer", "decimal", "fraction", "science"):
        yield from right_number(plain(text))
        yield from (Copy(f"x = {text}", "label"), Copy(rf"\text{{{text}}}" if what == "integer" else text, "spelling"))
    elif what == "expression" and r"\text" not in text:
        yield from right_expression(text, draw)
    elif what in ("tuple", "list", "list of tuples", "set", "interval", "matrix"):
        for _ in range(4):
            for begin, leaf in leaves(text, what):
                made = list(right_number(leaf)) if exact(leaf) is not None else list(right_expression(leaf, draw))
                copy = draw.choice([copy for copy in made if copy.rule != "grouping"])
                yield Copy(text[:begin] + copy.text + text[begin + len(leaf) :], copy.rule)


def copies(reference: str, make: Make, count: int, seed: int) -> list[Copy]:
    """At most `count` different copies, those that were made first."""
    text = bare(reference)
    found: dict[str, Copy] = {}
    for copy in make(text, random.Random(f"{seed} {reference}")):
        if copy.text != text and copy.text.strip():
            found.setdefault(copy.text, copy)
        if len(found) == count:
            break
    return list(found.values())
