"""What a row and its question say of the answer: its order, tolerance, unit, and which names are positive."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from strop_verify.math.latex import GREEK, tokens
from strop_verify.math.units import read_unit
from strop_verify.math.verifier import MathSettings

FORM = ("is_multiple_answer", "error", "unit")  # the columns of a row that are read, as OlympiadBench calls them

_ORDER = re.compile(
    r"\brespectively\b|\bfirst \w+ terms\b"
    r"|\bin (?:(?:increasing|decreasing|ascending|descending|alphabetical|chronological|this|that) )?order\b(?! to\b)"
    r"|\bfrom (?:the )?(?:least|smallest|lowest|largest|greatest|highest)(?: \w+)? to\b",
    re.IGNORECASE,
)
_INTERVAL = re.compile(r"\binterval notation\b", re.IGNORECASE)
_PRIMITIVE = re.compile(r"\b(?:antiderivative|indefinite integral)\b", re.IGNORECASE)
_WITHIN = re.compile(r"\b(?:answers?|accepted|accurate|correct)\b[^.$]{0,40}\bwithin \$?(\d+(?:\.\d+)?)\s?\\?%", re.I)
_UNIT = re.compile(r"\b(?:how many|in) ((?:square |cubic )?[a-z]+(?:/[a-z]+| per [a-z]+)?)\b", re.I)
_GENERAL = re.compile(r"\b(?:general solution|differential equation|all (?:\w+ )?functions)\b", re.IGNORECASE)
_FORMULAS = re.compile(r"\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NAME = re.compile(r"\\mathbb\s?\{?\w\}?|[A-Za-z]+")
_LETTERS = r"((?:[A-Za-z]\$?\s*(?:,|,?\s*and)\s*\$?)*[A-Za-z])"
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_POSITIVE = re.compile(
    rf"(?<![\w\\^_{{]){_LETTERS}\s*(?:>|\\gt)\s*0(?![.\d])"
    rf"|\bpositive (?:real )?(?:numbers?|integers?|constants?|reals?) \$?{_LETTERS}(?!\w)",
)


def stated_form(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the columns of a row say of its answer, empty ones left out."""
    return {name: row[name] for name in FORM if row.get(name) not in (None, "", "None")}


def stated_settings(settings: MathSettings, question: str, form: Mapping[str, Any]) -> MathSettings:
    """Settings with what is said of one answer.

    Args:
        settings: for what neither says.
        question: its text.
        form: see `stated_form`; it counts more than the question.
    """
    return _stated(settings, question, tuple((name, str(form[name])) for name in FORM if name in form))


@lru_cache(maxsize=4096)
def _stated(settings: MathSettings, question: str, form: tuple[tuple[str, str], ...]) -> MathSettings:
    said = dict(form)
    several = said.get("is_multiple_answer", "").lower() == "true"
    letters = [each for found in _POSITIVE.findall(question) for each in _LETTER.findall("".join(found))]
    known = {each: read_unit(tokens(f"1 {each}")[1:]) for each in _UNIT.findall(question)}
    units = [each for each, unit in known.items() if unit is not None and unit.dimension]
    share = _WITHIN.search(question)
    formulas = " ".join("".join(each) for each in _FORMULAS.findall(question) if _GENERAL.search(question))
    names = [each for run in _NAME.findall(formulas) for each in ([run] if run in GREEK else run) if "\\" not in run]
    return replace(
        settings,
        asked=units[0] if len(units) == 1 else "",
        variables=tuple(dict.fromkeys((*names, "x", "t"))) if names else (),
        share=_number(share[1]) / 100 if share is not None else 0.0,
        ordered_lists=not several and (settings.ordered_lists or _ORDER.search(question) is not None),
        allow_set_relation_comp=settings.allow_set_relation_comp or _INTERVAL.search(question) is not None,
        antiderivative=_PRIMITIVE.search(question) is not None,
        positive=tuple(dict.fromkeys(letters)),
        tolerance=_number(said.get("error", "")),
        unit=said.get("unit", "").replace("$", "").strip(),
    )


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) and found > 0 else 0.0
