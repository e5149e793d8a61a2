"""Benchmarks by name: where their problems are, how a row becomes a problem, and who judges the answers.

load_problems(benchmark("aime24"), folder)                     # aime24.parquet, aime2024.json … of a folder
load_problems(benchmark("livecodebench:2024-08-01..2025-02-01"))      # from the hub
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import AfterValidator, ValidationError, model_validator

from strop.base.near import nearest
from strop.base.pieces import Settings, complaint
from strop.base.types import InputError, Problem
from strop.data.columns import NoColumn, Row
from strop.data.generators import ReasoningGym
from strop.data.rows import HubDataset, RowSource
from strop.data.source import check_problem, parse_source
from strop.data.templates import BOXED, LETTER, PROGRAM, Auto, ChatTemplate, Instruction, Plain, PromptTemplate
from strop.evaluation.benchmark_rows import (
    choice_question,
    column,
    gsm8k_answer,
    human_eval_problem,
    math_answer,
    math_question,
)
from strop.verifiers.answer import MultipleChoice, ReasoningGymScorer
from strop.verifiers.base import Verifier
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.math_verifier import MathVerifier

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json")


def local_rows(folder: Path, name: str, stems: Sequence[str], hub: str | None) -> Iterator[Row]:
    """The rows of the benchmark `name` under `folder`, which may also be the very file.

    A file belongs to a benchmark when its name, in lower case and without `-` and `_`, is one of the benchmark's names:
    `aime24.parquet`, `AIME_2024.json`, `gsm8k_test.jsonl`; or when it lies in a sub-folder called so.

    Args:
        folder: a folder with a file (or a sub-folder of files) called as one of `stems`, or a file.
        name: as users call the benchmark.
        stems: its names in files, the preferred first, in lower case without `-` and `_`.
        hub: what the hub calls it, for the message.

    Raises:
        InputError: nothing there is called so; says what was looked for, and how to get it.
    """
    files = [folder] if folder.is_file() else _find(folder, stems)
    if not files:
        raise InputError(not_found(folder, name, stems, hub))
    number = 0
    for file in files:
        for row in read_rows(file):
            number += 1
            yield row._replace(number=number)


def hub_rows(source: HubDataset, name: str, file: str) -> Iterator[Row]:
    """The rows of a benchmark from the hub; `file` is what a local copy would be called.

    Raises:
        InputError: it cannot be had; says what was tried, and how a local copy is named instead.
    """
    try:
        yield from source.rows()
    except InputError as error:
        raise InputError(
            f"benchmark {name}: {error}; or put a copy into a folder as {file}.jsonl or {file}.parquet and "
            "name the folder with --set evaluation.benchmark_data=FOLDER (from Python name the file itself)"
        ) from error


def not_found(folder: Path, name: str, stems: Sequence[str], hub: str | None) -> str:
    """The error message for a benchmark that a folder does not hold."""
    if not folder.exists():
        return f"evaluation.benchmark_data={folder}: there is no such folder"
    looked = " or ".join(stems)
    way_out = "" if hub is None else f" or leave out evaluation.benchmark_data to load {hub} from the hub (extra `hub`)"
    return (
        f"benchmark {name}: {folder} holds no file of it; looked for {looked} (case, - and _ aside) ending in "
        f"{', '.join(SUFFIXES)}, and for sub-folders called so; save it there{way_out}"
    )


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a `.jsonl`, `.jsonl.gz`, `.parquet` or `.json` file (an array of objects).

    Raises:
        InputError: the file cannot be read, or a row is broken (with its place).
    """
    if not file.name.endswith(SUFFIXES):
        raise InputError(f"{file}: a benchmark's file ends in {', '.join(SUFFIXES)}")
    source = parse_source(str(file))
    assert isinstance(source, RowSource)
    return source.rows()


def plain_name(text: str) -> str:
    """A name in lower case without `-` and `_`."""
    return text.lower().replace("-", "").replace("_", "")


