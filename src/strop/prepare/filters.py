"""Steps that look at one problem at a time: unverifiable answers, figures, languages, tests of code, SFT data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny

from strop.base import hub
from strop.base.types import InputError, Problem, StropError, first_line
from strop.prepare.stage import Dropped, FilterStep, Stage, settle
from strop.prepare.text import collapsed, fold
from strop.verifiers.base import Verifier
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.coverage import Coverage
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.code.tests import standard_tests
from strop_verify.pool import default_workers
from strop_verify.verdict import Status

AT_ONCE = 256  # problems that wait for the verifier


class VerifierFilter(FilterStep):
    """A filter that judges texts with a verifier; several at once, unless it computes in this process."""

    verifier: SerializeAsAny[Verifier]

    def run(self, stage: Stage) -> None:
        """Every problem in turn."""
        at_once = default_workers() if self.verifier.isolated() else self.verifier.threads()
        if not at_once:
            super().run(stage)
            return
        with ThreadPoolExecutor(at_once) as threads:
            settle(stage, self._decisions(stage.problems(), threads))

    def _decisions(
        self, problems: Iterator[Problem], threads: ThreadPoolExecutor
    ) -> Iterator[tuple[Problem, Problem | Dropped]]:
        while batch := list(islice(problems, AT_ONCE)):
            yield from zip(batch, threads.map(self, batch), strict=True)


NO_ANSWERS = frozenset(
    ("proof", "notfound", "not found", "none", "null", "nan", "n/a", "na", "unknown", "unanswered", "see solution",
     "see above", "solution", "omitted", "no answer", "answer not found", "tbd", "?", "-")
)  # fmt: skip
_PROOF = re.compile(
    r"(?:^|[.!?:;,$)]\s?|\bthen |\band )(?:prove|show|demonstrate|verify) that\b|^(?:\W{0,20}prove|\W{0,20}proof)\b"
)
_ASKS = re.compile(
    r"\?|\b(?:find|compute|determine|calculate|evaluate|what|how many|how much|solve|simplify|express|give|list)\b"
)


class Verifiable(FilterStep):
    """Drops what no verifier can judge: proofs, missing answers, answers that the verifier refuses, too few tests.

    Tests that no program can pass are dropped too, as far as `CodeVerifier.refuses` sees it.

    Fields:
        verifier: decides for each problem without tests whether it can judge its answer (`Verifier.refuses`).
        min_tests: fewest tests of a code problem (Archer: five).
    """

    verifier: SerializeAsAny[Verifier] = MathVerifier(extract="any")
    min_tests: Annotated[int, Field(ge=1)] = 5

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or why it cannot be verified."""
        if is_code(problem.reference) or problem.domain == "code":
            tests = count_tests(problem.reference)
            if tests == 0:
                return Dropped("code without tests")
            if tests < self.min_tests:
                return Dropped(f"fewer than {self.min_tests} tests", str(tests))
            return self._judged_by(CodeVerifier(), problem)
        if is_proof(problem):
            return Dropped("asks for a proof")
        if isinstance(problem.reference, str) and fold(problem.reference).strip(" .$") in NO_ANSWERS:
            return Dropped("no answer", problem.reference)
        if "task" in problem.extra and "index" in problem.extra:
            return problem  # a reasoning-gym problem, which its task scores
        return self._judged_by(self.verifier, problem)

    def _judged_by(self, verifier: Verifier, problem: Problem) -> Problem | Dropped:
        refusal = verifier.refuses(problem)
        return problem if refusal is None else Dropped("the verifier cannot judge the answer", refusal)

    def run(self, stage: Stage) -> None:
        """Every problem in turn; then a note of how many references are compared only as texts."""
        found = Coverage(self.verifier)

        def judged() -> Iterator[tuple[Problem, Problem | Dropped]]:
            for problem in stage.problems():
                kept = self(problem)
                if isinstance(kept, Problem) and not is_code(kept.reference):
                    found.add(kept)
                yield problem, kept

        settle(stage, judged())
        for line in found.lines:
            stage.view.note(f"{self.title()}: {line}")


