"""Finds the point at which a run resumes and checks that it can. A resume and its dry run share these functions.

    config = resumed_config(folder, sets)              # before torch is loaded
    config, found = point(folder, step, sets)          # the configuration and the checkpoint
    findings = preview(folder, step, sets, view)       # the same, shown without training
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from strop.base.imports import command
from strop.base.text import counted
from strop.base.types import InputError
from strop.base.view import View
from strop.config.edits import differing
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.data.dataset import Data
from strop.data.loading import ProblemRecord
from strop.run.checks import of_names
from strop.run.finding import Finding, refuse
from strop.run.folder import RunFolder

if TYPE_CHECKING:
    from strop.training.checkpoint import Checkpoint

RISE = 1.1  # by what factor the learning rate rises, at least, where a finding says so
# Settings that a resume cannot change, because a checkpoint depends on them.
FIXED = ("recipe", "seed", "model.path", "model.fresh", "model.revision", "model.lora", "model.dtype", "data")


def resumed_config(folder: RunFolder, sets: Sequence[str] = ()) -> RunConfig:
    """Return the configuration of a resumed run, with `sets` applied.

    Raises:
        InputError: it is a fine-tuning run, something that it names is missing, or a setting cannot change.
    """
    stored = folder.read_json("config.json")
    if "demonstrations" in stored:
        raise InputError(f"{folder.path} is a fine-tuning run; go on with it by {command('sft --resume', folder.path)}")
    kept = {key.partition(".")[0] for key in FIXED}
    replacing = [text for text in sets if text.partition("=")[0].partition(".")[0].strip() not in kept]
    before = parse(stored, str(folder.config_path), replacing=replacing)
    config = edit(before, tuple(sets)) if sets else before
    for key, _, _ in differing(before.model_dump(mode="json"), config.model_dump(mode="json")):
        if any(f"{key}.".startswith(f"{fixed}.") for fixed in FIXED):
            raise InputError(
                f"--set {key}: a run keeps what it began with; start a new one with it: "
                f"strop train {folder.config_path} --set {key}=…"
            )
    refuse(of_names(config))
    return config


class Point(NamedTuple):
    """The configuration after the resume, and the checkpoint; None if there is none yet and the run starts over."""

    config: RunConfig
    found: Checkpoint | None


def point(folder: RunFolder, step: int | None = None, sets: Sequence[str] = ()) -> Point:
    """Find the checkpoint of `step` (None: the newest) and apply `sets` to the configuration.

    Raises:
        StropError: a setting cannot change, the checkpoint does not exist, more steps are done than `steps` allows, or
            no step is left that would use the new settings.
    """
    config = resumed_config(folder, sets)
    found = checkpoint_of(folder, step)
    if found is not None and found.step > config.steps:
        raise InputError(f"steps={config.steps}, and {found.step} are done; go back further with --step")
    if (
        sets and found is not None and found.step == config.steps
        and differing(found.state["config"], config.model_dump(mode="json"))
    ):  # fmt: skip
        raise InputError(
            f"{folder.path} has done its {counted(config.steps, 'steps')}, so that no step would use what is set; let "
            f"it take more with --set steps={2 * config.steps}, or start a new run: strop train {folder.config_path}"
        )
    return Point(config, found)


def checkpoint_of(folder: RunFolder, step: int | None = None) -> Checkpoint | None:
    """The checkpoint of `step` (None: the newest); None if there is none yet."""
    from strop.training import checkpoint

    at = checkpoint.latest(folder.checkpoints) if step is None else step
    return None if at is None else checkpoint.load(folder.checkpoints, at)


def refuse_other_problems(folder: RunFolder, data: Data, found: Checkpoint | None) -> None:
    """Refuse a resume if the training or held-out problems differ from those at the start of the run.

    Raises:
        InputError: naming the run.
    """
    recorded, present = folder.read_problems(), ProblemRecord.of(data)
    reordered = found is not None and found.state["data"] != data.train.fingerprint
    if reordered or (recorded is not None and recorded.trained != present.trained):
        others = "training"
    elif recorded is not None and recorded.held_out != present.held_out:
        others = "held-out"
    else:
        return
    raise InputError(
        f"{folder.path}: the {others} problems are not those the run began with; restore them, or start a new run: "
        f"strop train {folder.config_path}"
    )


def rising_rate(config: RunConfig, found: Checkpoint | None) -> Iterator[Finding]:
    """The learning rate would rise where the run goes on, because its schedule now ends later; not where stages are."""
    if found is None or config.stages:
        return
    stored, now = found.state["config"]["optim"], config.optim.model_dump(mode="json")
    if any(stored[name] != now[name] for name in ("lr", "warmup_steps", "schedule")):
        return
    trainer = found.state["learner"]["policy"]
    done, batch = trainer["updates"] - trainer["schedule_start"], config.batch
    left = (config.steps - found.step) * batch.updates_per_step * batch.passes_per_batch
    before = config.optim.learning_rate(done - 1, trainer["total_updates"])
    after = config.optim.learning_rate(done, done + left)
    if done > config.optim.warmup_steps and after > RISE * before:
        said = f"it rises from {before:.2g} to {after:.2g}: its schedule is planned anew, over {config.steps} steps"
        way_out = "keep it low by a lower optim.lr or optim.schedule=Constant, or begin a new run of so many steps"
        yield Finding("rising-rate", "warning", "learning rate", said, way_out)


def preview(folder: RunFolder, step: int | None, sets: Sequence[str], view: View) -> list[Finding]:
    """Show where the run would resume, how many steps are left and which settings change, without training.

    Returns:
        The findings of `questions.preview`.

    Raises:
        StropError: a resume would be refused.
    """
    from strop.run import questions

    config, found = point(folder, step, sets)
    done = 0 if found is None else found.step
    left = counted(config.steps - done, "steps")
    view.note(
        f"{folder.path} has no checkpoint yet, and begins anew: {left}" if found is None
        else f"goes on after step {done} of {config.steps}: {left} left" if done < config.steps
        else f"all {counted(done, 'steps')} are done, and none is left to train"
    )  # fmt: skip
    trained = max((int(row["step"] or 0) for row in folder.read_metrics()), default=0)
    if trained > done:
        view.note(f"steps up to {trained} were trained after that, and are done again")
    before = folder.read_json("config.json") if found is None else found.state["config"]
    for key, old, new in differing(before, config.model_dump(mode="json")):
        view.note(f"changed from there on: {key}={new} (it was {old})")
    data, findings = questions.preview(config, view)
    if data is not None:
        refuse_other_problems(folder, data, found)
    findings += rising_rate(config, found)
    return findings
