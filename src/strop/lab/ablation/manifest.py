"""ablation.json: the variants of an ablation and the states of its runs. One process writes it, any number read it.

FOLDER/ablation.json            the variants with their configurations, the seeds, and the state of every run
FOLDER/runs/VARIANT/seed0       a run folder; finished once it has a summary.json
FOLDER/runs/VARIANT/seed0.json  the configuration from which it was started
FOLDER/logs/VARIANT-seed0.log   the output of that run
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

import strop
from strop.base.files import locked, write_text, writing
from strop.base.pieces import Settings
from strop.base.types import InputError
from strop.config.edits import explain
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.lab.ablation.variants import Variant, Variants, differences, short_name
from strop.run.folder import SUMMARY, is_run

FILE = "ablation.json"
LOCK = ".lock"
FORMAT = 1

State = Literal["waiting", "running", "stopped", "failed", "finished"]


class VariantEntry(Settings):
    """A variant in the manifest; its configuration has the recipe's seed, which each run replaces by its own."""

    name: str
    folder: str
    changes: dict[str, tuple[str, str]] = {}
    config: dict[str, Any]


class RunEntry(Settings):
    """A run of a variant. `error` says in one line why it failed, `log` where to read more."""

    variant: str
    seed: int
    state: State = "waiting"
    error: str | None = None

    @property
    def label(self) -> str:
        return f"{self.variant} seed {self.seed}"


class Manifest(Settings):
    """An ablation; the first variant is the base. Runs are in the order in which they are made, seed by seed.

    `until_decided`: after every seed a look decides which variants need another one.
    """

    format: int = FORMAT
    strop: str = strop.__version__
    recipe: str
    seeds: tuple[int, ...]
    variants: tuple[VariantEntry, ...]
    notes: tuple[str, ...] = ()
    until_decided: bool = False
    runs: tuple[RunEntry, ...]

    @property
    def base(self) -> VariantEntry:
        return self.variants[0]

    def variant(self, name: str) -> VariantEntry:
        return next(entry for entry in self.variants if entry.name == name)

    def config(self, run: RunEntry) -> RunConfig:
        """The configuration of a run."""
        return parse(self.variant(run.variant).config | {"seed": run.seed}, run.label)

    def path(self, folder: Path, run: RunEntry) -> Path:
        return folder / "runs" / self.variant(run.variant).folder / f"seed{run.seed}"

    def log(self, folder: Path, run: RunEntry) -> Path:
        return folder / "logs" / f"{self.variant(run.variant).folder}-seed{run.seed}.log"

    def marked(self, run: RunEntry, state: State, error: str | None = None) -> Manifest:
        """The same with a run in another state."""
        marked = RunEntry(variant=run.variant, seed=run.seed, state=state, error=error)
        same = [marked if (each.variant, each.seed) == (run.variant, run.seed) else each for each in self.runs]
        return self.model_copy(update={"runs": tuple(same)})

    def extended(self, variants: Sequence[str], most: int) -> Manifest:
        """The same with the next seed of each of these variants that has less than `most`, and that of the base."""
        runs = {(run.variant, run.seed): run for run in self.runs}
        seeds = list(self.seeds)
        for name in variants:
            own = [seed for variant, seed in runs if variant == name]
            if len(own) < most:
                seed = next(seed for seed in chain(seeds, count(max(seeds) + 1)) if seed not in own)
                seeds += [seed] if seed not in seeds else []
                for each in (self.base.name, name):
                    runs.setdefault((each, seed), RunEntry(variant=each, seed=seed))
        names = [variant.name for variant in self.variants]
        ordered = [runs[name, seed] for seed in seeds for name in names if (name, seed) in runs]
        return self.model_copy(update={"seeds": tuple(seeds), "runs": tuple(ordered)})


def plan(recipe: str, found: Variants, seeds: Sequence[int], until_decided: bool = False) -> Manifest:
    """The manifest of an ablation that has not begun.

    Raises:
        InputError: its runs are never evaluated.
    """
    if found.all[0].config.evaluation.every is None:
        raise InputError(f"{recipe} is never evaluated, so nothing could be compared; add --set evaluation.every=10")
    entries = tuple(_entry(variant) for variant in found.all)
    runs = tuple(RunEntry(variant=entry.name, seed=seed) for seed in seeds for entry in entries)
    return Manifest(
        recipe=recipe, seeds=tuple(seeds), variants=entries, notes=found.notes, until_decided=until_decided, runs=runs
    )