class AnswersAgree(VerifierFilter):
    """Drops problems whose answer differs from the one in their worked solution (Skywork-OR1).

    Fields:
        verifier: judges the solution as if it were a response.
        solution: name of the solution in `extra`.
        missing: what to do with problems without a solution.
        unreadable: what to do with problems in whose solution no answer is found.
    """

    verifier: SerializeAsAny[Verifier] = MathVerifier(extract="any")
    solution: str = "solution"
    missing: Literal["keep", "drop"] = "keep"
    unreadable: Literal["keep", "drop"] = "drop"

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or how answer and solution disagree; code is kept, since `ReferenceSolutions` runs it."""
        if is_code(problem.reference):
            return problem
        text = problem.extra.get(self.solution)
        if not isinstance(text, str) or not text.strip():
            return problem if self.missing == "keep" else Dropped("no solution to compare with")
        verdict = self.verifier(problem, text, False)
        if verdict.status == Status.WRONG:
            return Dropped("answer and solution disagree", verdict.detail)
        if verdict.status == Status.CORRECT:
            return problem
        if verdict.failed:
            return Dropped("the verifier failed on the solution", verdict.detail)
        if self.unreadable == "keep":
            return problem
        if verdict.undecided:
            return Dropped("undecided whether answer and solution agree", verdict.detail)
        return Dropped("no answer found in the solution")


_MENTION = (
    r"\b(?:figure|diagram|picture|image|graph|drawing|chart|sketch)s? (?:is |are |as )?"
    r"(?:shown|below|above|at (?:the )?right|on the (?:right|left)|provided|depicted)\b"
    r"|\b(?:see|refer to|in|from|as shown in) (?:the |this )?(?:figure|diagram|fig\.)"
    r"|\bas shown (?:below|above|on the (?:right|left))\b|, as shown\b|\b(?:the|following) (?:figure|diagram) shows"
)
_FIGURES = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"!\[|<img\b|\\includegraphics|\.(?:png|jpe?g|gif|svg|webp)\b", "has an image"),
        (r"\b(?:https?|ftp)://|\bwww\.[a-z0-9]", "has a link"),
        (r"[\[<]asy[\]>]|\\begin\{(?:tikzpicture|asy|picture)\}|<svg\b", "has a drawing"),
        (_MENTION, "needs a figure"),
    )
)


class LinksAndFigures(FilterStep):
    """Drops questions that have links or need a figure (Skywork-OR1).

    These are web addresses; Markdown, HTML and LaTeX images; drawings in Asymptote, TikZ and SVG; and words such as `as
    shown in the figure`.
    """

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or the link or figure that was found."""
        text = fold(problem.question)
        for pattern, reason in _FIGURES:
            found = pattern.search(text)
            if found is not None:
                return Dropped(reason, collapsed(text[max(0, found.start() - 20) : found.end() + 20]))
        return problem


SHORTEST_EXAMPLE = 6  # characters of input and output together
_COMMAND = re.compile(r"\\[A-Za-z]+|\$[^$]{0,2000}\$")
_WORD = re.compile(r"[^\W\d_]+")
_COMMON = {
    "english": "the of and is a to in that for are what how many it if be with as by on find each have has from at",
    "spanish": "el la los las de que en es un una por con para del se cuántos cuál su si al son como tiene",
    "french": "le la les des de et est un une que dans pour combien qui sur par du au avec sont il elle soit",
    "german": "der die das und ist ein eine zu den von mit wie viele sich auf für im nicht dem es sind wenn",
    "portuguese": "o os as de que em um uma para com por do da não quantos qual se ao são como tem",
    "italian": "il lo la gli le di che è un una per con del della quanti qual sono si nel come ha",
    "dutch": "de het een van en is dat op te in zijn met voor hoeveel wat als niet bij er",
    "polish": "w i na z się że do jest nie o ile jak dla od po który są",
    "turkish": "ve bir bu için ile de da kaç ne olan olarak daha kadar",
    "indonesian": "yang dan di dari untuk dengan adalah pada ini itu berapa jika ke",
}  # fmt: skip
_LANGUAGES = {language: frozenset(words.split()) for language, words in _COMMON.items()}


