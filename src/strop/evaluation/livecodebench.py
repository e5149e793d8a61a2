"""LiveCodeBench: problems with the dates of their contests, and tests that are packed to stay out of crawls."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, NoReturn, Self

from pydantic import AfterValidator, ValidationError, model_validator

from strop.base.pieces import Settings, complaint
from strop.base.types import InputError
from strop.evaluation.benchmark_rows import column

_WINDOW = re.compile(r"(\d{4}-\d{2}(?:-\d{2})?)\.\.(\d{4}-\d{2}(?:-\d{2})?)")
_MOST_BYTES = 512 * 1024 * 1024  # of one problem's unpacked tests


def _day(text: str) -> str:
    full = f"{text}-01" if len(text) == 7 else text
    datetime.strptime(full, "%Y-%m-%d")
    return full


class Window(Settings):
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
    "v5": Window(start="2024-08-01", end="2025-02-01"),
    "v6": Window(start="2025-02-01", end="2025-05-01"),
}


def parse_window(text: str) -> Window:
    """`v5`, `v6` or `2024-08-01..2025-02-01`.

    Raises:
        InputError: it is none of them.
    """
    if text in WINDOWS:
        return WINDOWS[text]
    match = _WINDOW.fullmatch(text)
    if match is not None:
        try:
            return Window(start=match[1], end=match[2])
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
