"""Verifiers of short answers: `Answer`, `MultipleChoice`, `ExactMatch`, `Numeric`, and the scorers of reasoning-gym."""

from __future__ import annotations

import re
import string
import unicodedata
from decimal import Decimal
from functools import lru_cache
from typing import Literal

from pydantic import Field, NonNegativeFloat, model_validator

from strop.base.types import Problem, Verdict
from strop.data.templates import LETTER, Instruction
from strop.verifiers.base import Verifier, instruction_for, reference_text, scored
from strop_verify.extract import (
    Where,
    after_thinking,
    answer_tag,
    boxes,
    canonical,
    extract_answer,
    last_boxed,
    measured_number,
    normalise,
    same_answer,
)
from strop_verify.math.units import WORDS
from strop_verify.math.wordings import CONJUNCTIONS, COPULAS, HEDGES
from strop_verify.verdict import Status, shortened

# A LaTeX command, a power, an index, a fraction, a tuple or an interval.
_FORMULA = re.compile(r"\\[a-zA-Z]|[\w)}]\s*(?:\^|_\{)|\d\s*/\s*\d|^[(\[{].*,.*[)\]}]$")


class Extracting(Verifier):
    """A verifier of an answer that stands in a marked place of the response.

    Fields:
        extract: where the answer stands: `boxed`, `answer_tag`, `last_number`, or `any` of them (see `extract_answer`).
    """

    extract: Where | Literal["all"] = "boxed"

    def found(self, text: str) -> str | None:
        """The answer of a whole response, as it is written there."""
        return after_thinking(text) if self.extract == "all" else extract_answer(text, self.extract)

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return None if self.extract == "all" else instruction_for(self.extract)

    def stated(self, problem: Problem, text: str) -> str | None:
        """The canonical form of the answer."""
        found = self.found(text)
        return None if found is None else canonical(found)


class Answer(Extracting):
    """Compares simple numbers and texts; mathematics in LaTeX wants a verifier that understands it.

    Of a reference that is a worked solution, what it boxes counts, or what follows its `####`.

    Fields:
        box_required: an answer tag without a box in it is unparsed (the rule of Open-Reasoner-Zero's code).
    """

    extract: Where = "boxed"
    box_required: bool = False

    def found(self, text: str) -> str | None:
        """The answer of a whole response, as it is written there."""
        return extract_answer(text, self.extract, self.box_required)

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where there is no answer, error where the reference is neither text nor number."""
        reference = reference_text(problem)
        if reference is None:
            return Verdict(
                0.0, Status.ERROR, f"Answer compares texts and numbers, not {type(problem.reference).__name__}"
            )
        found = self.found(text)
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        stated = stated_answer(reference)
        if same_answer(found, stated):
            return Verdict(1.0, Status.CORRECT, shortened(found))
        return Verdict(0.0, Status.WRONG, f"{shortened(found)}, not {shortened(stated)}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is neither text nor number; else None."""
        if reference_text(problem) is None:
            return f"Answer compares texts and numbers, and the reference is {type(problem.reference).__name__}"
        return None

    def caution(self, problem: Problem) -> str | None:
        """Where the reference is a formula, which other formulas equal that are written otherwise."""
        reference = reference_text(problem)
        if reference is None or _FORMULA.search(normalise(stated_answer(reference))) is None:
            return None
        return "Answer compares formulas as texts, and takes no other way to write one; verifier=MathVerifier does"


def stated_answer(reference: str) -> str:
    """The answer that a reference states: its last box, or what follows its last `####`, else all of it."""
    return last_boxed(reference) or reference.rpartition("####")[2].strip() or reference


