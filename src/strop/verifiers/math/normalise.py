r"""Answers as text: what a reader sees as the same is made the same, before anything is parsed.

Two levels. `prepared` keeps LaTeX that means the same and that math-verify reads rightly: it is what is parsed.
`canonical` is a key for the string match, from which all that does not count (spacing, units, `\text`, degree signs,
a closing period) is gone. Every expression here is linear in the length of the text.
"""

from __future__ import annotations

import re

from strop.verifiers.math.units import counted, without_units

_CHARACTERS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{DOT OPERATOR}": r"\cdot ",
        "\N{DIVISION SIGN}": "/",
        "\N{LESS-THAN OR EQUAL TO}": r"\leq ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\geq ",
        "\N{NOT EQUAL TO}": r"\neq ",
        "\N{ALMOST EQUAL TO}": r"\approx ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{GREEK SMALL LETTER THETA}": r"\theta ",
        "\N{GREEK SMALL LETTER ALPHA}": r"\alpha ",
        "\N{GREEK SMALL LETTER BETA}": r"\beta ",
        "\N{GREEK SMALL LETTER LAMDA}": r"\lambda ",
        "\N{INFINITY}": r"\infty ",
        "\N{UNION}": r"\cup ",
        "\N{INTERSECTION}": r"\cap ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{DEGREE SIGN}": r"^\circ ",
        "\N{SUPERSCRIPT TWO}": "^{2}",
        "\N{SUPERSCRIPT THREE}": "^{3}",
        "\N{VULGAR FRACTION ONE HALF}": r"\frac{1}{2}",
        "\N{VULGAR FRACTION ONE QUARTER}": r"\frac{1}{4}",
        "\N{VULGAR FRACTION THREE QUARTERS}": r"\frac{3}{4}",
        "\N{VULGAR FRACTION ONE THIRD}": r"\frac{1}{3}",
        "\N{VULGAR FRACTION TWO THIRDS}": r"\frac{2}{3}",
        "\N{NO-BREAK SPACE}": " ",
        "\N{THIN SPACE}": " ",
        "\N{NARROW NO-BREAK SPACE}": " ",
        "\N{FULLWIDTH COMMA}": ",",
        "\N{FULLWIDTH COLON}": ":",
        "\N{FULLWIDTH LEFT PARENTHESIS}": "(",
        "\N{FULLWIDTH RIGHT PARENTHESIS}": ")",
        "\N{FULLWIDTH PERCENT SIGN}": r"\%",
        "\N{FULLWIDTH EQUALS SIGN}": "=",
        "\N{ZERO WIDTH SPACE}": None,
        "\N{EURO SIGN}": r"\$",
        "\N{POUND SIGN}": r"\$",
        "\N{YEN SIGN}": r"\$",
        "\N{INDIAN RUPEE SIGN}": r"\$",
    }
)
_SPECIAL_TOKEN = re.compile(r"<\|[A-Za-z0-9_]{1,40}\|>")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])")
# A comma or a space that can only group thousands: `{,}`, `\,`, `,\!` and the like.
_GROUP = r"(?:\{,\}|,\\!|\\,|\\!|\\;|\\:|\\ |~)"
_GROUPED = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)")
_GROUP_MARK = re.compile(_GROUP)
_EXPONENT = re.compile(r"(?<![\w.\\])(\d{1,40}(?:\.\d{1,40})?|\.\d{1,40})[eE]([+-]?\d{1,6})(?![\w.])")
_MIXED = re.compile(r"(?<![\w/.)}])(\d{1,9}) +(\d{1,9})/([1-9]\d{0,8})(?![\w/.])")
_CONSTANT = re.compile(r"\\(?:mathrm|text|textrm|mathit|operatorname)\s*\{\s*([ei])\s*\}")
_BARE_ARGUMENT = re.compile(r"\\(mathbb|mathcal|mathrm|overline|vec)\s+([A-Za-z])(?![A-Za-z])")
_COMMAND_FRACTION = re.compile(r"\\[dtc]?frac\s*(\\[A-Za-z]{1,20})\s*(\d|[A-Za-z](?![A-Za-z])|\\[A-Za-z]{1,20})")
_LETTER_FRACTION = re.compile(r"\\[dtc]?frac\s+([A-Za-z])\s*([A-Za-z])(?![A-Za-z])")
_DEGREES_IN_FUNCTION = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?\d\}?)?\s*[({]?\s*)(\d{1,9}(?:\.\d{1,9})?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)"
)
_REPEATING = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{(\d{1,20})\}")
_ROOT_OF_PARENTHESES = re.compile(r"\\sqrt\s*\(")
_PYTHON_POWER = re.compile(r"(?<=[\w)}])\*\*\s*(?:(-?\d{1,20}|[A-Za-z])(?!\w)|(?=[({]))")
_NATURAL_LOGARITHM = re.compile(r"\\log\s*_\s*(?:\{\s*e\s*\}|e(?![A-Za-z]))")
_COMMON_LOGARITHM = re.compile(r"\\lg(?![A-Za-z])")
_TWICE_ESCAPED = re.compile(r"\\\\(?=(?:d|t|c)?frac\b|sqrt\b|boxed\b|fbox\b|left\b|right\b|pi\b|text\b|cdot\b|times\b)")


