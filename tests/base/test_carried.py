"""What `__main__` defines is the same in another process, by value; what cannot be pickled is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from strop.base import session
from strop.base.session import accept, carried
from strop.base.types import InputError

HERE = """
import json, math
from strop.base import session
from strop.base.session import carried

FACTOR = 6
def times(text):
    return FACTOR * math.floor(float(text))
class Kept:
    def reset(self, size: "Size"):
        return FACTOR
Size = int
class Other:
    pass
names = [session.remember(times), session.remember(lambda text: times(text) + 1), "__main__:Kept"]
print(json.dumps([names, carried(json.dumps(names)), carried("data: plain")]))
"""
THERE = """
import json, sys
from strop.base import session
from strop.base.session import accept
from strop.base.imports import found_by_name

names, code = json.load(sys.stdin)
accept(code)
print(*(session.recall(name)("7.5") for name in names[:2]), found_by_name(names[2]).__name__, Kept().reset(1), Size(2))
print("Other" in globals())
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    session.forget()


def python(code: str, given: str = "") -> str:
    return subprocess.run([sys.executable, "-c", code], input=given, check=True, capture_output=True, text=True).stdout


def test_another_process_has_what_is_named_and_what_it_needs() -> None:
    names, code, nothing = json.loads(python(HERE))
    assert nothing == {"modules": [], "defined": ""}
    assert python(THERE, json.dumps([names, code])).splitlines() == ["42 43 Kept 6 2", "False"]


def test_what_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()
    name = session.remember(lambda problem, text: float(lock.locked()))
    with pytest.raises(InputError, match="<lambda>"):
        carried(json.dumps([name]))


def test_nothing_is_taken_from_a_configuration_alone() -> None:
    """Its text has names; what they stand for comes from the process that wrote it."""
    accept(carried('{"piece": "__main__:Nobody"}'))
    assert session.recall("__main__:Nobody") is None