def default_folder(target: str, study: str | None, small: bool) -> Path:
    """Where the ablation of a recipe or a file is, unless --out says otherwise."""
    return Path("runs") / "-".join(filter(None, ("ablate", short_name(target), study, "tiny" if small else "")))


def _entry(variant: Variant) -> VariantEntry:
    config = variant.config.model_dump(mode="json")
    return VariantEntry(name=variant.name, folder=variant.folder, changes=variant.changes, config=config)


def merged(folder: Path, wanted: Manifest) -> Manifest:
    """`wanted` with what the folder already holds of it; further seeds and variants may have been added.

    Raises:
        InputError: the folder holds another ablation: a variant or a seed is gone, or a configuration differs; or it
            holds something else.
    """
    if not (folder / FILE).exists():
        if folder.exists() and (not folder.is_dir() or any(entry.name != LOCK for entry in folder.iterdir())):
            raise InputError(f"{folder} is not empty and no ablation; choose another folder with --out")
        return wanted
    kept = read_manifest(folder, live=False)
    here = {entry.name: entry for entry in wanted.variants}
    for entry in kept.variants:
        if entry.name not in here:
            raise InputError(_changed(folder, f"it has the variant {entry.name}, which this command does not make"))
        ours = parse(here[entry.name].config, entry.name, to_run=False)
        theirs = parse(entry.config, f"{folder / FILE}: {entry.name}", to_run=False)
        if theirs != ours:
            raise InputError(_changed(folder, f"its {entry.name} has {_differing(theirs, ours)}"))
    gone = [seed for seed in kept.seeds if seed not in wanted.seeds]
    if gone and not wanted.until_decided:
        raise InputError(_changed(folder, f"it has the seed {min(gone)}, which this command leaves out"))
    states = {(run.variant, run.seed): run for run in kept.runs}
    runs = [states.pop((run.variant, run.seed), run) for run in wanted.runs]
    # What is left are runs of seeds that were added until the variants were decided.
    return wanted.model_copy(
        update={
            "seeds": (*wanted.seeds, *gone),
            "runs": (*runs, *states.values()),
            "until_decided": wanted.until_decided or kept.until_decided,
        }
    )


def _differing(theirs: RunConfig, ours: RunConfig) -> str:
    """`optim.lr=1e-05 where this command has 2e-05`, of the first setting that differs."""
    key, (old, new) = next(iter(differences(theirs, ours, ()).items()))
    return f"{key}={old} where this command has {new}"


def _changed(folder: Path, what: str) -> str:
    return f"{folder} holds an ablation that is defined otherwise: {what}; choose another folder with --out"


def read_manifest(folder: Path, live: bool = True) -> Manifest:
    """The manifest, with the states as they are now where `live`: finished by their summaries, stopped where no process
    works on them any more.

    Raises:
        InputError: there is none, it is broken, or a later strop wrote it.
    """
    path = folder / FILE
    if not path.is_file():
        raise InputError(
            f"{folder} is no ablation (it has no {FILE}); make one with: strop ablate RECIPE --out {folder}"
        )
    try:
        found = Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error)}") from error
    if found.format != FORMAT:
        raise InputError(f"{path} has format {found.format}; this strop ({strop.__version__}) reads {FORMAT}")
    if not live:
        return found
    busy = _is_held(folder)
    for run in found.runs:
        if is_finished(found.path(folder, run)):
            found = found.marked(run, "finished")
        elif run.state == "running" and not busy:
            found = found.marked(run, "stopped")
    return found


def is_finished(run: Path) -> bool:
    """Whether the run came to its end: its summary is what it writes last."""
    return is_run(run) and (run / SUMMARY).is_file()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of an ablation into its folder."""
    write_text(folder / FILE, manifest.model_dump_json(indent=1) + "\n")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no second process works on it; the lock dies with the process.

    Raises:
        InputError: another process holds it.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, f"{folder} is worked on by another process; look with: strop ablate show {folder}"):
        yield


def _is_held(folder: Path) -> bool:
    """Whether a process, this one or another, works on the ablation."""
    if not (folder / LOCK).exists():
        return False
    try:
        with locked(folder / LOCK, ""):
            return False
    except InputError:
        return True
