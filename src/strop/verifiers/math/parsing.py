"""From text to sympy by math-verify, without its time limits by signals: the calling process is killed instead."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from strop.verifiers.math.candidates import Found
from strop.verifiers.math.dressing import undressed
from strop.verifiers.math.normalise import bare, prepared
from strop.verifiers.math.units import without_units

LATEX, EXPR = "latex", "expr"


class Parsed(NamedTuple):
    """What math-verify made of an answer: sympy values, the best first, and the text that it took."""

    values: tuple[Any, ...]
    text: str


def parse_answer(found: Found, match_types: tuple[str, ...], lone_letters: bool = False) -> Parsed:
    """The values of an answer; none where math-verify finds nothing that it can read.

    `lone_letters`: a letter at its end may be a unit.

    Raises whatever math-verify, antlr or sympy raise.
    """
    if found.latex is None:
        return parse_raw(found.prose, match_types)
    if LATEX not in match_types:
        return _parse(found.latex, _extraction(match_types))
    # What cannot be read as a whole is not looked through for a number: `2 \in S`, `2 +` and `5@3` are no answers.
    latex = without_units(undressed(prepared(found.latex)), lone_letters)
    return _parse_latex(latex)


def parse_raw(text: str, match_types: tuple[str, ...]) -> Parsed:
    """The values of a text with delimiters of its own, found as math-verify finds them."""
    return _parse(prepared(text) if LATEX in match_types else text, _extraction(match_types))


def _parse(text: str, extraction: list[Any]) -> Parsed:
    from math_verify import parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no time limit; the pool has one
    results = parse(text, extraction, parsing_timeout=None, raise_on_error=True)
    values = tuple(result for result in results if not isinstance(result, str))
    texts = [result for result in results if isinstance(result, str)]
    return Parsed(values, texts[0] if texts else bare(text))


@lru_cache(maxsize=8)
def _extraction(match_types: tuple[str, ...]) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    kinds = {LATEX: LatexExtractionConfig, EXPR: ExprExtractionConfig}
    return [kind() for name, kind in kinds.items() if name in match_types]


def _parse_latex(latex: str) -> Parsed:
    """An answer of which all is mathematics; math-verify's `parse` would take its own lack of memory for bad LaTeX."""
    from latex2sympy2_extended import normalize_latex
    from math_verify.parser import parse_latex_cached

    text = normalize_latex(rf"\boxed{{{_named(latex)}}}", _normalisation())
    named = _NAMED_VALUE.fullmatch(text)
    for each in (text, named.group(1)) if named is not None else (text,):
        try:
            return Parsed((parse_latex_cached(each),), text)
        except MemoryError:
            raise
        except Exception:  # the parser's own way to say that it cannot read it
            continue
    return Parsed((), text)


# What is called by something that cannot be read: `\sum a_i = 5`, `\max = 5`.
_NAMED_VALUE = re.compile(
    r"(?!.*\\(?:ne|neq|not|in|notin|to|le|ge|leq|geq|lt|gt|approx)(?![A-Za-z]))"
    r"\s*(?:\\(?:sum|max|min|prod|angle|triangle|overline|text)(?![A-Za-z])|[A-Za-z|])[^=<>,;&@#?]*=([^=<>,;]+)"
)
_COMMAND_BELOW = re.compile(r"_\s?\{\s?\\([A-Za-z]{1,20})\s?\}|_\s?\\([A-Za-z]{1,20})")
_UNIT_WITH_INDEX = re.compile(r"(?<![A-Za-z\\])([EeI])(?=\s?_)")
_GAMMA = re.compile(r"\\gamma(?![A-Za-z])(?!\s?\()")
_CLOSING_POINT = re.compile(r"(?<=\d)\.(?![\d.])")


def _named(latex: str) -> str:
    r"""Names that the parser takes for something else, or does not know: `E_1`, `I_1`, `m_{\max}`, the function γ.

    They are names on both sides; so are `1.` and 1 the same number.
    """
    text = _COMMAND_BELOW.sub(lambda match: f"_{{{match.group(1) or match.group(2)}}}", latex)
    text = _UNIT_WITH_INDEX.sub(r"\\mathrm{\1}", text)
    text = _GAMMA.sub(r"\\mathrm{gamma}", text)
    return _CLOSING_POINT.sub("", text)


@lru_cache(maxsize=1)
def _normalisation() -> Any:
    r"""math-verify's own, but that units are gone already: its list of them has `t`, `h`, `c`, `ab` and any `\text`."""
    from math_verify import LatexExtractionConfig

    return replace(LatexExtractionConfig().normalization_config, boxed="last", units=False)
