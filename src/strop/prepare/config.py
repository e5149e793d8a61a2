"""The configuration of a preparation, from a TOML file: sources in order of priority, then steps in their order."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError

from strop.base.imports import refuse_code
from strop.base.near import nearest
from strop.base.pieces import Settings, complaint, find, spoken_row
from strop.base.types import InputError
from strop.prepare.sources import Source
from strop.prepare.stage import Step


class PrepareConfig(Settings):
    """A preparation.

    Fields:
        out: the folder for everything that comes out.
        seed: of every random choice.
        broken_rows: `stop` at the first row that cannot be read, or `skip` such rows, counted and listed.
        sources: sets of problems; where two hold the same question, the one named first keeps it.
        steps: what is done, in this order.
    """

    out: str = "prepared"
    seed: Annotated[int, Field(ge=0)] = 0
    broken_rows: Literal["stop", "skip"] = "stop"
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    steps: tuple[SerializeAsAny[Step], ...] = ()


def load_config(path: Path | str) -> PrepareConfig:
    """The configuration in a TOML file.

    Raises:
        InputError: one line that names the file, the key and the way out.
    """
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        refuse_code(given, str(path))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; `strop data prepare --example` prints one to begin with"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from error
    return parse_config(given, str(path))


def parse_config(given: dict[str, Any], where: str = "configuration") -> PrepareConfig:
    """The configuration in a dictionary as TOML gives it.

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
                raise InputError(f"{where}: say which step with piece = …; {nearest('', _step_names())}")
            family = find(Step, fields.pop("piece"))
            entry = fields
        return family.model_validate(entry)
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error, family)}") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _step_names() -> list[str]:
    from strop.base.pieces import choices

    return list(choices(Step))


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint of pydantic, also one inside another piece, as one line."""
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


EXAMPLE = """\
# strop data prepare prepare.toml
#
# From raw sets to train.parquet, with a report of how every row ended. Paths are relative to the folder in which
# the command runs. Keys of the whole preparation stand first, before any [[...]].

out = "prepared"          # the folder for everything that comes out; --out on the command line overrides it
seed = 0
broken_rows = "stop"      # at a row that cannot be read; "skip" leaves such rows out, counted and listed

# ---- Sources. Where two hold the same question, the one named first keeps it.  ----

[[sources]]               # a file of your own: .jsonl, .jsonl.gz, .json (one list), .parquet or .csv
path = "train.jsonl"
columns = { prompt = "question", answer = "answer" }    # optional: usual names are recognised
# columns = { prompt = "question", answer = "answer", id = "uid", extra = ["level", "solution"] }
# name = "mine"           # what the problems say they come from; by default the file's name
# domain = "math"
# limit = 1000            # the first so many rows

# [[sources]]             # a set of the papers by name, from the hub (pip install "strop[hub]") ...
# mapping = "deepscaler"  # `strop data mappings` lists them all

# [[sources]]             # ... or a copy of it
# mapping = "numinamath-1.5"
# path = "numina.parquet"
# where = "source IN ('amc_aime', 'olympiads', 'aops_forum', 'cn_contest', 'inequalities', 'number_theory')"

# [[sources]]             # any set of the hub
# hub = "OWNER/NAME"
# split = "train"
# columns = { prompt = "problem", answer = "answer" }

# [[sources]]             # a generator
# source = { piece = "ReasoningGym", task = "chain_sum", size = 1000 }

# ---- Steps, in this order. Each names its piece; every other key has a default.  ----

[[steps]]
piece = "Verifiable"      # no proofs, no missing answers, nothing the verifier refuses, code with at least five tests
verifier = { piece = "Answer", extract = "any" }
min_tests = 5

[[steps]]
piece = "AnswersAgree"    # the answer read again out of the worked solution must be the given one
missing = "keep"          # what is done with problems without one (`solution` in the source's columns, see above)

[[steps]]
piece = "LinksAndFigures"

[[steps]]
piece = "EnglishOnly"

# [[steps]]               # code: tests in one form, without those the statement shows, run by the set's own solution
# piece = "StandardTests"
# [[steps]]
# piece = "IllustrativeTests"
# [[steps]]
# piece = "ReferenceSolutions"
# verifier = { piece = "CodeVerifier" }

[[steps]]
piece = "Deduplicate"     # within and across sets
near = "minhash"          # or "ngram", or "none" for what is typed differently only
similarity = 0.8          # the share of words that near duplicates have in common; numbers and answers are equal

# [[steps]]
# piece = "DeduplicateByEmbedding"
# model = "path/to/encoder"
# similarity = 0.95

[[steps]]
piece = "Decontaminate"   # pairs.jsonl lists what was found
against = [{ path = "test.jsonl", columns = { prompt = "question", answer = "answer" } }]
# against = ["aime24", "aime25", "math500"]             # by name, from the hub
# shared_run = 13         # also whatever has 13 words in a row in common with a benchmark

# [[steps]]               # how often a strong model solves each problem: drop what it never solves ...
# piece = "Difficulty"
# model.path = "Qwen/Qwen3-30B-A3B"
# samples = 8
# min_correct = 1
# max_correct = 8

# [[steps]]               # ... then the policy that is to be trained: drop what it always or never solves
# piece = "Difficulty"
# model.path = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
# samples = 8
# sampling = { temperature = 1.0, max_new_tokens = 32768 }
# template = { piece = "ChatTemplate" }
# verifier = { piece = "Answer", extract = "boxed" }

# [[steps]]               # language models judge wording, completeness, format and distractions
# piece = "Judges"
# votes = 16              # of each judge
# threshold = 9           # valid votes that keep a problem
# judges = [
#   { url = "http://127.0.0.1:8000/v1", model = "Qwen2.5-72B-Instruct" },
#   { url = "https://example.org/v1", model = "Llama-3.3-70B", api_key_env = "EXAMPLE_KEY", prompt_price = 0.5 },
# ]

# [[steps]]               # SFT data: the trace is the reference
# piece = "NoTrivialPrompts"
# [[steps]]
# piece = "TraceLength"
# max_tokens = 12000
# tokenizer = "Qwen/Qwen3-0.6B"

[[steps]]
piece = "Split"           # validation.parquet, whose questions train.parquet does not have
count = 1000
"""
