"""Benchmarks by name: their files, the conversion of rows to problems, and their verifiers.

load_problems(benchmark("aime24"), folder)                     # aime24.parquet, aime24.jsonl … of a folder
load_problems(benchmark("livecodebench:2024-08-01..2025-02-01"))      # from the hub
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import pickle
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import AfterValidator, ValidationError, model_validator

from strop.base.near import nearest
from strop.base.pieces import Settings, complaint
from strop.base.seeds import derive
from strop.base.types import InputError, Message, Problem, Prompt
from strop.data.columns import (
    SOLUTIONS,
    Columns,
    Row,
    as_prompt,
    pick,
    stated,
)
from strop.data.generators import ReasoningGym
from strop.data.rows import HubDataset, RowSource
from strop.data.source import SUFFIXES as SOURCES_BY_SUFFIX
from strop.data.source import check_problem, parse_source
from strop.data.templates import BOXED, LETTER, PROGRAM, Auto, ChatTemplate, Instruction, Plain, PromptTemplate
from strop.verifiers.answer import MultipleChoice, ReasoningGymScorer
from strop.verifiers.base import Verifier
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.math_verifier import MathVerifier

Cells = Mapping[str, Any]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# Instructions that published files carry inside some questions; the template says how to answer, for all alike.
PUBLISHED_INSTRUCTIONS = (
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Please reason step by step, and put your final answer within \\boxed{}.",
)


def math_question(row: Cells) -> Prompt:
    """The question, or the chat that ends with it; the context that OlympiadBench gives goes before it.

    Raises:
        ValueError: there is no column with it.
    """
    asked = as_prompt(pick(row, str(Columns().named(row).prompt)))
    if isinstance(asked, str):
        return _bare(asked, row.get("context"))
    return (*asked[:-1], Message(role=asked[-1]["role"], content=_bare(asked[-1]["content"], row.get("context"))))


def _bare(question: str, context: object) -> str:
    for instruction in PUBLISHED_INSTRUCTIONS:
        question = question.removesuffix(instruction).rstrip()
    return f"{context}\n{question}" if isinstance(context, str) and context.strip() else question


def math_answer(row: Cells) -> str:
    """The reference answer: a column with it, or with a solution that ends as GSM8K's do; else the last box of the
    solution (Minerva).

    A whole number that a file holds as a float is written without its fraction; several answers are joined by commas.

    Raises:
        ValueError: there is none.
    """
    named = Columns().named(row)
    answer = pick(row, str(named.answer))
    text = _text(answer) if named.answer in SOLUTIONS else _answer_text(answer)
    return str(stated(text, "math", worked=named.answer in SOLUTIONS)[0])


def choice_question(row: Cells, seed_of: str) -> tuple[str, str]:
    """A multiple-choice question with its lettered options, and the letter of the right one.

    GPQA lists the right answer first; its options are put into an order that follows from `seed_of`, the same for
    every model. MMLU and MMLU-Pro keep theirs.

    Raises:
        ValueError: the columns are none of those of GPQA, MMLU or MMLU-Pro, or the answer is no option.
    """
    question = _text(pick(row, str(Columns().named(row).prompt))).strip()
    if row.get("Correct Answer") is not None:
        right = _text(row["Correct Answer"]).strip()
        options = [right, *(_text(column(row, f"Incorrect Answer {place}")).strip() for place in (1, 2, 3))]
        random.Random(derive(0, "gpqa", seed_of)).shuffle(options)
        answer = options.index(right)
    else:
        options = [_text(option).strip() for option in column(row, "options" if "options" in row else "choices")]
        answer = _index(row, len(options))
    if not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"{len(options)} options; a question has 2 to {len(LETTERS)}")
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"{question}\n\n{listed}", LETTERS[answer]


def column(row: Cells, name: str) -> Any:
    """The column of that very name.

    Raises:
        ValueError: there is none.
    """
    if name not in row:
        raise ValueError(f"no column {name!r}; there are {', '.join(row)}")
    return row[name]


def _index(row: Cells, count: int) -> int:
    """The place of the right option: `answer_index` (MMLU-Pro), a number (MMLU) or a letter in `answer`."""
    value = row["answer_index"] if row.get("answer_index") is not None else column(row, "answer")
    if isinstance(value, str) and len(value.strip()) == 1 and value.strip().upper() in LETTERS:
        value = LETTERS.index(value.strip().upper())
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise ValueError(f"the answer {value!r} is none of the {count} options")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, not {value!r:.60}")
    return value


def _answer_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_answer_text(entry) for entry in value)
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value!r} is no answer")
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    whole = text.startswith("$") and text.endswith("$") and text.count("$") == 2
    return text[1:-1].strip() if whole else text


SUFFIXES = tuple(SOURCES_BY_SUFFIX)  # of files of problems
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
    """The task with its starter code and the expected form of the program.

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
        hub: its data set on the hub.
        window: LiveCodeBench's contests.
        task: reasoning-gym's task.
        path: a file of the user, which is read as `data.source` reads it.
    """

    name: str
    family: str
    title: str
    kind: Kind
    hub: HubDataset | None = None
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
    dataset: str,
    split: str,
    subset: str | None = None,
) -> Benchmark:
    hub = HubDataset(dataset=dataset, subset=subset, split=split)
    return Benchmark(name=family, family=family, title=title, kind=kind, hub=hub)


CATALOGUE: dict[str, Benchmark] = {
    found.name: found
    for found in (
        _known("aime24", "AIME24", "math", "HuggingFaceH4/aime_2024", "train"),
        _known("aime25", "AIME25", "math", "math-ai/aime25", "test"),
        _known("amc23", "AMC23", "math", "math-ai/amc23", "test"),
        _known("math500", "MATH-500", "math", "HuggingFaceH4/MATH-500", "test"),
        _known("minerva", "Minerva", "math", "math-ai/minervamath", "test"),
        _known("olympiadbench", "Olympiad", "math", "Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP"),
        _known("gsm8k", "GSM8K", "math", "openai/gsm8k", "test", "main"),
        _known("gpqa_diamond", "GPQA Diamond", "choice", "Idavidrein/gpqa", "train", "gpqa_diamond"),
        _known("mmlu", "MMLU", "choice", "cais/mmlu", "test", "all"),
        _known("mmlu_pro", "MMLU-Pro", "choice", "TIGER-Lab/MMLU-Pro", "test"),
        # The original repository holds a loading script, which `datasets` no longer runs; this is its copy as Parquet.
        _known("livecodebench", "LCB", "code", "lighteval/code_generation_lite", "test", "release_v6"),
    )
}  # fmt: skip

FORMS = (HELD_OUT, "livecodebench:v5", "livecodebench:START..END", "reasoning-gym:TASK")

INSTRUCTIONS: dict[Kind, Instruction] = {"math": BOXED, "choice": LETTER, "code": PROGRAM, "gym": BOXED}


def benchmark(name: str) -> Benchmark:
    """The benchmark of a name: one of `CATALOGUE`, `livecodebench:WINDOW`, `reasoning-gym:TASK`, `held_out`, or a file.

    `livecodebench:v5` and `livecodebench:2024-08-01..2025-02-01` choose contests by date. A file has a question and an
    answer in each row.

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
    if colon and family == "livecodebench":
        found = CATALOGUE["livecodebench"]
        changes = {"name": f"livecodebench:{rest}", "title": f"LCB {rest}", "window": parse_window(rest)}
        return found.model_copy(update=changes)
    if plain.endswith(SUFFIXES) and Path(plain).expanduser().is_file():
        stem = Path(plain).name.split(".")[0]
        return Benchmark(name=stem, family=stem, title=stem, kind="math", path=plain)
    if plain.endswith(SUFFIXES):
        raise InputError(f"benchmark {name}: there is no such file (looked in {Path.cwd()})")
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


