"""The verifier of bench/gpu_step.py: about every other completion is right, whatever it says."""

from __future__ import annotations

import zlib

from strop.base.types import Problem


def even(problem: Problem, text: str) -> bool:
    """Whether the text's checksum is even."""
    return zlib.crc32(text.encode()) % 2 == 0
