r"""What stands around an answer and is no part of it: labels, fonts, signs of currency, "for all integers k".

For answers of which the extent is known, not for prose. Every expression here is linear in the length of the text.
"""

from __future__ import annotations

import re

from strop.verifiers.math.units import SPACE

_FONT = re.compile(
    r"\\(?:bf|it|rm|tiny|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|displaystyle|textstyle)(?![A-Za-z])\s*"
)
_IN_FONT = re.compile(r"\\(?:boldsymbol|bm|pmb|underline|underbrace|mathop)\s?(?=\{)")
_NO_BRACKET = re.compile(r"\\(?:left|right)\s?\.")
_GAP = rf"(?:{SPACE}|\\!|\\q?quad(?![A-Za-z]))"
_BEFORE = re.compile(rf"^{_GAP}+")
_AFTER = re.compile(rf"(?:{_GAP}|\\\\|\\$|\\newline(?![A-Za-z]))+$")
_CURRENCY = re.compile(
    r"\\(?:text|textrm|mathrm)\s?\{\s?(?:\\?\$|\\euro|\\pounds)\s?\}|\\(?:euro|pounds|texteuro)(?![A-Za-z])"
)
_LABEL = re.compile(
    r"^\s*\\text(?:bf)?\s?\{(?!\s?\(?[A-J]\))"
    r"([^{}]{0,80}?(?<![A-Za-z])(?:answer|is|are|equals|be|:|=)\s{0,3}:?\s{0,3})\}",
    re.IGNORECASE,
)
_CHOICE_LABEL = re.compile(r"^\s*\\text(?:bf)?\s?\{\s?(?:option|choice|answer)\s\(?([A-J])\)?\s?\}\s*$", re.IGNORECASE)
_HEDGES = re.compile(r"\b(?:not|no|or|either|neither|between|than|most|least|over|under|near|about)\b", re.IGNORECASE)
_INTEGERS = re.compile(
    rf"(?:[,;]|{_GAP}){{1,6}}\(?\s?(?:\\text\s?\{{\s?(?:for|where|with|and)?[a-z\s]{{0,30}}\}})?{_GAP}{{0,3}}"
    r"([A-Za-z])\s?\\in(?![A-Za-z])\s?\\(?:mathbb|mathbf|mathrm)\s?(?:\{\s?[NZ]\s?\}|[NZ])(?:[\^_]\{?[+0*]\}?)?\s?\)?[\s.]*$"
)
_ORDINAL = re.compile(r"\^\s*\{?\s*\\(?:text|mathrm|textrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?")
_ABOUT = re.compile(r"^\s*\\(?:approx|approxeq|simeq|sim)(?![A-Za-z])\s*")
_PERCENT_WORD = re.compile(
    rf"(?<=[\d}}]){SPACE}{{0,3}}"
    r"(?:\\(?:text|textrm|mathrm)\s?\{\s{0,2}(?:percent|per cent|pct)\s{0,2}\}|percent\b)"
)
_SCALES = {"hundred": "10^{2}", "thousand": "10^{3}", "million": "10^{6}", "billion": "10^{9}", "trillion": "10^{12}",
           "dozen": "12"}  # fmt: skip
_SCALED = re.compile(
    rf"(?<=[\d}}]){SPACE}{{0,3}}(\\(?:text|textrm|mathrm)\s?\{{\s?)?(?:\s|~){{0,2}}({'|'.join(_SCALES)})"
    r"(?![A-Za-z])\s{0,3}(\})?"
)


def undressed(latex: str) -> str:
    r"""An answer as `prepared` gives it, without what stands around it, and with its multiples written out.

    Labels (`\text{The answer is }`), fonts, currency, spaces at the ends, `k \in \mathbb{Z}` behind a formula in k, a
    sign in front that the value is approximate, and `th` in an exponent go. `\text{ percent}` becomes its sign;
    thousands, millions and dozens behind a number what they are times of.
    """
    text = _CURRENCY.sub("", _IN_FONT.sub("", _FONT.sub("", _NO_BRACKET.sub("", latex))))
    text = _BEFORE.sub("", text)
    end = _AFTER.search(text, max(0, len(text) - 100))
    text = text[: end.start()] if end is not None else text
    text = _CHOICE_LABEL.sub(r"\1", text)
    label = _LABEL.match(text)
    if label is not None and not _HEDGES.search(label.group(1)):
        text = text[label.end() :].lstrip()
    integers = _INTEGERS.search(text, max(0, len(text) - 120))
    if integers is not None and integers.group(1) in text[: integers.start()]:
        text = text[: integers.start()]
    text = _ORDINAL.sub("", _ABOUT.sub("", text))
    text = _PERCENT_WORD.sub(r"\\%", text)
    for _ in range(2):  # hundred thousand
        text = _SCALED.sub(_times, text)
    return text


def _times(match: re.Match[str]) -> str:
    opened, word, closed = match.groups()
    if closed and not opened:  # the brace is another's
        return rf"\times {_SCALES[word]}}}"
    return rf"\times {_SCALES[word]}" + (r"\text{ " if opened and not closed else "")
