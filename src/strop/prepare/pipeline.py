"""The preparation itself: sources, then step after step, each from a Parquet file to the next.

    report = prepare(load_config("prepare.toml"), view)

The folder holds train.parquet, validation.parquet (if a step splits), dropped.parquet with the reason of every dropped
row and the question that it repeats, report.json, and the result of each step under steps/. A step's folder is renamed
into place when it is complete. Its key is a hash of the configuration up to this step and of the files that it reads: a
killed preparation resumes after the last finished step, a changed one at the first step that changed. Problems are read
and written row by row.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import strop
from strop.base.files import locked, read_json, replacing, write_json, writing
from strop.base.types import InputError, Problem
from strop.base.view import View
from strop.data.columns import BrokenRow
from strop.data.problem_table import FIELDS, ProblemWriter, count_rows, read_rows, to_columns
from strop.prepare.config import PrepareConfig
from strop.prepare.sources import Source
from strop.prepare.stage import DROPPED_COLUMNS, Stage, Step
from strop.prepare.text import hash64


def step_table(report: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """One row a step: name, in, out, seconds, and why problems were dropped."""
    rows = []
    for step in report["steps"]:
        seconds = "done before" if step["resumed"] else f"{step['seconds']:.1f}"
        reasons = _reasons(step["held_out"], step["reasons"])
        rows.append((step["step"], f"{step['in']:,}", f"{step['out']:,}", seconds, reasons))
    return rows


def source_table(report: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """One row a source: name, in, out, and why problems were dropped."""
    return [
        (name, f"{counts['in']:,}", f"{counts['out']:,}", _reasons(counts["held_out"], counts["dropped"]))
        for name, counts in report["by_source"].items()
    ]


def _reasons(held_out: int, dropped: Mapping[str, int]) -> str:
    reasons = {**({"held out": held_out} if held_out else {}), **dropped}
    return ", ".join(f"{reason}: {count:,}" for reason, count in reasons.items())


FORMAT = 5  # raise it when the same configuration would make other files
MARKER = "prepare.json"
PARTIAL = ".partial"


def prepare(config: PrepareConfig, view: View) -> dict[str, Any]:
    """Run the steps that are not done yet, and return the report as it is written to report.json.

    Raises:
        InputError: a source, a benchmark or a model cannot be read; a row is broken and `broken_rows` is "stop"; the
            folder holds something else; a step kept no problem (the report is still written).
        StropError: the disk is full or an endpoint died; the same call resumes.
    """
    began = time.monotonic()
    folder = Path(config.out)
    with _locked(folder):
        write_json(folder / "config.json", config.model_dump(mode="json"))
        _check_inputs(config)
        rows = []
        key = ""
        place = folder / "steps"
        names: list[str] = []
        for number, step in enumerate((None, *config.steps)):
            name = "sources" if step is None else step.title()
            names.append(f"{number:02d}-{name.replace(' ', '-')}")
            key = _key(key, config, step)
            target = place / names[-1]
            if not ((target / "step.json").is_file() and _has_key(target, key)):
                before = place / names[-2] / "problems.parquet" if number else None
                _run(config, step, name, before, target, key, view)
                resumed = False
            else:
                resumed = True
            rows.append({**read_json(target / "step.json"), "resumed": resumed})
            if not rows[-1]["out"]:
                break
        _remove_others(place, names)
        report = _finish(config, folder, [place / name for name in names], rows, time.monotonic() - began)
    if not report["problems_out"]:
        last = report["steps"][-1]
        why = ", ".join(f"{reason}: {count:,}" for reason, count in last["reasons"].items())
        hint = f"; {last['hint']}" if last.get("hint") else ""
        raise InputError(
            f"no problem is left: the step {last['step']} kept none of {last['in']:,} ({why}){hint}; no train.parquet "
            f"was written, {folder / 'dropped.parquet'} has the dropped ones; change steps[{len(report['steps']) - 1}]"
        )
    return report


def _check_inputs(config: PrepareConfig) -> None:
    """Refuse missing files before any step runs; the error names the place in the configuration."""
    stamps = [(f"sources[{number}]", source.stamp) for number, source in enumerate(config.sources, 1)]
    stamps += [(f"steps[{number}] ({step.title()})", step.inputs) for number, step in enumerate(config.steps, 1)]
    for where, stamp in stamps:
        try:
            stamp()
        except InputError as error:
            raise InputError(f"{where}: {error}; name a file that is there (paths begin in {Path.cwd()})") from error


def _run(
    config: PrepareConfig,
    step: Step | None,
    name: str,
    before: Path | None,
    target: Path,
    key: str,
    view: View,
) -> None:
    """Run one step in its folder; a journal of an earlier attempt with the same key is kept."""
    partial = target.with_name(target.name + PARTIAL)
    with writing(target):
        shutil.rmtree(target, ignore_errors=True)
        if partial.is_dir() and not _has_key(partial, key):
            shutil.rmtree(partial)
        partial.mkdir(parents=True, exist_ok=True)
        (partial / "key").write_text(key)
    began = time.monotonic()
    if step is None:
        row = _read_sources(config, partial, view)
    else:
        assert before is not None
        stage = Stage(name, before, partial, view, config.seed)
        try:
            step.run(stage)
        finally:
            stage.close()
        row = {
            "step": name, "piece": step.model_dump(mode="json"), "in": stage.total, "out": stage.kept,
            "dropped": stage.dropped, "held_out": stage.held_out, "reasons": dict(stage.reasons.most_common()),
            "counts": stage.counts, "hint": stage.hint,
        }  # fmt: skip
        if stage.kept + stage.dropped + stage.held_out != stage.total:
            raise RuntimeError(f"step {name} lost problems: {row}")
    row["seconds"] = round(time.monotonic() - began, 3)
    write_json(partial / "step.json", row)
    with writing(target):
        partial.rename(target)


def _read_sources(config: PrepareConfig, folder: Path, view: View) -> dict[str, Any]:
    """Write the problems of all sources into one file, in order, and the broken rows into another.

    Raises:
        InputError: a broken row where `broken_rows` says stop, or no problem at all.
    """
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    reasons: Counter[str] = Counter()
    first: BrokenRow | None = None
    with (
        ProblemWriter(folder / "problems.parquet") as kept,
        ProblemWriter(folder / "dropped.parquet", DROPPED_COLUMNS) as dropped,
    ):
        for source in _told_apart(config.sources):
            view.stage(f"reading {source.label}", None)
            if unread := source.unread():
                view.note(f"{unread}; columns.extra=[…] keeps them")
            problems = broken = 0
            ticked = time.monotonic()
            for made in source.problems():
                row = _row(made, seen)
                if isinstance(row, BrokenRow):
                    if config.broken_rows == "stop":
                        raise InputError(f'{row.where}: {row.reason}; broken_rows = "skip" leaves such rows out')
                    first = first or row
                    dropped.write_row(_broken_columns(row, source))
                    reasons["broken row"] += 1
                    broken += 1
                else:
                    kept.write_row(row)
                    problems += 1
                if time.monotonic() - ticked > 0.2:
                    ticked = time.monotonic()
                    view.advance(problems + broken, {})
            found.append({"source": source.label, "problems": problems, "broken": broken})
        total, left_out = kept.count, dropped.count
    if not total:
        why = f": all {left_out} rows are broken, the first is {first.where}: {first.reason}" if first else ""
        raise InputError(f"no problems in {', '.join(source.label for source in config.sources)}{why}")
    return {
        "step": "sources", "piece": None, "in": total + left_out, "out": total, "dropped": left_out, "held_out": 0,
        "reasons": dict(reasons), "counts": {"sources": found},
    }  # fmt: skip


def _row(made: Problem | BrokenRow, seen: set[int]) -> dict[str, str] | BrokenRow:
    """The problem as a row; a `BrokenRow` if its id was seen before or it cannot be written."""
    if isinstance(made, BrokenRow):
        return made
    try:
        row = to_columns(made)
    except ValueError as error:
        return BrokenRow(f"{made.source}: {made.id}", str(error))
    identity = hash64(made.id)
    if identity in seen:
        return BrokenRow(f"{made.source}: {made.id}", "the id occurs twice")
    seen.add(identity)
    return row


def _broken_columns(row: BrokenRow, source: Source) -> dict[str, str]:
    blank = dict.fromkeys((*FIELDS, *DROPPED_COLUMNS), "")
    known = {"id": row.where, "source": source.label, "extra": "{}"}
    return blank | known | {"step": "sources", "reason": "broken row", "detail": row.reason}


def _told_apart(sources: tuple[Source, ...]) -> Iterator[Source]:
    """The sources under unique names: the second `train` becomes `train-2`."""
    names: Counter[str] = Counter()
    for source in sources:
        names[source.label] += 1
        if names[source.label] > 1 and source.source is None:
            source = source.model_copy(update={"name": f"{source.label}-{names[source.label]}"})
        yield source


def _finish(
    config: PrepareConfig, folder: Path, steps: list[Path], rows: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Collect the results of the steps, and write the report."""
    if rows[-1]["out"]:
        _publish(steps[-1] / "problems.parquet", folder / "train.parquet")
    else:
        (folder / "train.parquet").unlink(missing_ok=True)  # of an earlier configuration
    validation = [step / "validation.parquet" for step in steps if (step / "validation.parquet").exists()]
    if validation and rows[-1]["out"]:
        _concatenate(validation, folder / "validation.parquet", ())
    else:
        (folder / "validation.parquet").unlink(missing_ok=True)
    _concatenate([step / "dropped.parquet" for step in steps], folder / "dropped.parquet", DROPPED_COLUMNS)
    _collect(steps, "samples.jsonl", folder / "pass_rates.jsonl")
    report = {
        "strop": strop.__version__,
        "out": str(folder),
        "problems_in": rows[0]["in"],
        "problems_out": rows[-1]["out"],
        "validation": sum(count_rows(path) for path in validation),
        "dropped": sum(row["dropped"] for row in rows),
        "seconds": round(seconds, 3),
        "by_source": _by_source(steps, validation, folder / "dropped.parquet", rows[0]["counts"]["sources"]),
        "steps": rows,
    }
    write_json(folder / "report.json", report)
    return report


