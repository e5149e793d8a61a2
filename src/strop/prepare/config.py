"""The configuration of a preparation, read from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError

from strop.base.imports import refuse_code
from strop.base.near import nearest
from strop.base.pieces import Settings, choices, complaint, find, spoken_row
from strop.base.types import InputError
from strop.prepare.sources import Source
from strop.prepare.stage import Step


class PrepareConfig(Settings):
    """A preparation.

    Fields:
        out: the output folder.
        seed: seed of all random choices.
        broken_rows: `stop` at the first row that cannot be read, or `skip` such rows and list them.
        sources: sets of problems in order of priority: a question in two sets is kept in the first one.
        steps: the steps in their order.
    """

    out: str = "prepared"
    seed: Annotated[int, Field(ge=0)] = 0
    broken_rows: Literal["stop", "skip"] = "stop"
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    steps: tuple[SerializeAsAny[Step], ...] = ()


# The papers' pipelines by name.
PIPELINES = {path.stem: path for path in sorted(Path(__file__).with_name("pipelines").glob("*.toml"))}


def load_config(path: Path | str) -> PrepareConfig:
    """The configuration in a TOML file, or a paper's pipeline by its name.

    Raises:
        InputError: names the file and the key.
    """
    path = PIPELINES.get(str(path), path)
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        refuse_code(given, str(path))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; `strop data prepare --example` prints one to begin with, and the papers' are "
            f"{', '.join(PIPELINES)}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from error
    return parse_config(given, str(path))


def parse_config(given: dict[str, Any], where: str = "configuration") -> PrepareConfig:
    """The configuration in a parsed TOML file.

    Raises:
        InputError: as `load_config`.
    """
    fields = spoken_row(given, PrepareConfig)
    for name, family in (("sources", Source), ("steps", Step)):
        entries = fields.get(name, [])
        if not isinstance(entries, list):
            raise InputError(f"{where}: {name} is a list; write each as [[{name}]]")
        fields[name] = tuple(
            _part(family, entry, f"{where}: {name}[{number}]") for number, entry in enumerate(entries, 1)
        )
    try:
        return PrepareConfig.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error, PrepareConfig)}") from error


def _part(family: type[Settings], entry: Any, where: str) -> Settings:
    try:
        if issubclass(family, Step):
            fields = {"piece": entry} if isinstance(entry, str) else dict(entry)
            if "piece" not in fields:
                raise InputError(f"{where}: say which step with piece = …; {nearest('', choices(Step))}")
            family = find(Step, fields.pop("piece"))
            entry = fields
        return family.model_validate(entry)
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error, family)}") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint of pydantic as one line, also if it is about a nested piece."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ValidationError):
        return f"{key}: {_explain(inner, model)}"
    if first["type"] == "extra_forbidden":
        known = model.model_fields if len(first["loc"]) == 1 else ()
        return f"unknown key {key}" + (f"; {nearest(key, known)}" if known else "")
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "too_short":
        return f"{key} is missing or empty"
    return f"{key}: {complaint(first)}" if key else complaint(first)


def example_config(pipeline: str | None = None) -> str:
    """A configuration to edit: that of a paper's pipeline, or a commented one with every step."""
    path = Path(__file__).with_name("example.toml") if pipeline is None else PIPELINES.get(pipeline, Path(pipeline))
    return path.read_text(encoding="utf-8")
