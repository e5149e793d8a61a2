"""Checkpoints: a folder is complete or it is not there.

    save(CheckpointEntry(root, step=12, state={"updates": 12}), {"policy": {…}, "optimizer": {…}})
    root/step-00000012/{policy.safetensors, optimizer.safetensors, state.json, manifest.json}

Safetensors and JSON, never pickles. Of several ranks each writes its rows of every tensor (`storage`), to
`policy.0.safetensors`, `policy.1.safetensors` …; `load` reads either, for one rank or for one of any number.

A save is written to `.tmp-step-00000012`, every file fsynced, `manifest.json` (sizes and SHA-256 of the others) last;
then the folder is renamed and `root` fsynced. A kill at any moment leaves the old checkpoints, with or without the
new one; what it left half-written is swept by the next save. One process writes a root.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from strop.base.pieces import Settings
from strop.base.types import StropError
from strop.model import tensor_file
from strop.model.tensor_file import WHOLE, Layout

_FORMAT = 1
_FOLDER = re.compile(r"step-(\d{8,})")
_GROUP = re.compile(r"[A-Za-z0-9_-]+")
_PARTIAL = ".tmp-"


class DiskFull(StropError):
    """A save did not fit on the disk: the partial one is removed, earlier ones are whole, the save may be retried."""


class Retention(Settings):
    """Which checkpoints stay: the `last` newest, and the `best` ones by their metric.

    Fields:
        metrics: by step; known since, or instead of what was given at `save`. A step with None does not compete.
        pinned: steps that stay whatever their metric, which is not known yet.
    """

    last: Annotated[int, Field(ge=1)] = 2
    best: Annotated[int, Field(ge=0)] = 1
    metrics: dict[int, float | None] = {}
    pinned: tuple[int, ...] = ()


class Groups(Mapping[str, dict[str, Tensor]]):
    """The groups of a checkpoint by name; each is read when it is asked for, in a layout, and anew every time."""

    def __init__(self, files: Mapping[str, Sequence[Path]], layout: Layout) -> None:
        self._files, self._layout = files, layout

    def __getitem__(self, group: str) -> dict[str, Tensor]:
        return tensor_file.read(self._files[group], self._layout)

    def __contains__(self, group: object) -> bool:
        return group in self._files  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint read back: tensors by group and name, and the JSON state."""

    step: int
    path: Path
    tensors: Mapping[str, dict[str, Tensor]]
    state: Any


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint to be written, but for its tensors.

    Fields:
        root: the folder of all checkpoints; made where missing.
        step: the checkpoint's, >= 0.
        state: whatever JSON can hold, without NaN or infinity.
        metric: what `retention` ranks by; None ranks below every number.
        retention: which checkpoints stay; None: all.
    """

    root: Path
    step: int
    state: Mapping[str, Any]
    metric: float | None = None
    retention: Retention | None = None


def save(entry: CheckpointEntry, tensors: Mapping[str, Mapping[str, Tensor]]) -> Path:
    """Write a checkpoint, then remove those that its `retention` does not keep; returns its folder.

    Args:
        entry: a checkpoint of its step must not be there yet (see `rewind`).
        tensors: groups of named tensors, one file each; any dtype, bit for bit; tensors may share storage.

    Raises:
        DiskFull: no space (or quota) left; earlier checkpoints are untouched.
        StropError: a checkpoint of that step is there.
    """
    with filling(entry.root, entry.step) as partial:
        files = write_groups(partial, tensors)
        seal(partial, entry.step, files, list(tensors), entry.state, entry.metric)
    if entry.retention is not None:
        prune(entry.root, entry.retention)
    return folder_of(entry.root, entry.step)


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    return root / f"step-{step:08d}"


@contextmanager
def filling(root: Path, step: int) -> Iterator[Path]:
    """An empty folder to fill and `seal`; renamed to its place at the end, removed where anything is raised.

    Raises:
        DiskFull: no space (or quota) left; earlier checkpoints are untouched.
        StropError: a checkpoint of that step is there.
    """
    folder = folder_of(root, step)
    if folder.exists():
        raise StropError(f"{folder} is there already; rewind the run to an earlier step, or move the folder away")
    partial = root / f"{_PARTIAL}{folder.name}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
        partial.mkdir()
        yield partial
        os.rename(partial, folder)
        _sync(root)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # the error that matters is on its way up
        if isinstance(error, OSError):
            raise explained(error, folder) from error
        raise


def explained(error: OSError, folder: Path) -> Exception:
    """`DiskFull` where that is what kept `folder` from being written, else the error itself."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return DiskFull(f"no space for checkpoint {folder}; earlier ones are kept, free some space")


def latest(root: Path) -> int | None:
    """The newest step with a checkpoint under `root`; None where there is none."""
    return max(steps(root), default=None)


def steps(root: Path) -> list[int]:
    """The steps of every checkpoint under `root`, in order."""
    found = (_FOLDER.fullmatch(entry.name) for entry in (root.iterdir() if root.is_dir() else ()))
    return sorted(int(match[1]) for match in found if match)


