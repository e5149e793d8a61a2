"""Finds the point at which a run resumes and checks that it can. A resume and its dry run share these functions.

    config, found = point(folder, step, sets)          # the configuration and the checkpoint
    findings = preview(folder, step, sets, view)       # the same, shown without training
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strop.base.text import counted
from strop.base.types import InputError
from strop.base.view import View
from strop.config.edits import differing
from strop.config.schema import RunConfig
from strop.data.dataset import Data
from strop.data.loading import ProblemRecord
from strop.run import preflight, questions
from strop.run.finding import Finding
from strop.run.folder import RunFolder
from strop.training import checkpoint
from strop.training.checkpoint import Checkpoint


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
    config = preflight.resuming(folder, sets)
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
    """The checkpoint of `step` (None: the newest); None where there is none yet."""
    at = checkpoint.latest(folder.checkpoints) if step is None else step
    return None if at is None else checkpoint.load(folder.checkpoints, at)


def refuse_other_problems(folder: RunFolder, data: Data, found: Checkpoint | None) -> str | None:
    """Refuse a resume whose training or held-out problems are not those that the run began with.

    Returns:
        A line if the answers of held-out problems have changed, else None.

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
        return None if recorded is None or data.held_out is None else recorded.other_answers(data.held_out.problems)
    raise InputError(
        f"{folder.path}: the {others} problems are not those the run began with; restore them, or start a new run: "
        f"strop train {folder.config_path}"
    )


def preview(folder: RunFolder, step: int | None, sets: Sequence[str], view: View) -> list[Finding]:
    """Show where the run would resume, how many steps are left and which settings change, without training.

    Returns:
        The findings of `questions.preview`, and one if held-out answers have changed.

    Raises:
        StropError: a resume would be refused.
    """
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
    others = None if data is None else refuse_other_problems(folder, data, found)
    return findings if others is None else [*findings, Finding("answers-changed", "note", "held out", others)]
