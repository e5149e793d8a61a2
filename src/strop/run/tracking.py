"""Trackers: where the metrics of a run go, in addition to the terminal.

metrics.jsonl is always written; TensorBoard, trackio and Weights & Biases are extras, imported only when asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from strop.base.imports import require
from strop.base.types import InputError
from strop.run.folder import RunFolder

TRACKERS = ("tensorboard", "trackio", "wandb")
SECRET_KEY = re.compile(r"token|secret|password|passwd|api_?key|credential", re.IGNORECASE)
# Counts that happen to contain a telling word, such as `max_new_tokens` or `tokens_per_microbatch`, are no secrets.
NO_SECRET_KEY = re.compile(r"tokens|tokenizer|_token_ids?$", re.IGNORECASE)


class Tracker(Protocol):
    """Receives the flat metrics of a step; names are grouped by `/`."""

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Record the metrics of `step`; a None is a metric without a value at this step."""
        ...

    def close(self) -> None:
        """Flush and close; may be called twice."""
        ...


class TensorBoardTracker:
    """Event files under `tensorboard/` of the run folder: `tensorboard --logdir RUN/tensorboard`."""

    def __init__(self, run: RunFolder, purge_step: int | None = None) -> None:
        """`purge_step`: on resume, the first step written anew; what earlier files hold from there on is hidden."""
        require("tensorboard", extra="tensorboard", purpose="trackers: TensorBoard's event files")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=purge_step)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        for name, value in metrics.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A Weights & Biases run; the key is read by wandb itself and never passes through strop.

    Project, entity and mode follow wandb's own variables (WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline). Code, git
    state and console output are not sent; settings whose name looks like a secret are left out of the configuration.
    The x-axis is a separate metric `step`, because wandb's own step refuses late evaluations of earlier steps.
    """

    def __init__(self, run: RunFolder, config: Mapping[str, Any], project: str = "strop") -> None:
        wandb = require("wandb", extra="wandb", purpose="trackers: runs of Weights & Biases")
        settings = wandb.Settings(
            console="off", disable_code=True, disable_git=True, save_code=False, x_disable_meta=True, silent=True
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", project),
            name=run.path.name,
            dir=str(run.path),
            config=without_secrets(config),
            settings=settings,
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._run.log({"step": step, **{name: value for name, value in metrics.items() if value is not None}})

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
    """A run of trackio, kept on this machine (TRACKIO_DIR) and shown by `trackio show`; nothing is sent anywhere."""

    def __init__(self, run: RunFolder, config: Mapping[str, Any], resumes: bool, project: str = "strop") -> None:
        trackio = require("trackio", extra="trackio", purpose="trackers: runs of trackio")
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", project),
            name=run.path.name,
            config=without_secrets(config),
            resume="allow" if resumes else "never",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._run.log({name: value for name, value in metrics.items() if value is not None}, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackers:
    """metrics.jsonl of the run folder, and any other trackers."""

    def __init__(self, run: RunFolder, others: Sequence[Tracker]) -> None:
        self._run = run
        self._others = tuple(others)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Record the metrics of `step` everywhere."""
        self._run.append_metrics(step, metrics)
        for tracker in self._others:
            tracker.log(step, metrics)

    def close(self) -> None:
        """Close the trackers; the run folder stays open."""
        for tracker in self._others:
            tracker.close()


def open_trackers(
    names: Sequence[str], run: RunFolder, config: Mapping[str, Any], resumed_at: int | None = None
) -> Trackers:
    """metrics.jsonl and the named trackers.

    `config` is the configuration as JSON values; `resumed_at` is the step of the checkpoint that the run goes on from.

    Raises:
        InputError: an unknown tracker, or one whose extra is not installed (with the command that installs it).
    """
    opened: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            opened.append(TensorBoardTracker(run, None if resumed_at is None else resumed_at + 1))
        elif name == "trackio":
            opened.append(TrackioTracker(run, config, resumed_at is not None))
        elif name == "wandb":
            opened.append(WandbTracker(run, config))
        else:
            raise InputError(f"trackers: no tracker is called {name!r}; known: {', '.join(TRACKERS)}")
    return Trackers(run, opened)


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration less every entry, at any depth, whose name looks like a secret."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if SECRET_KEY.search(name) and not NO_SECRET_KEY.search(name):
            continue
        kept[name] = without_secrets(value) if isinstance(value, Mapping) else value
    return kept
