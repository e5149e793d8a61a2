"""A verifier that hangs on some completions and dies on others."""

from __future__ import annotations

import os
import time

from strop.base.types import Problem


def judge(problem: Problem, text: str) -> bool:
    """By the completion's first number."""
    first = int(text.split()[0])
    if first % 40 == 0:
        time.sleep(3600)
    if first % 40 == 1:
        os._exit(3)
    return first % 2 == 0
