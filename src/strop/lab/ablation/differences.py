"""In what two configurations differ, setting by setting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strop.config.schema import RunConfig

Changes = dict[str, tuple[str, str]]


def differences(base: RunConfig, other: RunConfig, but: Sequence[str] = ("recipe", "seed")) -> Changes:
    """Dotted key → (the base's value, the other's), readable, of all settings `but` these.

    A piece of another kind is one difference, written with its settings; of the same kind each setting is one.
    """
    left, right = base.model_dump(mode="json"), other.model_dump(mode="json")
    for name in but:
        left.pop(name), right.pop(name)
    return _between(left, right, "")


def _between(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str) -> Changes:
    found: Changes = {}
    for key in dict.fromkeys([*left, *right]):
        ours, theirs = left.get(key), right.get(key)
        if ours == theirs:
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("piece") == theirs.get("piece"):
            found |= _between(ours, theirs, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = (readable(ours), readable(theirs))
    return found


def readable(value: Any) -> str:
    """A setting as a person would write it: `PpoClip(clip_low=0.2)`, `[a, b]`, `none`."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        inner = ", ".join(f"{key}={readable(entry)}" for key, entry in value.items() if key != "piece")
        return f"{value.get('piece', '')}({inner})" if inner or "piece" not in value else str(value["piece"])
    if isinstance(value, list):
        return f"[{', '.join(map(readable, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