def prepared(latex: str) -> str:
    r"""`latex` with what math-verify misreads written so that it does not.

    Unicode signs become commands, groups of thousands marked by `{,}` or a thin space are closed up, `1.5e3` becomes a
    power of ten, `1 1/2` a mixed number, `\sqrt(2)` a root of 2, `0.\overline{3}` a fraction, degrees in a sine
    radians, `x**3` a power, `\log_e` and `\lg` what they are; tokens such as `<|im_end|>` go.
    """
    text = _SPECIAL_TOKEN.sub(" ", latex)
    if not text.isascii():
        text = _ROOT.sub(r"\\sqrt{\1}", text)
        text = text.replace("√(", r"\sqrt(").replace("√{", r"\sqrt{").translate(_CHARACTERS)
    text = _GROUPED.sub(lambda match: _GROUP_MARK.sub("", match.group()), text)
    text = _EXPONENT.sub(r"\1 \\times 10^{\2}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _PYTHON_POWER.sub(lambda match: f"^{{{match.group(1)}}}" if match.group(1) else "^", text)
    text = _NATURAL_LOGARITHM.sub(r"\\ln ", text)
    text = _COMMON_LOGARITHM.sub(r"\\log_{10} ", text)
    text = _CONSTANT.sub(r" \1", text)
    text = _BARE_ARGUMENT.sub(r"\\\1{\2}", text)
    text = _LETTER_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _COMMAND_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _DEGREES_IN_FUNCTION.sub(r"\1\\frac{\2\\pi}{180}", text)
    text = _REPEATING.sub(_repeating, text)
    return _brace_roots(text)


def _repeating(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    numerator = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{numerator}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}"


def unescaped(text: str) -> str:
    r"""`text` of which every backslash was doubled on its way, mended: `\\boxed{…}` is taken for `\boxed{…}`."""
    return _TWICE_ESCAPED.sub(r"\\", text)


def _brace_roots(text: str) -> str:
    r"""`\sqrt(x+(1))` as `\sqrt{x+(1)}`; without its closing parenthesis it stays as it is."""
    match = _ROOT_OF_PARENTHESES.search(text)
    rounds = 0
    while match is not None and rounds < 20:
        end = closing(text, match.end() - 1)
        if end is None:
            break
        text = f"{text[: match.start()]}\\sqrt{{{text[match.end() : end]}}}{text[end + 1 :]}"
        match = _ROOT_OF_PARENTHESES.search(text)
        rounds += 1
    return text


def closing(text: str, begin: int) -> int | None:
    """Where the bracket that opens at `begin` is closed; None where it never is."""
    opening = text[begin]
    closer = {"(": ")", "{": "}", "[": "]"}[opening]
    depth = 0
    for place in range(begin, len(text)):
        if text[place] == opening:
            depth += 1
        elif text[place] == closer:
            depth -= 1
            if depth == 0:
                return place
    return None


_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mathcal|mbox|hbox|operatorname\*?|rm|bf)"
    r"\s*\{([^{}]*)\}"
)
_SPACING = re.compile(r"\\(?:[,;:!> ]|quad\b|qquad\b|displaystyle\b|textstyle\b|limits\b|left\b|right\b|big[lr]?\b|"
                      r"Big[lr]?\b|bigg[lr]?\b|Bigg[lr]?\b|mleft\b|mright\b)|~")  # fmt: skip