class EnglishOnly(FilterStep):
    """Drops questions in other languages (Open-Reasoner-Zero): other scripts, or other languages' common words.

    Fields:
        foreign_letters: largest share of letters outside the Latin and Greek scripts.
        foreign_words: a question is dropped if it has so many more common words of another language than English ones.
    """

    foreign_letters: Annotated[float, Field(ge=0, le=1)] = 0.1
    foreign_words: Annotated[int, Field(ge=1)] = 3

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or its script or language."""
        text = fold(_COMMAND.sub(" ", problem.question))
        letters = [letter for letter in text if letter.isalpha()]
        foreign = sum(not _is_familiar(letter) for letter in letters)
        if letters and foreign > self.foreign_letters * len(letters):
            return Dropped("not in English", f"{foreign} of {len(letters)} letters of another script")
        words = _WORD.findall(text)
        hits = {language: sum(word in common for word in words) for language, common in _LANGUAGES.items()}
        language = max(hits, key=lambda name: hits[name])
        if language != "english" and hits[language] - hits["english"] >= self.foreign_words:
            return Dropped("not in English", f"seems to be {language}")
        return problem


def count_tests(reference: Any) -> int:
    """The number of tests in a reference."""
    if not isinstance(reference, Mapping):
        return 0
    return len(reference.get("asserts") or reference.get("inputs") or ())


def select_tests(reference: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """The reference with only the tests at `places`."""
    lists = ("asserts",) if "asserts" in reference else ("inputs", "outputs")
    return {**reference, **{name: [reference[name][place] for place in places] for name in lists}}


def is_code(reference: Any) -> bool:
    """Whether a reference consists of tests."""
    return isinstance(reference, Mapping) and ("asserts" in reference or "inputs" in reference)


class IllustrativeTests(FilterStep):
    """Removes tests that the statement of a code problem shows (Archer), since a program could hard-code them.

    These are the tests in `extra["examples"]`, and those whose input and output both occur in the text.
    """

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem with its other tests; dropped if none is left."""
        reference = problem.reference
        if not is_code(reference) or "asserts" in reference:
            return problem
        shown = _examples(problem.extra.get("examples"))
        text = "".join(problem.question.split())
        pairs = zip(map(_squeezed, reference["inputs"]), map(_squeezed, reference["outputs"]), strict=True)
        left = [place for place, pair in enumerate(pairs) if pair not in shown and not _stands_in(pair, text)]
        if not left:
            return Dropped("only tests that the statement shows")
        if len(left) == count_tests(reference):
            return problem
        return replace(problem, reference=select_tests(reference, left))


class StandardTests(FilterStep):
    """Converts tests into one of three forms: stdin and stdout, function call, or assertions."""

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem with its tests in standard form, or why they cannot be converted."""
        if problem.domain != "code" and not is_code(problem.reference):
            return problem
        try:
            tests = standard_tests(problem.reference)
        except (ValueError, TypeError, KeyError) as error:
            return Dropped("tests of an unknown form", str(error))
        return problem if tests == problem.reference else replace(problem, reference=tests)


class ReferenceSolutions(VerifierFilter):
    """Drops code problems whose reference solutions all fail the tests (Skywork-OR1).

    Fields:
        verifier: runs the programs in a sandbox.
        solutions: name of the solutions in `extra` (Python, a text or a list of texts).
        attempts: number of solutions to try; one that passes all tests is enough.
        missing: what to do with code problems without a solution.
    """

    solutions: str = "solutions"
    attempts: Annotated[int, Field(ge=1)] = 3
    missing: Literal["keep", "drop"] = "drop"

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or why it is dropped.

        Raises:
            StropError: the verifier failed.
        """
        if not is_code(problem.reference):
            return problem
        value = problem.extra.get(self.solutions)
        found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        codes = [code for code in found if isinstance(code, str) and code.strip()][: self.attempts]
        if not codes:
            return problem if self.missing == "keep" else Dropped("no reference solution")
        details = []
        for code in codes:
            verdict = self.verifier(problem, f"```python\n{code.strip()}\n```", False)
            if not verdict.usable:
                raise StropError(
                    f"problem {problem.id!r}: the verifier failed ({verdict.detail}); its tests cannot be checked"
                )
            if verdict.passed:
                return problem
            details.append(verdict.detail)
        return Dropped("the reference solution fails the tests", details[0])


