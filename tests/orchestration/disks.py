"""Small real disks for tests of full ones."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """A file system of `size` (as mount takes it) at `place`, which is made; skips the test where none can be had."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "strop-test", place], capture_output=True)
    if done.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root, and a system that lets it")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
