"""A verifier of the user's own, which runs in processes apart."""

from __future__ import annotations

from strop.base.types import Problem


def judge(problem: Problem, text: str) -> bool:
    """Of the text alone."""
    return len(text) % 2 == 0
