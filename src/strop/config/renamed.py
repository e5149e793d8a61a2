"""Settings that have another name now or are gone, so that configurations of earlier versions go on working.

    data = accepted({"model": {"path": "base", "gpu_kernels": True}})      # {"model": {"path": "base"}}
    note: model.gpu_kernels is no setting any more and is left out: …      # on stderr, once in a process

Applied to every configuration that is read: run folders, JSON and TOML files, `--set`.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

from strop.base.types import InputError


@dataclass(frozen=True)
class Change:
    """The new name or value of an old setting.

    Attributes:
        old: its dotted key; `key=value` where only this value is gone.
        new: the dotted key that it has now, or `key=value` where the value has another name; None where it was removed.
        reason: why it was removed.
        default: its default value; leaving that out is not worth a note.
    """

    old: str
    new: str | None
    reason: str = ""
    default: Any = None


_NO_PAGES = "the embedded engine keeps keys and values in slots on every device, and vLLM (engine=Vllm) has pages"
CHANGES = (
    Change("model.gpu_kernels", None, "on a GPU the modules of transformers and torch's operators compute", True),
    Change("engine.cache", None, _NO_PAGES, "auto"),
    Change("engine.page_tokens", None, _NO_PAGES, 64),
    Change("engine.cache_memory", None, _NO_PAGES, 0.5),
    Change("engine.cache_pages", None, _NO_PAGES),
    Change("orchestration.weights=collective", None, "weights go to generators in memory or as files"),
    Change("algorithm.truncation_mask=after", "algorithm.truncation_mask=drop"),
    Change("algorithm.truncation_mask=before", "algorithm.truncation_mask=drop_before"),
)

_printed: set[str] = set()


def accepted(data: dict[str, Any]) -> dict[str, Any]:
    """A configuration, or edits of one, with today's settings; notes on what was changed go to stderr, each once."""
    found, notes = translated(data)
    for note in notes:
        if note not in _printed:
            _printed.add(note)
            print(f"note: {note}", file=sys.stderr)
    return found


def translated(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A copy of `data` with today's settings, and a line for each setting that was renamed or left out.

    Where the old and the new name are both given, the value of the new one counts.

    Raises:
        InputError: a renamed setting belongs into a section that is given as plain text.
    """
    found = copy.deepcopy(data)
    notes: list[str] = []
    for change in CHANGES:
        key, _, only = change.old.partition("=")
        value = _taken(found, key, only)
        if value is _ABSENT:
            continue
        if change.new is None and value == change.default:
            continue
        if change.new is None:
            notes.append(f"{change.old} is no setting any more and is left out: {change.reason}")
        else:
            target, _, named = change.new.partition("=")
            notes.append(f"{change.old} is now called {change.new}")
            _given(found, target, named or value)
    return found, notes


_ABSENT = object()


def _taken(data: dict[str, Any], key: str, only: str) -> Any:
    """The value at a dotted key, which is removed; `_ABSENT` where there is none, or another than `only`."""
    *sections, last = key.split(".")
    section: Any = data
    for name in sections:
        section = section.get(name) if isinstance(section, dict) else None
    if not isinstance(section, dict) or last not in section or (only and section[last] != only):
        return _ABSENT
    return section.pop(last)


def _given(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key that has no value yet."""
    *sections, last = key.split(".")
    section = data
    for name in sections:
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            raise InputError(f"{key}={value!r} does not go with {name}={section!r}; write the latter as a table")
    section.setdefault(last, value)
