"""Short names of problem sources for the command line: `gsm8k`, `reasoning-gym:chain_sum`, `train.jsonl`."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from strop.base.near import nearest
from strop.base.pieces import choices, find
from strop.base.types import InputError
from strop.data.chain_sum import ChainSum
from strop.data.flat_files import CsvFile, JsonFile
from strop.data.gsm8k import Gsm8k
from strop.data.mixture import Mixture
from strop.data.reasoning_gym import ReasoningGym
from strop.data.rows import HubDataset, JsonLines, ParquetFile
from strop.data.source import ProblemSource

SHORT_NAMES: dict[str, type[ProblemSource]] = {
    "chain_sum": ChainSum,
    "gsm8k": Gsm8k,
    "jsonl": JsonLines,
    "mixture": Mixture,
    "parquet": ParquetFile,
}
SUFFIXES: dict[str, type[ProblemSource]] = {
    ".jsonl": JsonLines, ".jsonl.gz": JsonLines, ".parquet": ParquetFile, ".json": JsonFile, ".csv": CsvFile,
}  # fmt: skip
FORMS = ("reasoning-gym:TASK", "hub:NAME", "OWNER/NAME", "FILE.jsonl", "FILE.parquet", "FILE.json", "FILE.csv")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def parse_source(text: str, path: str | None = None) -> ProblemSource:
    """The source that a short name means.

    Example: `parse_source("gsm8k", "train.jsonl")`, `parse_source("reasoning-gym:chain_sum")`,
    `parse_source("data/train.parquet")`, `parse_source("openai/gsm8k")` (a data set of the hub).

    Raises:
        InputError: no such source (with the nearest name), or `path` given to one that reads no file.
    """
    try:
        fields = expand_source(text, path)
        return ProblemSource.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"source {text!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


def expand_source(text: str, path: str | None = None) -> dict[str, Any]:
    """The dictionary form `{"piece": …}` of a short name, its fields not yet validated.

    Raises:
        ValueError: as `parse_source`.
    """
    word, colon, rest = text.partition(":")
    known = choices(ProblemSource)
    if text in SHORT_NAMES or text in known:
        return add_path({"piece": (SHORT_NAMES | known)[text].piece_name()}, path)
    if colon and word in ("reasoning-gym", "reasoning_gym"):
        return add_path({"piece": ReasoningGym.piece_name(), "task": rest}, path)
    if colon and word == "hub":
        return add_path({"piece": HubDataset.piece_name(), "dataset": rest}, path)
    suffix = next((suffix for suffix in SUFFIXES if text.endswith(suffix)), None)
    if suffix is not None:
        if path is not None:
            raise ValueError(f"source {text!r} is a file, and path={path!r} another; give one of them")
        return {"piece": SUFFIXES[suffix].piece_name(), "path": text}
    if colon:
        return add_path({"piece": find(ProblemSource, text).piece_name()}, path)
    if _HUB_NAME.fullmatch(text) and not text.endswith((".txt", ".tsv", ".arrow")):
        return add_path({"piece": HubDataset.piece_name(), "dataset": text}, path)
    raise ValueError(f"no source is called {text!r}; {nearest(text, (*SHORT_NAMES, *FORMS))}")


def add_path(source: dict[str, Any], path: str | None) -> dict[str, Any]:
    """`source`, reading from `path`.

    Raises:
        ValueError: it reads no file.
    """
    if path is None:
        return source
    target = find(ProblemSource, source.get("piece"))
    if "path" not in target.model_fields:
        raise ValueError(f"path={path!r}: {target.piece_name()} reads no file; set source too, such as source=jsonl")
    return {**source, "path": path}