def _find(folder: Path, stems: Sequence[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    entries = sorted(folder.iterdir())
    for stem in stems:
        for suffix in SUFFIXES:
            for entry in entries:
                ending = entry.name.lower().endswith(suffix)
                if ending and entry.is_file() and plain_name(entry.name[: -len(suffix)]) == stem:
                    return [entry]
        for entry in entries:
            if entry.is_dir() and plain_name(entry.name) == stem:
                return [file for file in sorted(entry.iterdir()) if file.name.lower().endswith(SUFFIXES)]
    return []


_WINDOW = re.compile(r"(\d{4}-\d{2}(?:-\d{2})?)\.\.(\d{4}-\d{2}(?:-\d{2})?)")
_MOST_BYTES = 512 * 1024 * 1024  # of one problem's unpacked tests


def _day(text: str) -> str:
    full = f"{text}-01" if len(text) == 7 else text
    datetime.strptime(full, "%Y-%m-%d")
    return full


class ReleaseWindow(Settings):
    """Contests from `start` to `end`, days as `2024-08-01` (`2024-08` is its first day).

    Both midnights are inside, as in LiveCodeBench's own runner: a contest dated 2025-02-01T00:00 belongs to a window
    that ends on 2025-02-01, one later on that day does not.
    """

    start: Annotated[str, AfterValidator(_day)]
    end: Annotated[str, AfterValidator(_day)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"a window ends after it starts, not {self.start}..{self.end}")
        return self

    def holds(self, contest_date: str) -> bool:
        """Whether a contest of that date (ISO 8601) lies inside.

        Raises:
            ValueError: it is not a date.
        """
        date = datetime.fromisoformat(contest_date).replace(tzinfo=None)
        return datetime.fromisoformat(self.start) <= date <= datetime.fromisoformat(self.end)


# What papers call v5 (Archer, Skywork-OR1) and v6 (Archer).
WINDOWS = {
    "v5": ReleaseWindow(start="2024-08-01", end="2025-02-01"),
    "v6": ReleaseWindow(start="2025-02-01", end="2025-05-01"),
}


def parse_window(text: str) -> ReleaseWindow:
    """`v5`, `v6` or `2024-08-01..2025-02-01`.

    Raises:
        InputError: it is none of them.
    """
    if text in WINDOWS:
        return WINDOWS[text]
    match = _WINDOW.fullmatch(text)
    if match is not None:
        try:
            return ReleaseWindow(start=match[1], end=match[2])
        except ValidationError as error:
            raise InputError(f"livecodebench:{text}: {complaint(error.errors()[0])}") from error
    raise InputError(f"livecodebench:{text}: write v5, v6 or a window of dates such as 2024-08-01..2025-02-01")


def question(row: Mapping[str, Any]) -> str:
    """The task with its starter code, and in which form the program is expected.

    Raises:
        ValueError: a column is absent.
    """
    text = str(column(row, "question_content")).strip()
    starter = str(row.get("starter_code") or "").rstrip()
    if starter:
        return f"{text}\n\nComplete this class; its method is called with the arguments:\n```python\n{starter}\n```"
    return f"{text}\n\nThe program reads from standard input and writes its answer to standard output."


def tests(row: Mapping[str, Any]) -> dict[str, Any]:
    """The public tests followed by the private ones, as the code verifier takes them.

    `{"inputs": [text], "outputs": [text]}` of standard input and output, or for methods `{"fn_name": name, "inputs":
    [[argument]], "outputs": [value]}`.

    Raises:
        ValueError: they cannot be unpacked, or are of mixed kinds.
    """
    cases = [*_decode(column(row, "public_test_cases")), *_decode(column(row, "private_test_cases"))]
    if not cases:
        raise ValueError("no tests")
    kinds = {case.get("testtype", "stdin") for case in cases}
    if kinds == {"stdin"}:
        inputs, outputs = [case["input"] for case in cases], [case["output"] for case in cases]
        return {"inputs": inputs, "outputs": outputs}
    if kinds != {"functional"}:
        raise ValueError(f"tests of the kinds {sorted(kinds)}; expected stdin or functional")
    metadata = json.loads(column(row, "metadata"))
    arguments = [[json.loads(line) for line in case["input"].split("\n")] for case in cases]
    values = [json.loads(case["output"]) for case in cases]
    return {"fn_name": metadata["func_name"], "inputs": arguments, "outputs": values}


def _decode(packed: Any) -> list[dict[str, Any]]:
    """Tests as a JSON text; or that text pickled, compressed and in base64."""
    try:
        text = packed if str(packed).lstrip().startswith("[") else _unpack(str(packed))
        cases = json.loads(text)
    except (ValueError, zlib.error, binascii.Error, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"tests that cannot be unpacked ({type(error).__name__})") from error
    if not isinstance(cases, list) or not all(isinstance(case, dict) and "input" in case for case in cases):
        raise ValueError("tests must be a list of inputs and outputs")
    return cases


def _unpack(packed: str) -> str:
    inflate = zlib.decompressobj()
    content = inflate.decompress(base64.b64decode(packed), _MOST_BYTES)
    if inflate.unconsumed_tail:
        raise ValueError(f"more than {_MOST_BYTES >> 20} MiB")
    text = _TextOnly(io.BytesIO(content)).load()
    if not isinstance(text, str):
        raise ValueError(f"a pickled {type(text).__name__}, not a text")
    return text


class _TextOnly(pickle.Unpickler):
    """Reads a pickled text; a pickle that asks for anything to be imported could run it, so it is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


Kind = Literal["math", "choice", "code", "gym"]
Extract = Literal["boxed", "answer_tag", "any"]

HELD_OUT = "held_out"  # the problems that a run among the models held out
GYM_SEED = 1_000_003  # far from the seeds that training sets are drawn with
GYM_SIZE = 200


class Benchmark(Settings):
    """A benchmark; `benchmark(name)` gives one.

    Fields:
        name: as users call it; `livecodebench:v5` and `reasoning-gym:TASK` with what they add.
        family: the name without window or task; sample counts of protocols go by name, then by family.
        title: the head of its column in tables.
        kind: chooses the verifier (`default_verifier`) and the instruction (`with_instruction`).
        stems: names of its files, the preferred first (see `local_rows`).
        hub: its data set on the hub.
        size: how many problems it is published with, where that is fixed.
        window: LiveCodeBench's contests.
        task: reasoning-gym's task.
        path: a file of the user.
    """

    name: str
    family: str
    title: str
    kind: Kind
    stems: tuple[str, ...] = ()
    hub: HubDataset | None = None
    size: int | None = None
    window: ReleaseWindow | None = None
    task: str | None = None
    path: str | None = None

    @property
    def domain(self) -> str:
        """`code` or `math` or what else it is about, for transfer plots."""
        return {"choice": "knowledge", "gym": "reasoning-gym"}.get(self.kind, self.kind)


def default_verifier(kind: Kind, extract: Extract = "any") -> Verifier:
    """The verifier for a kind of benchmark."""
    if kind == "gym":
        return ReasoningGymScorer(extract=extract)
    if kind == "code":
        return CodeVerifier()
    if kind == "choice":
        return MultipleChoice(extract=extract)
    return MathVerifier(extract=extract)


def _known(
    family: str,
    title: str,
    kind: Kind,
    size: int | None,
    stems: str,
    dataset: str,
    split: str,
    subset: str | None = None,
) -> Benchmark:
    hub = HubDataset(dataset=dataset, subset=subset, split=split)
    return Benchmark(name=family, family=family, title=title, kind=kind, stems=tuple(stems.split()), hub=hub, size=size)


CATALOGUE: dict[str, Benchmark] = {
    found.name: found
    for found in (
        _known("aime24", "AIME24", "math", 30, "aime24 aime2024", "HuggingFaceH4/aime_2024", "train"),
        _known("aime25", "AIME25", "math", 30, "aime25 aime2025", "math-ai/aime25", "test"),
        _known("amc23", "AMC23", "math", 40, "amc23 amc2023", "math-ai/amc23", "test"),
        _known("math500", "MATH-500", "math", 500, "math500", "HuggingFaceH4/MATH-500", "test"),
        _known("minerva", "Minerva", "math", 272, "minervamath minerva", "math-ai/minervamath", "test"),
        _known("olympiadbench", "Olympiad", "math", None, "olympiadbench olympiad", "Hothan/OlympiadBench", "train",
               "OE_TO_maths_en_COMP"),
        _known("gsm8k", "GSM8K", "math", 1319, "gsm8ktest gsm8k", "openai/gsm8k", "test", "main"),
        _known("gpqa_diamond", "GPQA Diamond", "choice", 198, "gpqadiamond", "Idavidrein/gpqa", "train",
               "gpqa_diamond"),
        _known("mmlu", "MMLU", "choice", 14_042, "mmlutest mmlu", "cais/mmlu", "test", "all"),
        _known("mmlu_pro", "MMLU-Pro", "choice", None, "mmluprotest mmlupro", "TIGER-Lab/MMLU-Pro", "test"),
        # The original repository holds a loading script, which `datasets` no longer runs; this is its copy as Parquet.
        _known("livecodebench", "LCB", "code", None, "livecodebench codegenerationlite",
               "lighteval/code_generation_lite", "test", "release_v6"),
        _known("humaneval", "HumanEval", "code", 164, "humaneval", "openai/openai_humaneval", "test"),
    )
}  # fmt: skip

FORMS = (HELD_OUT, "livecodebench:v5", "livecodebench:START..END", "reasoning-gym:TASK")

INSTRUCTIONS: dict[Kind, Instruction] = {"math": BOXED, "choice": LETTER, "code": PROGRAM, "gym": BOXED}


def benchmark(name: str) -> Benchmark:
    """The benchmark of a name: one of `CATALOGUE`, `livecodebench:WINDOW`, `reasoning-gym:TASK`, `held_out`, or a file.

    `livecodebench:v5` (also `livecodebench_v5`) and `livecodebench:2024-08-01..2025-02-01` choose contests by date. A
    file has the columns of any mathematical benchmark: a question and an answer.

    Raises:
        InputError: there is none; names the nearest.
    """
    plain = name.strip()
    if plain in CATALOGUE:
        return CATALOGUE[plain]
    if plain == HELD_OUT:
        return Benchmark(name=HELD_OUT, family=HELD_OUT, title="held out", kind="math")
    family, colon, rest = plain.partition(":")
    if colon and family in ("reasoning-gym", "reasoning_gym"):
        return Benchmark(name=f"reasoning-gym:{rest}", family="reasoning-gym", title=rest, kind="gym", task=rest)
    for window in WINDOWS:
        if plain == f"livecodebench_{window}":
            family, colon, rest = "livecodebench", ":", window
    if colon and family == "livecodebench":
        found = CATALOGUE["livecodebench"]
        changes = {"name": f"livecodebench:{rest}", "title": f"LCB {rest}", "window": parse_window(rest)}
        return found.model_copy(update=changes)
    if plain.endswith(SUFFIXES) and Path(plain).expanduser().is_file():
        stem = Path(plain).name.split(".")[0]
        return Benchmark(name=stem, family=stem, title=stem, kind="math", path=plain)
    if plain.endswith(SUFFIXES):
        raise InputError(f"benchmark {name}: there is no such file (looked in {Path.cwd()})")
    by_plain = {plain_name(known): known for known in CATALOGUE}
    for stem, known in ((stem, known) for known, found in CATALOGUE.items() for stem in found.stems):
        by_plain.setdefault(stem, known)
    if plain_name(plain) in by_plain:
        return CATALOGUE[by_plain[plain_name(plain)]]
    raise InputError(f"no benchmark is called {name!r}; {nearest(plain, (*CATALOGUE, *FORMS))}")


def benchmarks_named(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """The benchmarks of these names, each once.

    Raises:
        InputError: there is none of a name, or two different ones are called alike.
    """
    found: dict[str, Benchmark] = {}
    for each in map(benchmark, names):
        if found.setdefault(each.name, each) != each:
            raise InputError(f"two benchmarks are called {each.name!r}; give one of the files another name")
    return tuple(found.values())


def load_problems(found: Benchmark, data: Path | None = None, limit: int | None = None) -> tuple[Problem, ...]:
    """The problems of a benchmark, their ids unique and the same wherever they were read.

    Args:
        found: which.
        data: a folder with its file, or the file; None reads the hub.
        limit: read only the first so many.

    Raises:
        InputError: it cannot be found (says what was looked for), a row is broken (says where), or nothing is left.
    """
    if found.task is not None:
        source = ReasoningGym(task=found.task, size=GYM_SIZE if limit is None else limit, seed=GYM_SEED)
        return source.load(limit)
    problems: list[Problem] = []
    seen: set[str] = set()
    for problem in _problems(found, _rows(found, data)):
        if problem.id in seen:
            raise InputError(f"benchmark {found.name}: two problems have the id {problem.id!r}")
        seen.add(problem.id)
        problems.append(problem)
        if len(problems) == limit:
            break
    if not problems:
        window = f" of {found.window.start}..{found.window.end}" if found.window is not None else ""
        raise InputError(f"benchmark {found.name}: no problems{window} in it")
    return tuple(problems)


def refuse_unjudged(
    name: str, problems: Sequence[Problem], verifier: Verifier, note: Callable[[str], None], other: str
) -> None:
    """Report, before a model is loaded, references that the verifier can never judge.

    Args:
        name: of the benchmark.
        note: called with a line if the verifier refuses some of them.
        other: how another verifier is named, for the message.

    Raises:
        InputError: it refuses all of them.
    """
    reasons = [(problem.id, reason) for problem in problems if (reason := verifier.refuses(problem)) is not None]
    if not reasons:
        return
    first, why = reasons[0]
    refusals = f"{name}: the verifier refuses {len(reasons)} of {len(problems)} problems, such as {first!r}: {why}"
    if len(reasons) == len(problems):
        raise InputError(f"{refusals}; name another verifier with {other}")
    note(f"{refusals}; samples that it fails on count in no rate")


def with_instruction(template: PromptTemplate, kind: Kind, trained: bool = False) -> PromptTemplate:
    """`template` with an instruction for the form of the answer that the verifier of `kind` reads, if it has none.

    `Auto` is unchanged: it adds its instruction when it is resolved. With `trained`, the model was trained with this
    template, so plain prompts stay plain.
    """
    if isinstance(template, ChatTemplate) and template.instruction is None and template.system is None:
        return template.model_copy(update={"instruction": INSTRUCTIONS[kind].text})
    if isinstance(template, Plain) and not trained and not template.suffix and not template.prefix:
        return template.model_copy(update={"suffix": f"\n{INSTRUCTIONS[kind].text}\n"})
    return template


def without_instruction(template: PromptTemplate) -> PromptTemplate:
    """`template` without an instruction for the form of the answer."""
    if isinstance(template, Auto):
        return template.model_copy(update={"instruct": False})
    return template.model_copy(update={"instruction": None}) if isinstance(template, ChatTemplate) else template


def _rows(found: Benchmark, data: Path | None) -> Iterable[Row]:
    if found.path is not None:
        return local_rows(Path(found.path).expanduser(), found.name, found.stems, None)
    if found.hub is None:
        raise InputError(f"benchmark {found.name}: its problems are a run's; strop eval RUN --benchmark {found.name}")
    if data is not None:
        return local_rows(data.expanduser(), found.name, found.stems, found.hub.dataset)
    return hub_rows(found.hub, found.name, found.family)


def _problems(found: Benchmark, rows: Iterable[Row]) -> Iterator[Problem]:
    for row in rows:
        try:
            problem = _problem(found, row)
            if problem is not None:
                check_problem(problem)
        except NoColumn as error:
            raise InputError(f"{row.where}: {error}{_way_out(found)}") from error
        except (ValueError, TypeError, KeyError) as error:  # a nested value of another type than the format has
            raise InputError(f"{row.where}: {str(error) or type(error).__name__}") from error
        if problem is not None:
            yield problem


def _way_out(found: Benchmark) -> str:
    """The way out for a user's file whose columns have other names."""
    if found.path is None:
        return ""
    columns = " ".join(f"--set data.source.columns.{name}=COLUMN" for name in ("prompt", "answer"))
    return f"; rename it, or ask its problems as a source: strop eval MODEL --set data.source={found.path} {columns}"


def _problem(found: Benchmark, row: Row) -> Problem | None:
    """The problem of a row; None where its contest lies outside the window."""
    columns, identity = row.columns, f"{found.family}-{row.number}"
    if found.family == "livecodebench":
        if found.window is not None and not found.window.holds(str(column(columns, "contest_date"))):
            return None
        identity = f"livecodebench-{column(columns, 'question_id')}"
        prompt, reference = question(columns), tests(columns)
        return Problem(identity, prompt, reference, domain="code", source=found.family)
    if found.kind == "code":
        prompt, reference = human_eval_problem(columns)
        return Problem(identity, prompt, reference, domain="code", source=found.family)
    if found.kind == "choice":
        prompt, letter = choice_question(columns, str(columns.get("Record ID", identity)))
        return Problem(identity, prompt, letter, domain=found.domain, source=found.family)
    asked = math_question(columns, whole=found.path is not None)
    answer = gsm8k_answer(columns) if found.family == "gsm8k" else math_answer(columns)
    return Problem(identity, asked, answer, domain="math", source=found.family)
