"""Trackers: where the metrics of a run go, in addition to the terminal.

metrics.jsonl is always written; TensorBoard, trackio and Weights & Biases are extras, imported only when asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strop.base.imports import require
from strop.base.types import InputError
from strop.run.folder import RunFolder

PROJECT = "strop"
SECRET_KEY = re.compile(r"token|secret|password|passwd|api_?key|credential", re.IGNORECASE)
# Counts that happen to contain a telling word, such as `max_new_tokens` or `tokens_per_microbatch`, are no secrets.
NO_SECRET_KEY = re.compile(r"tokens|tokenizer|_token_ids?$", re.IGNORECASE)

Tracker = tuple[Callable[[int, dict[str, float]], None], Callable[[], None]]  # records a step's metrics; closes


def _tensorboard(run: RunFolder, config: dict[str, Any], resumed_at: int | None) -> Tracker:
    """Event files under `tensorboard/` of the run folder; a resume hides the later steps of earlier files."""
    require("tensorboard", extra="tensorboard", purpose="trackers: TensorBoard's event files")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=None if resumed_at is None else resumed_at + 1)

    def log(step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log, writer.close


def _wandb(run: RunFolder, config: dict[str, Any], resumed_at: int | None) -> Tracker:
    """A Weights & Biases run; the key is read by wandb itself and never passes through strop.

    Project, entity and mode follow wandb's own variables (WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline). Code, git
    state and console output are not sent. The x-axis is a separate metric `step`, because wandb's own step refuses late
    evaluations of earlier steps.
    """
    wandb = require("wandb", extra="wandb", purpose="trackers: runs of Weights & Biases")
    settings = wandb.Settings(
        console="off", disable_code=True, disable_git=True, save_code=False, x_disable_meta=True, silent=True
    )
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    opened = wandb.init(project=project, name=run.path.name, dir=str(run.path), config=config, settings=settings)
    opened.define_metric("step")
    opened.define_metric("*", step_metric="step")
    return lambda step, metrics: opened.log({"step": step, **metrics}), opened.finish


def _trackio(run: RunFolder, config: dict[str, Any], resumed_at: int | None) -> Tracker:
    """A run of trackio, kept on this machine (TRACKIO_DIR) and shown by `trackio show`; nothing is sent anywhere."""
    trackio = require("trackio", extra="trackio", purpose="trackers: runs of trackio")
    project, resume = os.environ.get("TRACKIO_PROJECT", PROJECT), "never" if resumed_at is None else "allow"
    opened = trackio.init(project=project, name=run.path.name, config=config, resume=resume, embed=False)
    return lambda step, metrics: opened.log(metrics, step=step), opened.finish


TRACKERS = {"tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb}


class Trackers:
    """metrics.jsonl of the run folder, and the named trackers.

    Args:
        names: keys of `TRACKERS`.
        run: the run folder.
        config: the configuration as JSON values; trackers do not see settings whose name looks like a secret.
        resumed_at: the step of the checkpoint that the run resumes from.

    Raises:
        InputError: an unknown tracker, or one whose extra is not installed (with the command that installs it).
    """

    def __init__(
        self, names: Sequence[str], run: RunFolder, config: Mapping[str, Any], resumed_at: int | None = None
    ) -> None:
        unknown = set(names) - set(TRACKERS)
        if unknown:
            raise InputError(f"trackers: no tracker is called {min(unknown)!r}; known: {', '.join(TRACKERS)}")
        self._run = run
        self._opened = [TRACKERS[name](run, without_secrets(config), resumed_at) for name in names]

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Record the metrics of `step` everywhere; a None is a metric without a value at this step."""
        self._run.append_metrics(step, metrics)
        for log, _ in self._opened:
            log(step, {name: value for name, value in metrics.items() if value is not None})

    def close(self) -> None:
        """Close the trackers; the run folder stays open."""
        for _, close in self._opened:
            close()


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration less every entry, at any depth, whose name looks like a secret."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if SECRET_KEY.search(name) and not NO_SECRET_KEY.search(name):
            continue
        kept[name] = without_secrets(value) if isinstance(value, Mapping) else value
    return kept
