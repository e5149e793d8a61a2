"""How answers are found, read and compared; and what a row and its question say of it: order, tolerance, unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from strop_verify.extract import measured_number
from strop_verify.math.latex import GREEK, tokens
from strop_verify.math.units import read_unit

MatchType = Literal["latex", "expr"]
GoldForm = Literal["bare", "raw"]
FORM = ("is_multiple_answer", "error", "unit", "answer_type")  # columns of a row, as in OlympiadBench

_ORDER = re.compile(
    r"\brespectively\b|\bfirst \w+ terms\b"
    r"|\bin (?:(?:increasing|decreasing|ascending|descending|alphabetical|chronological|this|that) )?order\b(?! to\b)"
    r"|\bfrom (?:the )?(?:least|most|\w+est)(?: \w+)? to\b",
    re.IGNORECASE,
)
_INTERVAL = re.compile(r"\binterval notation\b|\ball (?:real )?(?:numbers |values of )?\$?[a-z]\b"
                       r"|\bsolve\b[^.]*(?:[<>≤≥]|\\[lg](?:t|eq?)(?![a-z]))", re.IGNORECASE)  # fmt: skip
_FIXED = re.compile(r"[A-Za-z]'{0,2}\s?\(-?(?:\d|\\pi)[^()]{0,8}\)\s?=")  # F(1) = 5
_PRIMITIVE = re.compile(r"\b(?:antiderivative|indefinite integral)\b", re.IGNORECASE)
_WITHIN = re.compile(r"\b(?:answers?|accepted|accurate|correct)\b[^.$]{0,40}\bwithin \$?(\d+(?:\.\d+)?)\s?\\?%", re.I)
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s?\\?%\s*")
_UNIT = re.compile(
    r"\b(?:how many|in|(?<!\\)to) (?:degrees (?=(?-i:[CF])))?((?:square |cubic )?[a-z]+(?:(?:/| per )[a-z]+)?)\b", re.I
)
_ENGLISH = re.compile(
    r"\b(?:the|of|what|how|find|if|let|and|are|is|solve|simplify|compute|evaluate|calculate|determine|for)\b", re.I
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_GENERAL = re.compile(r"\b(?:general solution|differential equation|all (?:\w+ )?functions)\b", re.IGNORECASE)
_FORMULAS = re.compile(r"\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NAME = re.compile(r"\\mathbb\s?\{?\w\}?|[A-Za-z]+")
_LETTERS = r"((?:[A-Za-z]\$?\s*(?:,|,?\s*and)\s*\$?)*[A-Za-z])"
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_POSITIVE = re.compile(
    rf"(?<![\w\\^_{{]){_LETTERS}\s*(?:>|\\gt)\s*0(?![.\d])"
    rf"|\bpositive (?:real )?(?:numbers?|integers?|constants?|reals?) \$?{_LETTERS}(?!\w)",
)


@dataclass(frozen=True)
class MathSettings:
    r"""How answers are found, read and compared.

    Attributes:
        extract: where the answer stands: `boxed` (the last balanced box after the thinking, with those joined to it
            where several are asked), `answer_tag`, or `any` (also after `####` or "Answer:", else in a sentence).
        box_required: an answer tag without a box in it is unparsed (Open-Reasoner-Zero's code).
        gold_form: `bare`: the reference is the answer; `raw`: it is a text with its own delimiters or boxes.
        match_types: what is looked for where nothing marks the answer: `latex` in delimiters, plain `expr`essions.
        precision: from how many digits on a decimal stands for a number that it only rounds; before the point one more.
        strict: names count, else they match by their order (math-verify's `strict`).
        allow_set_relation_comp: a relation also matches a reference that may be a pair (`0 < x < 1` for `(0, 1)`).
        ordered_lists: a bare list of values (`1, 2`) has an order; false: it is a set.
        undecided: the verdict on an answer proved neither equal nor different: `leave_out` (not usable) or `wrong`.
        explain: the detail says the kinds, the normal forms and the proof.
        tolerance: how much a number may differ from the reference; several: for each member of a list.
        antiderivative: the answer may have a constant of integration that the reference has not.
        positive: names that stand for positive numbers.
        asked: the unit of a reference that states none; it counts where the answer states one.
        share: by what part of itself the reference may be missed.
        comma: the numbers may have a decimal comma and a thousands point, as in the question's language.
        variables: the names of a question that asks for a general solution; all others are its free constants.
        question: its words may follow a name (`Bob has a winning strategy`), and its options have values.
    """

    extract: Literal["boxed", "answer_tag", "any"] = "boxed"
    box_required: bool = False
    gold_form: GoldForm = "bare"
    match_types: tuple[MatchType, ...] = ("latex", "expr")
    precision: int = 6
    strict: bool = True
    allow_set_relation_comp: bool = False
    ordered_lists: bool = False
    undecided: Literal["leave_out", "wrong"] = "leave_out"
    explain: bool = False
    tolerance: tuple[float, ...] = ()
    antiderivative: bool = False
    positive: tuple[str, ...] = ()
    asked: str = ""
    share: float = 0.0
    comma: bool = False
    variables: tuple[str, ...] = ()
    question: str = ""

    def __post_init__(self) -> None:
        if self.gold_form not in get_args(GoldForm) or not set(self.match_types) <= set(get_args(MatchType)):
            raise ValueError(f"gold_form {self.gold_form!r} and match_types {self.match_types} are not settings")


def formulas_in(question: str) -> list[str]:
    """The formulas in delimiters."""
    return ["".join(each) for each in _FORMULAS.findall(question)]


def stated_form(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the columns of a row say of its answer, empty ones left out."""
    return {name: row[name] for name in FORM if row.get(name) not in (None, "", "None")}


def stated_settings(settings: MathSettings, question: str, form: Mapping[str, Any]) -> MathSettings:
    """Settings with what a question says of its answer, and what its `stated_form` says, which counts more."""
    return _stated(settings, question, tuple((name, str(form[name])) for name in FORM if name in form))


@lru_cache(maxsize=4096)
def _stated(settings: MathSettings, question: str, form: tuple[tuple[str, str], ...]) -> MathSettings:
    said = dict(form)
    several = said.get("is_multiple_answer", "").lower() == "true"
    in_order = _ORDER.search(question) is not None or said.get("answer_type", "").lower() == "tuple"
    letters = [each for found in _POSITIVE.findall(question) for each in _LETTER.findall("".join(found))]
    known = {each: read_unit(tokens(f"1 {each}")[1:]) for each in _UNIT.findall(question)}
    units = [each for each, unit in known.items() if unit is not None and unit.dimension]
    share = _WITHIN.search(question) or _PERCENT.fullmatch(said.get("error", ""))
    limits = [measured_number(part) for part in said.get("error", "").split(",")]
    formulas = " ".join(formulas_in(question)) if _GENERAL.search(question) else ""
    names = [each for run in _NAME.findall(formulas) for each in ([run] if run in GREEK else run) if "\\" not in run]
    return replace(
        settings,
        question=question,
        asked=said.get("unit", "").replace("$", "").strip() or (units[0] if len(units) == 1 else ""),
        variables=tuple(dict.fromkeys((*names, "x", "t"))) if names else (),
        comma=_has_comma(question),
        share=float(share[1]) / 100 if share is not None else 0.0,
        ordered_lists=not several and (settings.ordered_lists or in_order),
        allow_set_relation_comp=settings.allow_set_relation_comp or _INTERVAL.search(question) is not None,
        antiderivative=_PRIMITIVE.search(question) is not None and not _FIXED.search(question),
        positive=tuple(dict.fromkeys(letters)),
        tolerance=() if None in limits else tuple(abs(float(each)) for each in limits if each),
    )


def _has_comma(question: str) -> bool:
    """Whether a question is in a language with a decimal comma: in an alphabet, and not in English."""
    said = _WORD.findall(_FORMULAS.sub(" ", question))
    decimal = re.search(r"\d\{,\}(?:\d{1,2}|\d{4,})(?!\d)", question) is not None
    return decimal or len(said) > 2 and not _ENGLISH.search(question) and max(map(max, said)) < "\u3040"
