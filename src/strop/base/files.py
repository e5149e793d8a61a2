"""Writing files so that neither a reader nor a crash ever sees half of one."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strop.base.near import near
from strop.base.types import InputError, StropError, first_line

TEMPORARY = ".partial"


def cache_folder() -> Path:
    """The folder of files that strop can make again: $STROP_CACHE, else the user's cache folder."""
    own = os.environ.get("STROP_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "strop"


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn an `OSError` (disk full, read-only, no permission) into a `StropError` that names the path."""
    try:
        yield
    except OSError as error:
        raise StropError(f"cannot write {target}: {error.strerror or error}") from error


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock on a file, which is made where it is missing; the lock dies with the process.

    Raises:
        InputError: `busy`: another process holds it.
    """
    with writing(path):
        lock = path.open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(busy) from error
        yield


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary path next to `target` to write to; fsynced and renamed over it when the block succeeds."""
    temporary = target.with_name(f".{target.name}{TEMPORARY}")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a JSON file, whole or not at all; NaN and infinity are refused (ValueError)."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        InputError: there is no such file, or something else in it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path.parent} has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not readable as JSON: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no JSON object")
    return value


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many parent folders as make it unique."""
    names = []
    for path in paths:
        count = 1
        while count < len(path.parts) and sum(other.parts[-count:] == path.parts[-count:] for other in paths) > 1:
            count += 1
        names.append("/".join(path.parts[-count:]))
    return names


def nearest_folder(path: Path) -> str:
    """The end of an error about a missing folder: `; did you mean …?` with a similar name next to it, or nothing."""
    folders = [each.name for each in path.parent.iterdir() if each.is_dir()] if path.parent.is_dir() else []
    meant = near(path.name, folders)
    return "" if meant is None else f"; did you mean {path.parent / meant}?"


class Journal:
    """A file of JSON lines that survives a kill: its entries are read back, a torn last line is ignored."""

    def __init__(self, path: Path) -> None:
        self.entries: list[dict[str, Any]] = []
        good = 0
        if path.exists():
            with path.open("rb") as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self.entries.append(json.loads(line))
                    good += len(line)
        with writing(path):
            self._file = path.open("ab")
            self._file.truncate(good)
        self._path = path

    def add(self, entry: dict[str, Any]) -> None:
        """Write an entry and flush it, so that it survives a kill of the process."""
        self.entries.append(entry)
        with writing(self._path):
            self._file.write(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
