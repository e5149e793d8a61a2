"""The variants of an ablation: a base and its variants.

Four ways, which may be combined:

    grid            `optim.lr=1e-4,3e-4` twice makes the product of both
    named           `slow:optim.lr=1e-4,optim.warmup_steps=10`
    leave-one-out   the recipes `FILE.loo_NAME` that a recipe declares
    study           a study of a paper (`studies`), which may change the base too
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strop import recipes
from strop.base.types import InputError
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.lab.ablation.studies import Study, find_study, settings_of
from strop.recipes.resolve import finished, resolve

Changes = dict[str, tuple[str, str]]


def differences(base: RunConfig, other: RunConfig, but: Sequence[str] = ("recipe", "seed")) -> Changes:
    """The settings that differ, as dotted key → (base value, other value), except those in `but`.

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


BASE = "base"
LEAVE_ONE_OUT = "loo_"


@dataclass(frozen=True)
class VariantRequest:
    """The requested variants: `grid` and `named` as on the command line, leave-one-out, and the name of a study."""

    grid: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    leave_one_out: bool = False
    study: str | None = None


@dataclass(frozen=True)
class Variant:
    """A named configuration with its differences from the base; `folder` is its name in the file system."""

    name: str
    config: RunConfig
    changes: Changes = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return re.sub(r"[^A-Za-z0-9._=+-]", "-", self.name).lstrip(".-") or "variant"


@dataclass(frozen=True)
class Variants:
    """The base and then its variants; `notes` list the variants that were left out, with reasons."""

    all: tuple[Variant, ...]
    notes: tuple[str, ...]


def variants(target: str, wanted: VariantRequest, sets: Sequence[str] = (), small: bool = False) -> Variants:
    """The base and its variants; `sets` and `small` (the tiny form) hold for all of them.

    Raises:
        InputError: a setting is invalid, two variants have one name, or there is nothing to compare.
    """
    declared: list[Variant] = []
    if wanted.study is None:
        base = resolve(target, list(sets), small)  # first of all: without the recipe there are no variants to ask for
    else:
        base, declared = _studied(target, find_study(wanted.study), sets, small)
    if not (wanted.study or wanted.grid or wanted.named or wanted.leave_one_out):
        raise InputError(
            "say what to vary: --leave-one-out, --study NAME, --grid key=a,b,c or --variant NAME:key=value"
        )
    found: list[Variant] = []
    notes: list[str] = []
    if wanted.leave_one_out:
        declared += _declared(target, base, sets, small)
    for variant in [*declared, *_grid(base, wanted.grid), *(_named(base, text) for text in wanted.named)]:
        _add(variant, found, notes)
    if not found:
        raise InputError(f"nothing differs from {target}" + (f": {notes[0]}" if notes else ""))
    return Variants((Variant(BASE, base), *found), tuple(notes))


def _add(variant: Variant, found: list[Variant], notes: list[str]) -> None:
    if not variant.changes:
        notes.append(f"{variant.name}: left out, it is the base itself under these settings")
        return
    for other in found:
        if other.folder == variant.folder:
            raise InputError(f"two variants are called {variant.name!r}; give one another name")
        if other.config == variant.config:
            notes.append(f"{variant.name}: left out, it is the same as {other.name}")
            return
    if variant.folder == BASE:
        raise InputError(f"a variant cannot be called {BASE!r}, which is the recipe as it is; choose another name")
    found.append(variant)


# ---------------------------------------------------------------------- grids and named changes


def _grid(base: RunConfig, grid: Sequence[str]) -> list[Variant]:
    axes = []
    for text in grid:
        key, equals, values = text.partition("=")
        parts = split(values)
        if not equals or not key.strip() or not parts:
            raise InputError(f"--grid {text!r}: write key=a,b,c, e.g. --grid optim.lr=1e-4,3e-4")
        if key.strip() == "seed":
            raise InputError("--grid seed: seeds are paired over all variants; give them by --seeds 0,1,2")
        axes.append([(key.strip(), part) for part in parts])
    keys = [axis[0][0] for axis in axes]
    if len(set(keys)) < len(keys):
        raise InputError(f"--grid names {next(k for k in keys if keys.count(k) > 1)} twice; give all values at once")
    found = []
    for point in itertools.product(*axes) if axes else ():
        name = ",".join(f"{_short(key, keys)}={value}" for key, value in point)
        found.append(_edited(base, name, [f"{key}={value}" for key, value in point], "--grid"))
    return found


def named_sets(text: str) -> tuple[str, list[str]]:
    """The name and the settings of `NAME:key=value,key=value`.

    Raises:
        InputError: it is written otherwise.
    """
    name, colon, rest = text.partition(":")
    sets = split(rest)
    if not colon or not name.strip() or not sets or not all("=" in part for part in sets):
        raise InputError(f"--variant {text!r}: write NAME:key=value, more settings with commas between")
    return name.strip(), sets


def _named(base: RunConfig, text: str) -> Variant:
    name, sets = named_sets(text)
    if any(part.partition("=")[0].strip() == "seed" for part in sets):
        raise InputError(f"--variant {name}: seeds are paired over all variants; give them by --seeds 0,1,2")
    return _edited(base, name, sets, f"--variant {name}")


def _edited(base: RunConfig, name: str, sets: list[str], origin: str) -> Variant:
    try:
        config = edit(base, sets)
    except InputError as error:
        raise InputError(f"{origin}: {str(error).removeprefix('--set: ')}") from error
    return Variant(name, config, differences(base, config))


def split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes, without the empty ones.

    Example: `{piece="Cispo", max_ratio=4},PpoClip` → two parts.
    """
    parts, begin, depth, quote = [], 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[begin:place])
            begin = place + 1
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def _short(key: str, keys: Sequence[str]) -> str:
    """The last part of a key, where no other key ends in it."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


# ---------------------------------------------------------------------- leaving one out


def _declared(target: str, base: RunConfig, sets: Sequence[str], small: bool) -> list[Variant]:
    """The variants `FILE.loo_NAME` that a recipe declares."""
    names = [info.name for info in recipes.catalogue() if _left_out(target, info.name) is not None]
    found = [(_left_out(target, name) or name, resolve(name, list(sets), small)) for name in names]
    if not found:
        raise InputError(
            f"{target} declares no leave-one-out variants ({short_name(target)}.{LEAVE_ONE_OUT}NAME); name changes "
            "with --variant NAME:key=value"
        )
    return [Variant(name, config, differences(base, config)) for name, config in found]


def short_name(target: str) -> str:
    """A recipe's name as it is, which may hold points; a file's without its folder and ending."""
    path = Path(target)
    return path.stem if path.suffix in (".py", ".toml", ".json") else target


def _left_out(target: str, name: str) -> str | None:
    """`plan` of `scalerl.loo_plan`; None for what is no such variant of `target`."""
    own = name.removeprefix(f"{target}.").replace("-", "_")
    return own.removeprefix(LEAVE_ONE_OUT) if name != own and own.startswith(LEAVE_ONE_OUT) else None


# ---------------------------------------------------------------------- studies


def _studied(target: str, study: Study, sets: Sequence[str], small: bool) -> tuple[RunConfig, list[Variant]]:
    """The base of a study and its variants: what the study sets comes before the tiny form, `sets` after it."""
    whole = _edited(resolve(target), BASE, settings_of(study.set), "--study").config
    base = finished(whole, sets, small)
    found = []
    for line in study.variants:
        config = _edited(whole, line.name, settings_of(line.set), f"--study: {line.name}").config
        config = finished(config, sets, small, whole)
        found.append(Variant(line.name, config, differences(base, config)))
    return base, found