class TraceLength(FilterStep):
    """For SFT data: drops traces of more than `max_tokens` (ScaleRL: 12k).

    Fields:
        tokenizer: a folder or a hub name; None counts words, numbers and signs, which are somewhat fewer.
        trace: the trace: `reference`, or a name in `extra`.
    """

    max_tokens: Annotated[int, Field(ge=1)] = 12_000
    tokenizer: str | None = None
    trace: str = "reference"

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or the length of its trace."""
        text = trace_of(problem, self.trace)
        if text is None:
            return Dropped("no trace", self.trace)
        tokens = count_tokens(text, self.tokenizer)
        return problem if tokens <= self.max_tokens else Dropped(f"trace over {self.max_tokens} tokens", str(tokens))


class NoTrivialPrompts(FilterStep):
    """For SFT data: drops trivial prompts and traces (ScaleRL removes trivial prompts).

    Fields:
        min_words: fewest words, numbers and signs of the prompt.
        min_trace_words: the same of the trace; 0 allows prompts without one.
        trace: as in `TraceLength`.
    """

    min_words: Annotated[int, Field(ge=0)] = 3
    min_trace_words: Annotated[int, Field(ge=0)] = 10
    trace: str = "reference"

    def __call__(self, problem: Problem) -> Problem | Dropped:
        """The problem, or why it is trivial."""
        if count_tokens(problem.question) < self.min_words:
            return Dropped("trivial prompt", f"fewer than {self.min_words} words")
        text = trace_of(problem, self.trace) or ""
        if count_tokens(text) < self.min_trace_words:
            return Dropped("trivial trace", f"fewer than {self.min_trace_words} words")
        return problem


def is_proof(problem: Problem) -> bool:
    """Whether a problem only asks for a proof, according to its data set's columns or its text."""
    kinds = {str(problem.extra.get(name, "")).lower() for name in ("question_type", "problem_type")}
    if "proof" in kinds:
        return True
    text = fold(problem.question)
    return _PROOF.search(text) is not None and _ASKS.search(text) is None


def trace_of(problem: Problem, where: str) -> str | None:
    """The trace of an SFT problem; None if there is none."""
    value = problem.reference if where == "reference" else problem.extra.get(where)
    return value if isinstance(value, str) else None


_PIECE = re.compile(r"\w+|[^\w\s]")


def count_tokens(text: str, tokenizer: str | None = None) -> int:
    """The number of tokens of a text; of words and signs if there is no tokenizer."""
    if tokenizer is None:
        return sum(1 for _ in _PIECE.finditer(text))
    return len(_open_tokenizer(tokenizer).encode(text, add_special_tokens=False))


@cache
def _open_tokenizer(path: str) -> Any:
    from strop.model.files import load_tokenizer

    try:
        return load_tokenizer(path, cached_only=hub.cached_only(path))
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer {path}: cannot be loaded ({first_line(error)})") from error


def _is_familiar(letter: str) -> bool:
    """Whether a letter is Latin, Greek or mathematical."""
    code = ord(letter)
    return code < 0x0400 or 0x1E00 <= code < 0x2100 or 0x2100 <= code < 0x2200 or 0x1D400 <= code < 0x1D800


def _examples(value: Any) -> set[tuple[str, str]]:
    """The examples of a statement as pairs of input and output, from a list of pairs or a struct of two lists."""
    if isinstance(value, Mapping):
        return set(zip(map(_squeezed, value.get("input", ())), map(_squeezed, value.get("output", ())), strict=True))
    if isinstance(value, list):
        pairs = [pair for pair in value if isinstance(pair, Mapping)]
        return {(_squeezed(pair.get("input")), _squeezed(pair.get("output"))) for pair in pairs}
    return set()


def _squeezed(value: Any) -> str:
    return "".join(str(value).split())


def _stands_in(pair: tuple[str, str], text: str) -> bool:
    """Whether input and output occur in the text in this order; very short ones do not count."""
    first, second = pair
    place = text.find(first) if len(first) + len(second) >= SHORTEST_EXAMPLE and first else -1
    return place >= 0 and text.find(second, place + len(first)) >= 0