# What answers and options are called, and the words that join a name to a letter: a sentence states a choice by them.
_OPTIONS = "answer|choice|option|letter|buchstabe|choix|lettre|opción|letra|opção|opzione|lettera|вариант"
_NOUN = rf"(?:\b(?:{_OPTIONS})|{WORDS['answers']}|选项|選項|正解)"
_CHOOSE = (
    r"\b(?:choose|chose|pick|select|go\s+(?:with|for)|(?:i|would|should)\s+answer|wähle|choisis|elijo|escolho|scelgo"
    r"|выбираю)\b|(?<!不)(?<!不.)(?<!不..)[选選](?:择|擇)?:?"
)
_COPULA = (
    rf"\b(?:is|lautet|(?:must|should|would|will)\s+be)\b|(?:应该?|應該?)?(?:{WORDS['announces']})|[が는]|\s[-–—]\s"
)
# The letter of an option; without brackets only where no word follows ("a polynomial", "C major").
_ALPHABET = "A-ZА-Я"
_HAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # scripts without spaces
_ENDED = rf"(?=\s*(?:$|[.,;:!?()\n。、]|[-–—]\s|(?:because|since|rather|instead)\b)|[{_HAN}])"
_LETTER = rf"(?:[(\[]([{_ALPHABET}])[)\]]|([{_ALPHABET}]){_ENDED})"
# Not behind a word, which may be a name's ("vitamin C"), but for these.
_ALONE = r"(?:(?<![^\W\d_]\s)|(?<=\bso\s)|(?<=\b(?:and|but)\s)|(?<=\b(?:that|only|thus)\s)|(?<=\bthink\s))"
_KIND = rf"(?:(?:the|die|la)\s+|l['’])?(?:{_NOUN}\s*)?"
_NOT_BUT = r"(?:not\s+[^.,;:\n]{1,60}?,?\s+but\s+)?"
_STATED = re.compile(
    rf"""{_NOUN}(?:\s+(?:to|of|for)\s[^.:\n]{{0,60}}?|\s+(?!(?:no[nt]?|nicht|não|не)\b)[^\W\d_]{{2,}})?\s*
        (?:(?:{_COPULA})(?:\s*\w+ly\b)?|[:=\n])[:\s]*{_NOT_BUT}{_KIND}{_LETTER}
    | (?:{_CHOOSE})\s*{_KIND}{_LETTER}
    | (?:{_NOUN}\s*\(?([{_ALPHABET}])\)? | \(([{_ALPHABET}])\) | {_ALONE}\b(?-i:([{_ALPHABET}])))
        (?:\s+(?:is|must\s+be)\s+(?:the\s+)?(?:only\s+)?(?:correct|right|best|answer)(?:\s+(?:one|answer|option|choice))?{_ENDED}
        | \s+(?:ist|est|es|é|è)\s+(?:richtig|korrekt|correct[aeo]?|corrett[ao])\b | 是?正确)
    | (?:^|\n)[^\w\n]*(?:{_NOUN}|therefore|thus|hence|so)\b,?\s*{_LETTER}\W*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
_JOINED = rf"\s*(?:[,/&、和或]|还是|,?\s*\b(?:and|or|{'|'.join(CONJUNCTIONS)})\b)\s*{_KIND}"
_ANOTHER = re.compile(
    rf"(?:{_JOINED}\(?|\s*\()([{_ALPHABET}])\)?(?=\s*(?:$|\.(?!\w)|[,;:!?)\n。、]|and\b|or\b))", re.IGNORECASE
)
_NO_CLAIM = re.compile(rf"\b(?:{'|'.join(sorted(HEDGES))}|whether|suppose|assume|doubt|\w+n't)\b", re.IGNORECASE)
_MARKUP = re.compile(r"\\(?:text|math)[a-z]{0,2}\s*\{([^{}]*)\}|[*$`\"“”«»]")
_LOOK_ALIKE = str.maketrans("АВСЕНІЈ", "ABCEHIJ")  # letters of Cyrillic
_LABEL = re.compile(r"\(([A-Z])\)\s*|(?<!\w)([A-Z])[.):]\s*")
_SPACE = re.compile(r"\\(?:q?quad(?![a-z])|[ ,;!])|~")
_CHOICE = re.compile(rf"\(([{_ALPHABET}])\)(?:\s.*)?|([{_ALPHABET}])(?:[.:)。].*)?", re.DOTALL | re.IGNORECASE)
_OTHER_LABEL = re.compile(rf"(?:^[.:)]?|[\n.;,/]|{_JOINED})\s*(?:\([A-Za-z]\)|[{_ALPHABET}](?:[.:)]|$))")
_DENIED = re.compile(rf"[.:)\s]*(?:{'|'.join(sorted(COPULAS))})\b.*\b(?:{'|'.join(sorted(HEDGES))})\b")


def chosen_letter(text: str, where: Where, choices: str, question: str = "") -> str | None:
    """The letter, one of `choices`, that a response chooses; None where it chooses none or several.

    Where the answer may stand anywhere, and neither a box nor a tag is there, it is the last that a sentence states as
    the choice, or the whole text. The text of one of the question's options stands for its letter.
    """
    final = after_thinking(text)
    if final is None:
        return None
    boxed = None if where == "answer_tag" else _boxed(final)
    for found in (boxed, None if where == "boxed" else answer_tag(final)):
        if found is not None:  # an empty one too: what it stands for is not looked for elsewhere
            return letter_of(_lettered(found, question), choices)
    if where != "any":
        return None
    plain = _lettered(final, question)
    stated = next((each for each in reversed([*_STATED.finditer(plain)]) if _claims(plain, each)), None)
    if stated is None:
        return letter_of(plain, choices)
    place = next(place for place in range(1, stated.re.groups + 1) if stated[place])
    end = stated.end(place)
    another = _ANOTHER.match(plain, end + plain.startswith((")", "]"), end))
    several = another is not None and another[1].upper() != stated[place].upper()
    return None if several else letter_of(stated[place], choices)


def _boxed(text: str) -> str | None:
    """What the last box of a text holds; with the box before it, where the two are joined by a word or comma."""
    found = boxes(text)[-2:]
    contents = [text[box.begin : box.end].strip() for box in found]
    joined = len(found) == 2 and re.fullmatch(rf"\$?{_JOINED}\$?", text[found[0].outer_end : found[1].outer_begin])
    return " or ".join(contents) if joined else contents[-1] if contents else None


def _plain(text: str) -> str:
    """A text without markup and quotation marks, punctuation and letters of full width as others."""
    return _MARKUP.sub(r"\1", unicodedata.normalize("NFKC", text)).strip()


def _lettered(text: str, question: str) -> str:
    """A text without markup, in which the options of a question are their letters in brackets."""
    plain = _plain(text)
    named, letters = _options(question)
    return named.sub(lambda found: f"({letters[(found.lastindex or 1) - 1]})", plain) if letters else plain


@lru_cache(maxsize=1024)
def _options(question: str) -> tuple[re.Pattern[str], str]:
    """A pattern with a group for the text of each option that ends a question, and the letters of these groups."""
    plain = _plain(_SPACE.sub(" ", question))
    labels = list(_LABEL.finditer(plain))
    letters = "".join(label[1] or label[2] for label in labels)
    labels, letters = labels[letters.rfind("AB") :], letters[letters.rfind("AB") :]
    last = f"{plain}\n".index("\n", labels[-1].end()) if labels else 0
    ends = [*(label.start() for label in labels), last][1:]
    texts = [plain[label.end() : end].strip(" \n,;.") for label, end in zip(labels, ends, strict=True)]
    told = len({*texts}) == len(texts) and all(len(text) > 1 or text.isdigit() for text in texts)
    if not told or len(texts) < 2 or not string.ascii_uppercase.startswith(letters):
        return re.compile(""), ""
    found = sorted(zip(texts, letters, strict=True), key=lambda each: -len(each[0]))  # "1" is a part of "1/2"
    parts = (rf"((?:\(?{letter}[.):]\s*)?{re.escape(text)})" for text, letter in found)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?![.,]?\w){_ENDED}", re.IGNORECASE)
    return pattern, "".join(letter for _, letter in found)


def _claims(text: str, match: re.Match[str]) -> bool:
    """Whether a statement is made, neither asked nor supposed nor denied."""
    clause = re.split(r"[.,;:!?\n。]", text[max(0, match.start() - 200) : match.start()])[-1]
    end = re.search(r"[.!?\n。]", text[match.end() : match.end() + 200])
    return not _NO_CLAIM.search(clause) and (end is None or end[0] != "?")


def letter_of(text: str, choices: str) -> str | None:
    """The letter, one of `choices`, that an answer is or begins with; None where it is other text, or names several."""
    match = _CHOICE.fullmatch(_plain(text))
    if match is None:
        return None
    letter = (match[1] or match[2]).upper()
    letter = letter if letter in choices.upper() else letter.translate(_LOOK_ALIKE)
    rest = match[0][match.end(match.lastindex or 0) :].lstrip(")")
    other = _OTHER_LABEL.search(rest) or _DENIED.match(rest)
    return letter if letter in choices.upper() and not other else None


class MultipleChoice(Verifier):
    """The letter of a choice: `B`, `(B)`, `B. Paris`, `The answer is (B)`; never one that a sentence only mentions.

    The text of one of the options at the end of the question stands for its letter.

    Fields:
        extract: where the answer stands; with `any`, outside boxes and tags, also where a sentence states it.
        choices: the letters that may be chosen; another letter is unparsed.
    """

    extract: Literal["boxed", "answer_tag", "any"] = "any"
    choices: str = Field("ABCDEFGHIJ", min_length=2)

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed if no letter is chosen, error if the reference is not a letter."""
        reason = self.refuses(problem)
        if reason is not None:
            return Verdict(0.0, Status.ERROR, reason)
        chosen = chosen_letter(text, self.extract, self.choices, problem.question)
        if chosen is None:
            return Verdict(0.0, Status.UNPARSED, "no choice")
        reference = self._right(problem)
        if chosen == reference:
            return Verdict(1.0, Status.CORRECT, chosen)
        return Verdict(0.0, Status.WRONG, f"{chosen}, not {reference}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is no letter and no text of an option; else None."""
        if self._right(problem) is not None:
            return None
        return f"the reference {shortened(str(problem.reference))!r} is none of the choices {self.choices}"

    def _right(self, problem: Problem) -> str | None:
        """The letter of the reference, which may be the text of an option."""
        reference = problem.reference
        return letter_of(_lettered(reference, problem.question), self.choices) if isinstance(reference, str) else None

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the letter where `extract` looks for it."""
        return instruction_for(self.extract) if self.extract == "answer_tag" else LETTER

    def stated(self, problem: Problem, text: str) -> str | None:
        """The letter that a response chooses."""
        return chosen_letter(text, self.extract, self.choices, problem.question)


class ExactMatch(Extracting):
    """The answer is the reference, character by character.

    Fields:
        extract: where the answer stands; `all` is the whole text after the thinking.
        ignore_case: `Paris` is `paris`.
        ignore_space: runs of white space count as one, and none at the ends.
    """

    extract: Where | Literal["all"] = "boxed"
    ignore_case: bool = False
    ignore_space: bool = True

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where there is no answer, error where the reference is no text."""
        reason = self.refuses(problem)
        if reason is not None:
            return Verdict(0.0, Status.ERROR, reason)
        found = self.found(text)
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        if self._key(found) == self._key(str(problem.reference)):
            return Verdict(1.0, Status.CORRECT, shortened(found))
        return Verdict(0.0, Status.WRONG, f"{shortened(found)}, not {shortened(str(problem.reference))}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is no text; else None."""
        if isinstance(problem.reference, str):
            return None
        return f"ExactMatch compares texts, and the reference is {type(problem.reference).__name__}"

    def stated(self, problem: Problem, text: str) -> str | None:
        """The answer of a whole response, as it is compared."""
        found = self.found(text)
        return None if found is None else self._key(found)

    def _key(self, text: str) -> str:
        text = " ".join(text.split()) if self.ignore_space else text
        return text.casefold() if self.ignore_case else text


class Numeric(Extracting):
    """A number within a tolerance of the reference: |answer − reference| ≤ max(absolute, relative · |reference|).

    Fields:
        extract: where the answer stands.
        absolute, relative: the tolerances; at least one is above 0 (for exact numbers there is `Answer`).
    """

    extract: Where = "any"
    absolute: NonNegativeFloat = 0.0
    relative: NonNegativeFloat = 1e-4

    @model_validator(mode="after")
    def _tolerates_something(self) -> Numeric:
        if not self.absolute and not self.relative:
            raise ValueError("absolute and relative are both 0; use Answer for exact numbers")
        return self

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed if there is no number, error if the reference is not a number."""
        reference = measured_number(reference_text(problem))
        if reference is None:
            return Verdict(0.0, Status.ERROR, str(self.refuses(problem)))
        found = self.found(text)
        number = measured_number(found)
        if found is None or number is None:
            return Verdict(0.0, Status.UNPARSED, "no number" if found is None else f"no number: {shortened(found)}")
        allowed = max(Decimal(repr(self.absolute)), Decimal(repr(self.relative)) * abs(reference))
        if abs(number - reference) <= allowed:
            return Verdict(1.0, Status.CORRECT, shortened(found))
        return Verdict(0.0, Status.WRONG, f"{shortened(found)}, not {reference} ± {allowed:.3g}")

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem cannot be judged: its reference is no number; else None."""
        if measured_number(reference_text(problem)) is not None:
            return None
        return f"the reference {shortened(str(problem.reference))!r} is no number"

    def stated(self, problem: Problem, text: str) -> str | None:
        """The number of a whole response, in canonical form."""
        found = self.found(text)
        return None if found is None or measured_number(found) is None else canonical(found)


class ReasoningGymScorer(Extracting):
    """Asks the task that made the problem (`data.ReasoningGym`) to score the answer; needs the extra `gym`.

    Fields:
        extract: where the answer stands in the response (see `extract_answer`).
        partial_credit: keep the task's scores between 0 and 1; else anything short of 1 is worth 0.
    """

    extract: Where = "any"
    partial_credit: bool = False

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The task's verdict; an exception of its scorer is an error, never a reward.

        Raises:
            InputError: the package is absent.
        """
        from strop.data.generators import open_entry, open_task

        found = self.found(text)
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        extra = problem.extra
        if "task" not in extra or "index" not in extra:
            return Verdict(0.0, Status.ERROR, f"problem {problem.id} does not come from reasoning-gym")
        dataset = open_task(extra["task"], extra["size"], extra["seed"], extra["parameters"])
        entry = open_entry(dataset, extra["index"])
        if entry["question"] != problem.prompt:
            return Verdict(0.0, Status.ERROR, f"reasoning-gym no longer makes problem {problem.id} as it did")
        try:
            score = float(dataset.score_answer(answer=found, entry=entry))
        except Exception as error:  # a scorer may raise anything; it becomes a verdict that says so
            return Verdict(0.0, Status.ERROR, f"{type(error).__name__} in {extra['task']}: {shortened(str(error))}")
        return scored(score, shortened(found), self.partial_credit)