def _publish(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:  # a file system without links
            shutil.copyfile(source, temporary)


def _concatenate(sources: list[Path], target: Path, more: tuple[str, ...]) -> None:
    with replacing(target) as temporary, ProblemWriter(temporary, more) as writer:
        for source in sources:
            for row in read_rows(source):
                writer.write_row(row)


def _collect(steps: list[Path], name: str, target: Path) -> None:
    """Concatenate the files called `name` of all steps into `target`; remove `target` if there are none."""
    found = [step / name for step in steps if (step / name).exists() and (step / name).stat().st_size]
    if not found:
        target.unlink(missing_ok=True)
        return
    with replacing(target) as temporary, temporary.open("wb") as out:
        for path in found:
            with path.open("rb") as part:
                shutil.copyfileobj(part, out)


def _by_source(
    steps: list[Path], validation: list[Path], dropped: Path, read: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Counts of every source that was `read`, in the order of priority, those without problems included.

    in = out + held_out + dropped (by reason).
    """
    found: dict[str, dict[str, Any]] = {}

    def source(name: str) -> dict[str, Any]:
        return found.setdefault(name, {"in": 0, "out": 0, "held_out": 0, "dropped": Counter()})

    came = _sources(steps[0] / "problems.parquet")
    for each in read:
        if not each["problems"]:
            source(each["source"])
        for name in islice(came, each["problems"]):  # a prepared file keeps the names of the sets that it was made of
            source(name)["in"] += 1
    for row in read_rows(dropped):
        of = source(row["source"])
        of["dropped"][row["reason"]] += 1
        if row["step"] == "sources":
            of["in"] += 1
    for path in validation:
        for name in _sources(path):
            source(name)["held_out"] += 1
    for name in _sources(steps[-1] / "problems.parquet"):
        source(name)["out"] += 1
    return found


def _sources(path: Path) -> Iterator[str]:
    """The source of every problem of a file, in order."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as table:
        for batch in table.iter_batches(columns=["source"], batch_size=65536):
            yield from batch.column(0).to_pylist()


def _key(before: str, config: PrepareConfig, step: Step | None) -> str:
    """A hash of everything that the result of a step depends on."""
    if step is None:
        sources = [source.model_dump(mode="json") for source in config.sources]
        parts: list[Any] = [FORMAT, sources, [source.stamp() for source in config.sources], config.broken_rows]
    else:
        parts = [before, step.identity(), step.inputs(), config.seed]
    return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _has_key(folder: Path, key: str) -> bool:
    path = folder / "key"
    return path.is_file() and path.read_text() == key


def _remove_others(place: Path, names: list[str]) -> None:
    """Remove the steps of an earlier configuration."""
    for folder in place.iterdir():
        if folder.name not in names:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Mark the folder as a preparation's, and lock it against a second process.

    Raises:
        InputError: it holds something else, or another process works in it.
    """
    if folder.exists() and not (folder / MARKER).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there and holds something else; choose another folder with out = … or --out")
    with writing(folder):
        (folder / "steps").mkdir(parents=True, exist_ok=True)
        write_json(folder / MARKER, {"format": FORMAT, "strop": strop.__version__})
    with locked(folder / ".lock", f"{folder} is in use by another preparation; wait for it, or choose another folder"):
        yield