_FRACTION = re.compile(r"\\[dtc]frac\b|\\[dtc]frac(?=\d)")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)|\\frac\s*(\d)\s*(\{)|\\frac\s*\{(\d+)\}\s*(\d)")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|\\degree\b")
_SYNONYMS = (
    (re.compile(r"\\(?:le|leqslant)(?![A-Za-z])"), r"\\leq"),
    (re.compile(r"\\(?:ge|geqslant)(?![A-Za-z])"), r"\\geq"),
    (re.compile(r"\\ne(?![A-Za-z])"), r"\\neq"),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\(?:lbrace|\{)"), r"\\{"),
    (re.compile(r"\\(?:rbrace|\})"), r"\\}"),
    (re.compile(r"\\(?:cdots|dots|ldots|dotsc)(?![A-Za-z])|\.\.\."), r"\\ldots"),
)
_SINGLE = re.compile(r"(?<=[\^_])\{(\w)\}|(?<=\\sqrt)\{(\w)\}")
_WHOLE_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?%?")
_SPACED_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?%?")
_SPACES = re.compile(r"\s+")
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_CHOICE = re.compile(r"\(?([A-Za-z])\)?[.:)]?")
_LABELLED = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[.:)])\s*\S")
_WORDS = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]+)*")
_PERCENT = re.compile(r"\\%|\b(?:percent|percentage|pct)\b")


def bare(text: str) -> str:
    """`text` without the delimiters of mathematics around it, and without closing punctuation."""
    before = None
    while before != text:
        before = text
        text = text.strip().rstrip(".,;").strip()
        for begin, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
            if text.startswith(begin) and text.endswith(end) and len(text) > len(begin) + len(end):
                inner = text[len(begin) : -len(end)]
                if begin not in inner:
                    text = inner
    return text


def canonical(latex: str, lone_letters: bool = False) -> str:
    """The key of the string match; takes what `prepared` gives. `lone_letters`: a letter at its end may be a unit."""
    text = without_units(bare(latex), lone_letters)
    text = _DEGREE.sub("", text)
    text = _PERCENT.sub("%", text.replace(r"\$", ""))
    for _ in range(3):  # texts in texts
        text = _TEXT.sub(r" \1 ", text)
    text = _PERCENT.sub("%", text)
    text = _SPACING.sub(" ", text)
    text = _FRACTION.sub(r"\\frac", text)
    text = _SHORT_FRACTION.sub(_long_fraction, text)
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _SINGLE.sub(lambda match: match.group(1) or match.group(2), text)
    text = bare(_SPACES.sub(" ", text.replace("$", " ")))
    text = without_units(text, lone_letters).strip()
    text = counted(text) or text
    if _WHOLE_GROUPED.fullmatch(text):
        text = text.replace(",", "")
    elif _SPACED_GROUPED.fullmatch(text):
        text = text.replace(" ", "")
    choice = _CHOICE.fullmatch(text)
    if choice is not None:
        return choice.group(1)
    if _WORDS.fullmatch(text):
        return text.lower()
    return _SPACE.sub("", text)


def choice_of(latex: str) -> str | None:
    r"""The letter of a choice written with its text, `\textbf{(B)}\ 12` or `B. 12`; None where there is none."""
    text = bare(latex)
    for _ in range(2):
        text = _TEXT.sub(r" \1 ", text)
    match = _LABELLED.match(_SPACING.sub(" ", text).strip())
    return (match.group(1) or match.group(2)) if match is not None else None


def _long_fraction(match: re.Match[str]) -> str:
    first, second, before, brace, numerator, digit = match.groups()
    if first is not None:
        return rf"\frac{{{first}}}{{{second}}}"
    if before is not None:
        return rf"\frac{{{before}}}{brace}"
    return rf"\frac{{{numerator}}}{{{digit}}}"