def load_problems(
    found: Benchmark, data: Path | None = None, limit: int | None = None, columns: Mapping[str, Any] = {}
) -> tuple[Problem, ...]:
    """The problems of a benchmark, their ids unique and the same wherever they were read.

    Args:
        found: which.
        data: a folder with its file, or the file; None reads the hub.
        limit: read only the first so many.
        columns: which column of a user's file holds what.

    Raises:
        InputError: it cannot be found (says what was looked for), a row is broken (says where), or nothing is left.
    """
    if found.task is not None:
        return ReasoningGym(task=found.task, size=GYM_SIZE if limit is None else limit, seed=GYM_SEED).load(limit)
    if found.path is not None:
        return parse_source(found.path, columns=columns).load(limit)
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


def _rows(found: Benchmark, data: Path | None) -> Iterator[Row]:
    """The rows of a benchmark's files, numbered through; without a file those of the hub."""
    if found.hub is None:
        raise InputError(f"benchmark {found.name}: its problems are a run's; strop eval RUN --benchmark {found.name}")
    if data is None:
        yield from _hub_rows(found.hub, found)
        return
    number = 0
    for file in _files(found, data.expanduser()):
        of_file = parse_source(str(file))
        assert isinstance(of_file, RowSource)
        for row in of_file.rows():
            number += 1
            yield row._replace(number=number)


def _hub_rows(hub: HubDataset, found: Benchmark) -> Iterator[Row]:
    try:
        yield from hub.rows()
    except InputError as error:
        raise InputError(
            f"benchmark {found.name}: {error}; or name a folder with {found.family}.jsonl or {found.family}.parquet by "
            "--set evaluation.benchmark_data=FOLDER"
        ) from error


def _files(found: Benchmark, data: Path) -> list[Path]:
    """The file itself, else in a folder the file `aime24.jsonl`, `aime24.parquet` …, else those of its folder `aime24`.

    Raises:
        InputError: there is none.
    """
    if data.is_file():
        return [data]
    files = [data / f"{found.family}{suffix}" for suffix in SUFFIXES]
    files = [file for file in files if file.is_file()][:1] or sorted((data / found.family).glob("*"))
    files = [file for file in files if file.name.endswith(SUFFIXES)]
    if not files:
        raise InputError(
            f"benchmark {found.name}: evaluation.benchmark_data={data} holds neither {found.family}.jsonl (or "
            f"{', '.join(SUFFIXES[1:])}) nor a folder {found.family} with such files"
        )
    return files


def _problems(found: Benchmark, rows: Iterable[Row]) -> Iterator[Problem]:
    for row in rows:
        try:
            problem = _problem(found, row)
            if problem is not None:
                check_problem(problem)
        except (ValueError, TypeError, KeyError) as error:  # a nested value of another type than the format has
            raise InputError(f"{row.where}: {str(error) or type(error).__name__}") from error
        if problem is not None:
            yield problem


def _problem(found: Benchmark, row: Row) -> Problem | None:
    """The problem of a row; None where its contest lies outside the window."""
    columns, identity = row.columns, f"{found.family}-{row.number}"
    if found.family == "livecodebench":
        if found.window is not None and not found.window.holds(str(column(columns, "contest_date"))):
            return None
        identity = f"livecodebench-{column(columns, 'question_id')}"
        prompt, reference = question(columns), tests(columns)
        return Problem(identity, prompt, reference, domain="code", source=found.family)
    if found.kind == "choice":
        prompt, letter = choice_question(columns, str(columns.get("Record ID", identity)))
        return Problem(identity, prompt, letter, domain=found.domain, source=found.family)
    return Problem(identity, math_question(columns), math_answer(columns), domain="math", source=found.family)
