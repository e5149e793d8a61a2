"""Choice letters: `B`, `(B)`, `B. Paris`, `The answer is (B)`."""

from __future__ import annotations

import re

from strop_verify.boxes import last_boxed
from strop_verify.extract import Where, after_thinking, answer_tag, extract_answer

_CHOICE = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*(?:\(([A-Za-z])\)|([A-Za-z]))(?:\}|$|[.:)].*|(?<=\))\s.*)",
    re.DOTALL,
)
_STATED = re.compile(
    r"\b(?:answer|choice|option)\b(?:\s+is)?\s*:?\s*(?:\*\*|\$|\\text\{)*\s*\(?([A-Za-z])\)?(?![A-Za-z'])",
    re.IGNORECASE,
)


def chosen_letter(text: str, where: Where, choices: str) -> str | None:
    """The letter, one of `choices`, that a response chooses; None where it chooses none.

    Where the answer may stand anywhere, and neither a box nor a tag is there, it stands after "the answer is".
    """
    if where != "any":
        found = extract_answer(text, where)
        return None if found is None else letter_of(found, choices)
    final = after_thinking(text)
    if final is None:
        return None
    for found in (last_boxed(final), answer_tag(final)):
        if found is not None:  # an empty one too: what it stands for is not looked for elsewhere
            return letter_of(found, choices)
    stated = [match.group(1).upper() for match in _STATED.finditer(final)]
    if stated:
        return stated[-1] if stated[-1] in choices.upper() else None
    return letter_of(final.strip(), choices)


def letter_of(text: str, choices: str) -> str | None:
    """The letter, one of `choices`, that an answer is or begins with; None where there is none."""
    match = _CHOICE.fullmatch(text.strip(" $*\n"))
    letter = (match.group(1) or match.group(2)).upper() if match is not None else None
    return letter if letter is not None and letter in choices.upper() else None
