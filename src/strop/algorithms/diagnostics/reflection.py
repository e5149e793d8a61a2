"""Reflection: responses in which the policy stops and looks again, by five patterns (Open-Reasoner-Zero, Figure 4)."""

from __future__ import annotations

PATTERNS = ("wait,", "recheck", "retry", "alternatively,", "however,")


def reflections(text: str) -> dict[str, int]:
    """How often each pattern occurs in the lower-cased text.

    The paper's five strings, as they stand there. Its released code leaves capitals as they are, so that "Wait," does
    not count, and asks for a comma or a space after "recheck"; here a sentence may begin with the word.
    """
    lowered = text.lower()
    return {pattern: lowered.count(pattern) for pattern in PATTERNS}


def is_reflective(text: str) -> bool:
    """Whether any of the patterns occurs."""
    lowered = text.lower()
    return any(pattern in lowered for pattern in PATTERNS)
