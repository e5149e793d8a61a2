"""Supervised fine-tuning as a run: demonstrations from a file, a run folder, checkpoints, the model at the end.

    config = sft_config.configure("Qwen/Qwen3-0.6B", Path("worked.jsonl"), ["training.optimizer.lr=1e-5"])
    train(config, Path("runs/sft"), view)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from transformers import PreTrainedTokenizerBase

from strop.base import progress
from strop.base.imports import command
from strop.base.interrupt import Stopped, on_interrupt
from strop.base.metrics import values
from strop.base.seeds import derive
from strop.base.types import InputError, Problem
from strop.base.view import View
from strop.data.dataset import make_example
from strop.data.record import PROBLEMS, ProblemRecord, question_digest
from strop.model.byte_tokenizer import byte_tokenizer
from strop.model.device import pick_device
from strop.model.files import export
from strop.model.policy import Policy, load_policy
from strop.run.folder import RunFolder, check_free
from strop.run.run import Interrupted
from strop.run.sft_config import SftConfig, is_fine_tuning, stored_config
from strop.run.tracking import open_trackers
from strop.run.watchdog import Watch
from strop.training import checkpoint
from strop.training.sft import Demonstration, FineTuning

__all__ = ["assemble", "is_fine_tuning", "load_model", "resume", "stored_config", "train"]


def train(config: SftConfig, out: Path, view: View) -> Path:
    """Fine-tune in a new run folder; the folder of the model.

    Raises:
        StropError: see the parts; Ctrl-C raises `Interrupted` after a clean checkpoint.
    """
    check_free(out)
    parts = assemble(config, view)
    folder = RunFolder.create(out, config.model_dump(mode="json"))
    try:
        folder.write_json(PROBLEMS, ProblemRecord(parts.questions, held_out=()).to_json())
        with Watch(folder.path, None, view) as watch:
            return _FineTuningRun(config, parts, folder, watch.view).go(None)
    finally:
        folder.close()


def resume(out: Path, view: View) -> Path:
    """Go on from the newest checkpoint, or from the start where there is none yet."""
    folder = RunFolder.resume(out)
    try:
        config = stored_config(folder)
        newest = checkpoint.latest(folder.checkpoints)
        parts = assemble(config, view)
        with Watch(folder.path, None, view) as watch:
            return _FineTuningRun(config, parts, folder, watch.view).go(newest)
    finally:
        folder.close()


def load_model(config: SftConfig) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The model before fine-tuning, and its tokenizer."""
    tokenizer = byte_tokenizer() if config.model.fresh is not None else None
    policy, found = load_policy(config.model, tokenizer, derive(config.seed, "model"))
    policy.to(pick_device(config.device))
    return policy, found


def as_demonstrations(
    problems: Iterable[Problem], config: SftConfig, tokenizer: PreTrainedTokenizerBase
) -> list[Demonstration]:
    """The rows of the file as token ids, each completion followed by EOS.

    Raises:
        InputError: a completion is no text, or the tokenizer has no EOS token.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise InputError("the tokenizer has no EOS token, so a completion could not be told to end")
    return [_demonstration(problem, config, tokenizer, eos) for problem in problems]


def _demonstration(
    problem: Problem, config: SftConfig, tokenizer: PreTrainedTokenizerBase, eos: int
) -> Demonstration:  # fmt: skip
    if not isinstance(problem.reference, str):
        raise InputError(f"{config.demonstrations}: {problem.id}: {config.columns.answer} must be text")
    completion = tokenizer.encode(problem.reference, add_special_tokens=False)
    prompt_ids = make_example(problem, config.template, tokenizer).prompt_ids
    return Demonstration(prompt_ids, np.array([*completion, eos], dtype=np.int32))


class FineTuningParts(NamedTuple):
    """The parts of a fine-tuning run; `questions` are the digests of what it trains on."""

    policy: Policy
    tokenizer: PreTrainedTokenizerBase
    tuning: FineTuning
    questions: frozenset[str]


def assemble(config: SftConfig, view: View) -> FineTuningParts:
    """Load the model and the demonstrations, before any folder is made."""
    policy, tokenizer = load_model(config)
    problems = config.source.load()
    demonstrations = as_demonstrations(problems, config, tokenizer)
    shuffle = derive(config.seed, "shuffle", config.training.seed) % 2**32
    tuning = FineTuning(policy, demonstrations, config.training.model_copy(update={"seed": shuffle}))
    view.note(f"{len(demonstrations)} demonstrations of {config.demonstrations}")
    if tuning.overflow is not None:
        view.note(tuning.overflow)
    return FineTuningParts(policy, tokenizer, tuning, frozenset(map(question_digest, problems)))


class _FineTuningRun:
    """One process's share of a run."""

    def __init__(self, config: SftConfig, parts: FineTuningParts, folder: RunFolder, view: View) -> None:
        self.config, self.folder, self.view = config, folder, view
        self.policy, self.tokenizer, self.tuning, _ = parts
        self.interrupted = False

    def go(self, step: int | None) -> Path:
        """Train what is left after the checkpoint of `step`; the folder of the model."""
        self.folder.truncate(0 if step is None else step)
        if step is not None:
            found = checkpoint.load(self.folder.checkpoints, step)
            self.policy.load_weights(found.tensors["policy"])
            self.tuning.trainer.load_state_dict(found.tensors["optimizer"], found.state["trainer"])
            self.view.note(f"going on after update {step} of {self.tuning.total}")
        with on_interrupt(self._ask_to_stop), progress.CURRENT.reporting_to(self.view.aside):
            try:
                self._train(step)
            except Stopped:  # within an update, which is given up
                self._end_early(self.tuning.trainer.updates)
        export(self.policy.model, self.tokenizer, self.folder.model)
        return self.folder.model

    def _train(self, resumed_at: int | None) -> None:
        trackers = open_trackers(
            self.config.trackers, self.folder, self.config.model_dump(mode="json"), resumed_at
        )  # fmt: skip
        self.view.stage("sft", self.tuning.total)
        began = time.perf_counter()
        try:
            for event in self.tuning.events():
                now = time.perf_counter()
                row = values(event.metrics) | {"seconds/step": now - began}
                row["tokens_per_second"] = (row["tokens"] or 0.0) / (now - began)
                began = now
                trackers.log(event.step, row)
                self.view.advance(event.step, row)
                if event.step % self.config.checkpoint_every == 0 or event.step == event.total:
                    self._save(event.step)
                if self.interrupted and event.step < event.total:
                    self._end_early(event.step)
        finally:
            trackers.close()

    def _end_early(self, step: int) -> NoReturn:
        """Save the last finished update and end the run."""
        if step and step != checkpoint.latest(self.folder.checkpoints):
            self._save(step)
        raise Interrupted(
            f"stopped after update {step} of {self.tuning.total}; go on with: "
            f"{command('sft --resume', self.folder.path)}"
        )

    def _save(self, step: int) -> None:
        tensors, state = self.tuning.trainer.state_dict()
        groups = {"policy": self.policy.saved_weights(), "optimizer": tensors}
        keep = checkpoint.Retention(last=1, best=0)
        checkpoint.save(self.folder.checkpoints, step, groups, {"trainer": state}, retention=keep)

    def _ask_to_stop(self) -> None:
        self.interrupted = True
