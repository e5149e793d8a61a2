r"""Where a response states its answer: a marked place, or a sentence that asserts it.

Markers come first, the last of them counts: boxes, an answer tag, `####`, "Answer:", "the answer is". Without one it
is a formula that is, or ends, the text, or the last sentence that says what something is. A sentence that denies,
compares, guesses or revises states nothing, nor do two in one, and a number is never picked out of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from strop_verify.extract import Box, after_thinking, answer_tag, boxes
from strop_verify.math.expressions import Node, TooMuch, Unreadable, refuse_text
from strop_verify.math.grammar import Reading, read
from strop_verify.math.latex import unescaped
from strop_verify.math.wordings import NO_VALUE
from strop_verify.verdict import shortened
from strop_verify.words import WORDS

OPEN_THINKING = "the think block is never closed"
NO_ANSWER = "no answer"
_WINDOW = 2400
_LONGEST = 300  # characters of an answer in a sentence
_BETWEEN = 70  # characters between boxes that belong together


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.VERBOSE)


_CHAT = re.compile(r"<\|[A-Za-z0-9_]{1,40}\|>(?:\s*(?:user|assistant|system))?|```\w*")  # and fences
_ANNOUNCED = rf"(?<![A-Za-z])(?:{WORDS['answers']})\s*(?:[:：]|(?:{WORDS['announces']})(?!\w*[A-Za-z]))\s*\**"
_MARKER = _pattern(
    _ANNOUNCED
    + r""" | (?m:^)[ ]*(?:\#\#\#\#|A:|\**\s*(?:final\s+)?answer\s*\**\s*(?::|$))\s*\**
    | \b(?:final\s+)?answer\s*:\s*\**
    | \b(?:answer|result|(?:option|choice)(?=\s+\S+\s+[\W_]*(?-i:[A-J])\b))(?:\s+(?:to|of|for)\b[^.\n$]{0,60})?
      \s+(?:is|are|must\ be|should\ be|equals|=)(?![a-z])\s*:?"""
)
_DOUBT = _pattern(WORDS["doubts"])
_ASIDE = _pattern(  # what follows is said of something else
    r"[,(]\s*(?:(?:and|und|et|y|e|а|и)\ )?(?:not|nicht|non|no|не)\b|\b(?:because|since)\b"
)
_CONCLUDED = _pattern(r",\s+(?:and\s+)?(?:so|thus|hence|therefore)\s+(?=\w|\$)")  # what stands before is no part of it
_REVISED = _pattern(r"\b(?:wait|actually|oops|sorry|correction|mistake|(?:is|was)\ (?:wrong|incorrect))\b")
_REVISES = _pattern(
    r"""\b(?:but|thus|so|hence|therefore|then|final|finally|actually|wait|instead|however|no|not|wrong|correct|again
    |check|which|rather|becomes|equals|gives)\b | \\(?:Right|right|implies|Long)\w{0,20}arrow | ^\s*(?:=|\\approx)"""
)
_DENIED = re.compile(r"[\s$*.)\]\\]*(?:(?:is|was|are)\s+(?:not|wrong|incorrect|false)|isn't|wasn't)\b", re.IGNORECASE)
_JOINED = re.compile(r"\b(?:and|or)\b")
_SEPARATOR = re.compile(r"\b(?:and|or)\b|[,;&]")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_SENTENCES = re.compile(
    r"(?<=[.!?])(?:\s*[\"')\]$*]+)?\s+(?=[A-ZÀ-ÞА-Я$\\(\[*#<\"'-])|(?<=[。！？।])\s*(?=\S)|\n\s*\n|\n(?=\S)"
)
_SENTENCE = re.compile(r"\\text\w*\{([^{}]*)\}")
_BOLD = re.compile(r"\*\*([^*$\n]+)\*\*")
_DELIMITED = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# Verbs after which a sentence says what something is.
_SAYS = _pattern(
    r"""\b(?:is|are|was|were|equals?|be|gives?|gets?|has|have|had|costs?|makes?|made|left\ with|totals?|obtain
    |(?:amounts?|comes?|leads?)\ to|(?:in|de)creases\ by|approximately|exactly|only|about|roughly)\b\s*:? | :(?!\d)"""
)
_LEADS = _pattern(
    r"""^(?:so|thus|hence|therefore|then|finally|now|and|that\ is|i\.e\.|in\ total|altogether|or|also|step\ \d+
    |we\ (?:get|have|find)|(?:this|which)\ gives)\b[\s,:]* | ^[\s,:>*\#]+(?=\S) 
    | ^(?-i:[^\W\d_a-z])[^=\d,，、]*[,，、]\s*(?=[a-z]\s?=)"""
)
_IS_ANSWER = r"is\ (?:the|our|my)\ (?:final\ |correct\ |required\ )?(?:answer|solution|result)"
_ANSWER_ENDS = _pattern(rf"\s+{_IS_ANSWER}\s*$")
_ENDS = _pattern(
    rf"\s+(?:{_IS_ANSWER}|left(?:\s+over)?|in\ (?:total|all)|altogether|total|remaining|each|more|now)\s*$"
    rf"|\s*(?:{WORDS['states']})\s*$"
)
_TWO = re.compile(r"\d.*\b(?:and|but|while)\b", re.DOTALL)


class Finder(NamedTuple):
    """Finds answers and reads them; where none is marked, in `latex` formulas in delimiters and `plain` sentences."""

    latex: bool = True
    plain: bool = True

    def find(self, text: str, where: str, box_required: bool = False, several: bool = False) -> Reading | str:
        """The answer of a whole response, or why it has none; only the last box where not `several` are asked."""
        final = after_thinking(text)
        if final is None:
            return OPEN_THINKING
        final = unescaped(final)
        if where == "any":
            return self.in_prose(final)
        if where == "boxed":
            return self._boxed(final, boxes(final), several)
        found = answer_tag(final, box_required)
        return NO_ANSWER if found is None else self.read(found)

    def read(self, text: str) -> Reading | str:
        """An answer of which the extent is known, or why it cannot be read."""
        if (reason := refuse_text(text)) is not None:
            return reason
        try:
            return read(text)
        except Unreadable as error:
            sentence = _SENTENCE.fullmatch(text.strip())
            found = self._asserted(sentence[1], marked=True) if sentence is not None else NO_ANSWER
            return f"cannot be read: {shortened(text)}: {error}" if isinstance(found, str) else found
        except TooMuch as limit:
            return f"beyond the bounds: {limit}"
        except RecursionError:
            return "beyond the bounds: too deeply nested"

    def in_prose(self, text: str) -> Reading | str:
        """The answer of a text that may state it in any way; references are read by it too."""
        text = _CHAT.sub(" ", unescaped(text)).strip()
        found = boxes(text)
        tagged = answer_tag(text)
        if tagged is not None and text.rfind("<answer>") > (found[-1].outer_end if found else -1):
            return self.read(tagged)
        if found:
            after = text[found[-1].outer_end :][-_WINDOW:]
            said = list(_MARKER.finditer(after))
            later = self._asserted(after[said[-1].end() :], marked=True) if said else NO_ANSWER
            return later if isinstance(later, Reading) else self._boxed(text, found)
        text, emphasized = text.replace("**", " "), _BOLD.sub(r" $\1$ ", text)
        markers = list(_MARKER.finditer(text := _window(text)))
        if not markers:
            return self._unmarked(_window(emphasized.replace("**", " ")))
        clause = re.split(r"[.,;:!?\n]", text[: markers[-1].start()][-200:] + markers[-1][0].rstrip(" :"))[-1]
        if _DOUBT.search(clause):
            return "the answer is denied"
        after = text[markers[-1].end() :]
        return "the answer is taken back" if _REVISED.search(after) else self._asserted(after, marked=True)

    def _boxed(self, text: str, found: list[Box], several: bool = True) -> Reading | str:
        """The contents of the last boxes that belong together, whatever stands around them."""
        if not found or _taken_back(text, found):
            return "the answer is denied" if found else NO_ANSWER
        group = [found[-1]]
        for box in reversed(found[:-1]):
            between = text[box.outer_end : group[0].outer_begin]
            if not _belong_together(between) or not (several or " or " in between):  # \boxed{1} or \boxed{2}
                break
            group.insert(0, box)
        contents = list(dict.fromkeys(content for box in group if (content := text[box.begin : box.end].strip())))
        worded = _JOINED.search(text[group[0].outer_end : group[-1].outer_begin]) is not None
        return self.read((r"\text{ and }" if worded else ",").join(contents)) if contents else NO_ANSWER

    def _unmarked(self, text: str) -> Reading | str:
        """The answer of the last sentence that asserts one; if a later one hedges or revises, there is no answer."""
        sentences = [sentence for sentence in _SENTENCES.split(text.strip()) if sentence.strip()]
        for sentence in reversed(sentences[-3:]):
            sentence = _CONCLUDED.split(sentence)[-1]
            hedged = _DOUBT.search(_DELIMITED.sub(" ", sentence))
            found = self._asserted(sentence, marked=False) if self.plain else NO_ANSWER
            if isinstance(found, str) and self.latex and not hedged:
                found = self._last_formula(sentence)
            if isinstance(found, Reading):
                return found
            if hedged or _REVISES.search(sentence):
                return "no sentence asserts an answer"
        return NO_ANSWER

    def _last_formula(self, sentence: str) -> Reading | str:
        r"""The delimited formula, or list of them, that ends a sentence or is called the answer: `$x=3$ or $x=4$.`"""
        whole = sentence.rstrip(" \n.,;!。！")
        stripped = _ANSWER_ENDS.sub("", whole)
        formulas = list(_DELIMITED.finditer(stripped))
        if not formulas or formulas[-1].end() != len(stripped):
            return NO_ANSWER
        begin = formulas[-1].start()
        for earlier in reversed(formulas[:-1]):
            if not re.fullmatch(r"\s*(?:,|;|,?\s*(?:and|or))\s*", stripped[earlier.end() : begin]):
                break
            begin = earlier.start()
        if stripped != whole and _stripped(stripped[:begin]):
            return NO_ANSWER  # who calls it the answer, or what is done with it first, is not known
        return self.read(stripped[begin:])

    def _asserted(self, text: str, marked: bool) -> Reading | str:
        """What a sentence says that something is; `marked`: it begins where the answer is announced."""
        sentence = _ASIDE.split(_first_sentence(text))[0] if marked else text.strip()
        if _DOUBT.search(_DELIMITED.sub(" ", sentence)):
            return "the sentence is no assertion"
        for begin, candidate in _candidates(sentence):
            try:
                found = read(candidate)
            except (Unreadable, TooMuch, RecursionError):
                continue
            if _states(found, marked or (not begin and len(found.text) < 6)):  # (B)
                earlier = (sentence[verb.end() : begin] for verb in _SAYS.finditer(sentence[:begin]))
                return "a sentence with several answers" if not marked and any(map(_TWO.search, earlier)) else found
        return self.read(_stripped(sentence)) if marked and sentence else NO_ANSWER


def _taken_back(text: str, found: list[Box]) -> bool:
    """Whether what follows the last box denies it or, where boxes differ, doubts it."""
    rest = text[found[-1].outer_end :]
    several = len({text[box.begin : box.end] for box in found}) > 1
    return _DENIED.match(rest) is not None or (several and _DOUBT.search(_first_sentence(rest)) is not None)


def _window(text: str) -> str:
    """The end of a long text, from the beginning of a line on where one begins in it."""
    end = text[-_WINDOW:]
    return end if len(end) == len(text) else end.partition("\n")[2] or end


def _belong_together(between: str) -> bool:
    """Whether boxes with this text between them are one answer: nothing in it revises, and words only join."""
    if len(between) >= _BETWEEN or _REVISES.search(between):
        return False
    return not _WORD.search(between) or _SEPARATOR.search(between) is not None


def _first_sentence(text: str) -> str:
    parts = [part for part in _SENTENCES.split(text.strip()) if part.strip(" $*\n")]
    first = parts[0] if parts else ""
    return text.strip()[:_LONGEST] if first.count("$") % 2 and "\n" in text else first  # a display has its own lines


def _stripped(text: str) -> str:
    before = None
    while before != text:
        before, text = text, _LEADS.sub("", text.strip().rstrip(".!,;。！"))
    return text


def _candidates(sentence: str) -> Iterator[tuple[int, str]]:
    """Parts of a sentence that may be the answer: all of it, then what follows each verb, the last one first."""
    begins = [0, *reversed([match.end() for match in _SAYS.finditer(sentence)])]
    for begin in begins:
        text = _stripped(sentence[begin:])
        yield from ((begin, each) for each in (text, _ENDS.sub("", text)) if each and len(each) <= _LONGEST)


def _states(found: Reading, marked: bool) -> bool:
    """Whether what was read is only mathematics, or, where the answer is announced, a choice."""
    if marked and found.letters is not None:
        return True
    return _is_clean(found.answer) and (marked or found.letters is None or len(found.letters) > 1)


def _is_clean(answer: Node) -> bool:
    """Whether no words belong to an answer."""
    if answer.op in ("tuple", "list", "set", "relation"):
        return all(map(_is_clean, answer.args[answer.op == "relation" :]))
    return (answer.op != "words" or answer.value in NO_VALUE) and not (answer.op == "measure" and answer.value.words)