def load(
    root: Path, step: int | None = None, layout: Layout = WHOLE, check: bool = True
) -> Checkpoint:
    """Read the checkpoint of `step` (None: the newest), after checking every file's size and hash.

    Args:
        root: the folder of all checkpoints.
        step: which one.
        layout: how its tensors are to lie; by default whole, on the CPU.
        check: False where another process has just checked the files.

    Raises:
        StropError: there is none, or a file is missing, cut short or altered.
    """
    found = latest(root) if step is None else step
    if found is None:
        raise StropError(f"{root} holds no checkpoint")
    folder = folder_of(root, found)
    if not folder.is_dir():
        have = ", ".join(map(str, steps(root))) or "none"
        raise StropError(f"{root} holds no checkpoint of step {found}; it has {have}")
    manifest = _manifest(folder)
    if manifest["step"] != found:
        raise StropError(f"{folder} holds step {manifest['step']}; the folder was renamed")
    for name, facts in manifest["files"].items() if check else ():
        _verify(folder / name, facts)
    files = {group: _files_of(group, manifest, folder) for group in manifest["groups"]}
    return Checkpoint(found, folder, Groups(files, layout), json.loads((folder / "state.json").read_text()))


def rewind(root: Path, step: int) -> None:
    """Remove every checkpoint after `step`: a run that resumes there writes them anew."""
    for later in (s for s in steps(root) if s > step):
        _remove(folder_of(root, later))


def sweep(root: Path) -> None:
    """Remove what killed saves and removals left behind."""
    for leftover in root.glob(f"{_PARTIAL}*"):
        shutil.rmtree(leftover)


Facts = dict[str, dict[str, Any]]  # size and hash of files, by name


def write_groups(folder: Path, tensors: tensor_file.Groups, rank: int | None = None) -> Facts:
    """Write each group as a safetensors file, or as the file of a rank; the files' facts."""
    for group in tensors:
        if not _GROUP.fullmatch(group):
            raise ValueError(f"tensor group {group!r} cannot be a file name")
    files: Facts = {}
    for group, members in tensors.items():
        name = _file_name(group, rank)
        files[name] = _facts(*tensor_file.write(folder / name, members))
        _sync(folder / name)
    return files


def _file_name(group: str, rank: int | None) -> str:
    return f"{group}.safetensors" if rank is None else f"{group}.{rank}.safetensors"


def _files_of(group: str, manifest: Mapping[str, Any], folder: Path) -> list[Path]:
    """The file of a group, or those of all ranks in their order."""
    files = manifest["files"]
    if _file_name(group, None) in files:
        return [folder / _file_name(group, None)]
    found = list(takewhile(files.__contains__, (_file_name(group, rank) for rank in count())))
    if len(found) != manifest["ranks"]:
        raise StropError(f"{folder} is damaged: its manifest names {len(found)} files of {group}; take another --step")
    return [folder / name for name in found]


def seal(
    folder: Path, step: int, files: Facts, groups: Sequence[str], state: Any, metric: Any, ranks: int | None = None
) -> None:
    """Write the state and, last, the manifest, and make all of it durable; `ranks` have written their rows each."""
    _write_bytes(folder / "state.json", json.dumps(state, allow_nan=False).encode())
    files["state.json"] = _facts(*tensor_file.facts_of(folder / "state.json"))
    manifest = {
        "format": _FORMAT, "step": step, "metric": metric, "groups": list(groups), "ranks": ranks, "files": files
    }  # fmt: skip
    _write_bytes(folder / "manifest.json", json.dumps(manifest, indent=1, allow_nan=False).encode())
    _sync(folder)


def _facts(size: int, digest: str) -> dict[str, Any]:
    """Of a file, as the manifest has them."""
    return {"size": size, "sha256": digest}


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _sync(path)


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, checked for shape."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise StropError(f"{folder} is no whole checkpoint: manifest.json is missing; take another --step") from error
    except (ValueError, RecursionError) as error:
        raise StropError(f"{folder} is damaged: manifest.json is not JSON; take another --step") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise StropError(f"{path} is not a manifest of format {_FORMAT}; take another --step")
    return manifest


def _verify(path: Path, facts: Mapping[str, Any]) -> None:
    """Raise unless the file has the size and hash that the manifest gives it."""
    if not path.is_file():
        raise StropError(f"{path} is missing; take another --step")
    if path.stat().st_size != facts["size"]:
        raise StropError(f"{path} has {path.stat().st_size} bytes, not {facts['size']}; take another --step")
    if _facts(*tensor_file.facts_of(path)) != facts:
        raise StropError(f"{path} is damaged (its hash differs from the manifest's); take another --step")


def prune(root: Path, retention: Retention) -> None:
    """Remove the checkpoints that are neither among the newest nor among the best, nor pinned."""
    present = steps(root)
    keep = {*present[-retention.last :], *retention.pinned}
    metrics = {step: retention.metrics.get(step, _metric(folder_of(root, step))) for step in present}
    # Of equal metrics the earlier step is the better one: it took less compute.
    ranked = sorted((metric, -step) for step, metric in metrics.items() if metric is not None)
    keep |= {-earlier for _, earlier in ranked[len(ranked) - min(retention.best, len(ranked)) :]}
    for step in present:
        if step not in keep:
            _remove(folder_of(root, step))


def _metric(folder: Path) -> float | None:
    """What a checkpoint ranks by; a damaged one ranks last, so that it goes when it is old, and never fails a save."""
    try:
        return _manifest(folder)["metric"]
    except StropError:
        return None


def _remove(folder: Path) -> None:
    """Take a checkpoint out of sight in one rename, then delete it: a kill cannot leave half of it in its place."""
    gone = folder.with_name(f"{_PARTIAL}gone-{folder.name}")
    os.rename(folder, gone)
    shutil.rmtree(gone)
