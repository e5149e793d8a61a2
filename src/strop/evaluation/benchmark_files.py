"""Where the rows of a benchmark come from: files of a local folder, or the hub.

A file belongs to a benchmark when its name, in lower case and without `-` and `_`, is one of the benchmark's names:
`aime24.parquet`, `AIME_2024.json`, `gsm8k_test.jsonl`; or when it lies in a sub-folder called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from strop.base.types import InputError
from strop.data.columns import Row
from strop.data.rows import HubDataset, RowSource
from strop.data.source import parse_source

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json")


def local_rows(folder: Path, name: str, stems: Sequence[str], hub: str | None) -> Iterator[Row]:
    """The rows of the benchmark `name` under `folder`, which may also be the very file.

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
            "name the folder with --data (of a run: evaluation.benchmark_data; from Python name the file itself)"
        ) from error


def not_found(folder: Path, name: str, stems: Sequence[str], hub: str | None) -> str:
    """The error message for a benchmark that a folder does not hold."""
    if not folder.exists():
        return f"--data {folder}: there is no such folder"
    looked = " or ".join(stems)
    way_out = f" or leave out --data to load {hub} from the hub (extra `hub`)" if hub is not None else ""
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
