"""Every setting of a run as Markdown, from the schema: its key, what may stand there, its default, what it does.

The description of a setting is read from the docstring of its model, below `Fields:` or `Attributes:`. `PLAIN` has the
others.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from strop.base.near import nearest
from strop.base.pieces import Piece, choices, field_type
from strop.base.types import InputError
from strop.config.schema import RunConfig
from strop.run.sft_config import SftConfig

HEAD = """# Every setting

Written by `strop settings --out docs/settings.md` from the schema, and held against it by a test. Give a setting as
`--set KEY=VALUE`, as a line of a TOML file, or in Python's `settings={"KEY": VALUE}`. `strop recipes show NAME` prints
what a recipe sets; where it says nothing, the default below holds. *Required* are those without one, which recipes
give. `strop settings sampling` prints a part of this page.

A setting that is a *piece* takes a name (`--set algorithm.loss=Cispo`), then its own fields
(`--set algorithm.loss.max_ratio=4`), or both at once: `--set 'algorithm.loss={piece="Cispo", max_ratio=4}'`. A class of
yours is `module:Class`, with `--import module`. The pieces stand [below the settings](#pieces).
"""
FINE_TUNING = (
    "What `strop sft` takes by `--set`, apart from `model`, `seed`, `device` and `trackers`, which it has as runs do."
)
ROW = "| {} | {} | {} | {} |"
PLAIN = {
    "recipe": "the name it was made from; it names the run's folder and stands in titles.",
    "seed": "of everything that is drawn; runs that differ only in it are repetitions.",
    "steps": "training steps, each with one weight version.",
    "device": "`auto` takes a GPU where torch sees one.",
    "trackers": "where metrics go in addition to the run's own folder; each needs the extra of its name.",
    "model.fresh": "a new small model instead.",
    "model.fresh.hidden_size": "width of the states between layers.",
    "model.fresh.layers": "decoder layers.",
    "model.fresh.heads": "of the queries.",
    "model.fresh.kv_heads": "of keys and values.",
    "model.fresh.head_dim": "width of a head.",
    "model.fresh.tie_embeddings": "whether the head is the embedding.",
    "model.fresh.max_positions": "the longest sequence.",
    "model.fresh.rope_theta": "base of the rotary frequencies.",
    "model.fresh.initializer_range": "standard deviation of the drawn weights.",
    "model.revision": "of a hub name: a branch, tag or commit; none takes the newest.",
    "model.trust_remote_code": "run code that comes with the model; a file may ask for it, the command must name it.",
    "sampling.temperature": "what logits are divided by; 0 is greedy, with log-probs at temperature 1.",
    "sampling.top_p": "only the most probable tokens are drawn from, of this probability together; training wants 1.",
    "sampling.top_k": "only so many most probable tokens are drawn from; training wants none.",
    "sampling.stop_token_ids": "token ids that end a completion, in addition to the model's own end of sequence.",
    "checkpoint.every": "steps between two checkpoints.",
    "checkpoint.keep": "how many of the newest stay.",
    "checkpoint.keep_best": "whether the best by held-out pass rate stays too.",
}
NAMES = r"\w+(?:, \w+)*"  # of fields, before the colon
TABLE = (ROW.format("setting", "what may stand there", "default", "what it does"), "| --- | --- | --- | --- |")


def reference(part: str = "") -> str:
    """The Markdown page of all settings; with a `part`, the rows of the keys and pieces that begin with it.

    The settings of `strop sft` are listed if a run has none of that name.

    Raises:
        InputError: no key and no piece begins with `part`.
    """
    families: dict[type[Piece], list[str]] = {}
    settings = list(_rows(RunConfig, "", families))
    shared = {key for key, _ in settings}
    tuning = [found for found in _rows(SftConfig, "", {}) if found[0] not in shared]
    if part:
        return _part(part, [*settings, *tuning], families)
    lines = [HEAD]
    section = ""
    sections = {
        key: key.split(".")[0] if "." in key or _models(field_type(RunConfig, key)) else "run" for key, _ in settings
    }
    for key, row in sorted(settings, key=lambda found: sections[found[0]] != "run"):
        if sections[key] != section:
            section = sections[key]
            title = "The run" if section == "run" else f"`{section}`"
            lines += [f"\n## {title}\n", *_first_sentence(section), *TABLE]
        lines.append(row)
    lines += [f"\n## Fine-tuning\n\n{FINE_TUNING}\n", *TABLE, *(row for _, row in tuning)]
    lines += ["\n## Pieces\n\nBy family, each with the settings that take one.\n"]
    for family, keys in sorted(families.items(), key=lambda found: found[0].__name__):
        lines += _family(family, keys)
    return "\n".join(lines) + "\n"


def _part(part: str, settings: list[tuple[str, str]], families: dict[type[Piece], list[str]]) -> str:
    """The rows of `part`, in one table; the steps of a preparation are pieces that no setting of a run takes."""
    from strop.prepare.stage import Step

    rows = [row for key, row in settings if key.startswith(part)]
    every: list[type[Piece]] = [*families, Step]
    for family in every:
        found = choices(family).get(part)
        if found is not None:
            rows += [ROW.format(f"**`{part}`**", "", "", _cell(_prose(found))), *_fields(found, found.model_fields)]
    if not rows:
        names = [name for key, _ in settings for name in (key, key.partition(".")[0])]
        names += [name for family in every for name in choices(family)]
        raise InputError(f"no setting and no piece begins with {part!r}; {nearest(part, names)}")
    return "\n".join([*TABLE, *dict.fromkeys(rows)]) + "\n"


def _rows(
    model: type[BaseModel], prefix: str, families: dict[type[Piece], list[str]], section: BaseModel | None = None
) -> Iterator[tuple[str, str]]:
    """(key, row) of each setting below `model`; the families of pieces on the way are collected with their keys.

    Defaults are those of `section`, unless listed above.
    """
    documented = _documented(model)
    for name, field in model.model_fields.items():
        if section is not None:
            field = copy(field)
            field.default, field.default_factory = vars(section)[name], None
        key, inner = f"{prefix}{name}", _models(field.annotation)
        said = documented.get(name) or PLAIN.get(key) or (_summary(inner[0]) if inner else "")
        pieces = [found for found in inner if issubclass(found, Piece)]
        plain = [found for found in inner if not issubclass(found, Piece)]
        for family in pieces:
            _collect(family, key, families)
        if not plain or not _stands_alone(field):
            yield key, _row(key, field, said)
        for found in plain:
            place = f"{key}." if _stands_alone(field) or _is_optional(field) else f"{key}.N."
            own = None if field.is_required() else field.get_default(call_default_factory=True)
            yield from _rows(found, place, families, own if isinstance(own, found) else None)


def _collect(family: type[Piece], key: str, families: dict[type[Piece], list[str]]) -> None:
    """Note that `key` takes a piece of `family`, and what families the pieces of that one take."""
    keys = families.setdefault(family, [])
    if key in keys:
        return
    keys.append(key)
    if len(keys) > 1:
        return
    for piece_name, piece in _known(family):
        for name, field in piece.model_fields.items():
            for inner in _models(field.annotation):
                if issubclass(inner, Piece):
                    _collect(inner, f"{piece_name}.{name}", families)


def _known(family: type[Piece]) -> list[tuple[str, type[Piece]]]:
    """The pieces of a family that strop defines, by name; not those that a user has imported."""
    return sorted((name, piece) for name, piece in choices(family).items() if ":" not in name)


def _family(family: type[Piece], keys: list[str]) -> Iterator[str]:
    """A table of the pieces of a family: first the fields that all of them have, then each piece with its own."""
    yield f"\n### {family.__name__}\n"
    yield f"{_summary(family)} Taken by {', '.join(f'`{key}`' for key in keys)}.\n"
    yield from TABLE
    known = _known(family)
    shared = family.model_fields if len(known) > 1 else {}
    if shared:
        yield ROW.format("*each of them*", "", "", "")
        yield from _fields(family, shared)
    for name, piece in known:
        yield ROW.format(f"**`{name}`**", "", "", "" if piece is family and shared else _cell(_prose(piece)))
        yield from _fields(piece, {k: f for k, f in piece.model_fields.items() if not _same(f, shared.get(k))})


def _fields(model: type[BaseModel], fields: Mapping[str, FieldInfo], prefix: str = ".") -> Iterator[str]:
    """A row for each field of a piece, and for those of the settings inside it."""
    documented = _documented(model)
    for key, field in fields.items():
        inner = [found for found in _models(field.annotation) if not issubclass(found, Piece)]
        yield _row(f"{prefix}{key}", field, documented.get(key, ""))
        for found in inner:
            yield from _fields(found, found.model_fields, f"{prefix}{key}.")


def _same(field: FieldInfo, shared: FieldInfo | None) -> bool:
    return shared is not None and (field.annotation, field.default) == (shared.annotation, shared.default)


def _row(key: str, field: FieldInfo, said: str) -> str:
    cells = (f"`{key}`", _kind(field), _default(field), said)
    return ROW.format(*map(_cell, cells))


def _cell(text: str) -> str:
    """A text escaped for a cell of a table, with `none` for None."""
    return re.sub(r"\bNone\b", "none", text.replace("|", "\\|"))


def _kind(field: FieldInfo) -> str:
    """The values that a field takes, in words."""
    families = [model.__name__ for model in _models(field.annotation) if issubclass(model, Piece)]
    if families:
        several = str(field.annotation).startswith(("tuple", "list"))
        linked = f"[{families[0]}](#{families[0].lower()})"
        return f"list of {linked}" if several else linked + (" or none" if _is_optional(field) else "")
    kind: Any = Annotated[field.annotation, "", *field.metadata]
    schema = TypeAdapter(kind).json_schema()
    return _said(schema, schema.get("$defs", {}))


def _said(schema: dict[str, Any], defined: dict[str, Any]) -> str:
    """A JSON schema in words."""
    if "$ref" in schema:
        return _said(defined[schema["$ref"].rsplit("/", 1)[1]], defined)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_said(one, defined) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in values)
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return ", ".join(_said(one, defined) for one in schema["prefixItems"])
        return f"list of {_said(schema.get('items', {}), defined)}"
    words = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "none",
             "object": "table"}.get(str(kind), "any value")  # fmt: skip
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return ", ".join([words, *(f"{sign} {schema[name]:,}" for name, sign in bounds.items() if name in schema)])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    if value is None:
        return "none"
    if isinstance(value, Piece):
        return f"`{value.piece_name()}`"
    if isinstance(value, BaseModel):
        return "as below"
    if isinstance(value, tuple) and any(isinstance(one, Piece) for one in value):
        return ", ".join(f"`{one.piece_name()}`" for one in value)
    kind: Any = field.annotation
    written = TypeAdapter(kind).dump_python(value, mode="json")
    plain = isinstance(written, str) and written and "\n" not in written  # a cell of a table is one line
    return f"`{written if plain else json.dumps(written, ensure_ascii=False)}`"


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The settings and families of pieces in a type, looking into its arguments."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return list(dict.fromkeys(model for part in get_args(annotation) for model in _models(part)))


def _stands_alone(field: FieldInfo) -> bool:
    """Whether a field is a section that is always there, neither optional nor a list."""
    return isinstance(field.annotation, type)


def _is_optional(field: FieldInfo) -> bool:
    return type(None) in get_args(field.annotation)


def _documented(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a model and of those it extends say of its fields, as one line each."""
    found: dict[str, str] = {}
    for owner in (getattr(model, "documented_by", object), *reversed(model.__mro__)):
        text = inspect.cleandoc(owner.__doc__ or "")
        block = re.search(r"^(?:Fields|Attributes):\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        entries = re.findall(rf"^    ({NAMES}): ((?:.|\n(?!    {NAMES}: ))*)", block[1] if block else "", re.MULTILINE)
        found |= {name: " ".join(said.split()) for names, said in entries for name in names.split(", ")}
    return found


def _summary(model: type[BaseModel]) -> str:
    """The first paragraph of a docstring, as one line."""
    text = inspect.getdoc(model) if model.__doc__ else ""
    return " ".join((text or "").split("\n\n")[0].split())


def _prose(piece: type[Piece]) -> str:
    """The summary of a docstring that describes all fields, else `docstring`, as one line."""
    if set(piece.model_fields) <= set(_documented(piece)):
        return _summary(piece)
    return " ".join(docstring(piece).split())


def docstring(piece: type[Piece]) -> str:
    """The docstring before its list of fields."""
    return re.split(r"^(?:Fields|Attributes|Raises):", inspect.getdoc(piece) or "", flags=re.MULTILINE)[0]


def _first_sentence(section: str) -> list[str]:
    """The summary of a top-level section, for above its table."""
    models = _models(field_type(RunConfig, section)) if section != "run" else []
    return [f"{_summary(models[0])}\n"] if models else []
