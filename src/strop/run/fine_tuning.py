"""Supervised fine-tuning as a run: demonstrations from a file, a run folder, checkpoints, the model at the end.

    config = sft_config.configure("Qwen/Qwen3-0.6B", Path("worked.jsonl"), ["training.optimizer.lr=1e-5"])
    train(config, Path("runs/sft"), view)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from transformers import PreTrainedTokenizerBase

from strop.base import progress
from strop.base.imports import command
from strop.base.interrupt import Stopped, on_interrupt
from strop.base.metrics import Metrics, plain, values
from strop.base.seeds import derive
from strop.base.text import counted
from strop.base.types import InputError, Problem, first_line
from strop.base.view import View
from strop.data.dataset import make_example
from strop.data.demonstrations import is_answered_before
from strop.data.loading import PROBLEMS, ProblemRecord
from strop.data.source import question_digest
from strop.data.templates import Auto, ChatTemplate
from strop.model.device import pick_device
from strop.model.endings import turn_end
from strop.model.files import byte_tokenizer
from strop.model.policy import Policy, load_policy
from strop.orchestration.processes import Processes
from strop.orchestration.rank_group import serve
from strop.orchestration.workers import ControllerConnection
from strop.run.checks import damaged, large_adapters, unread
from strop.run.finding import Finding, elsewhere, note, refuse
from strop.run.folder import RunFolder, check_free, questions_of, write_questions
from strop.run.learners import RankSettings, TrainerRanks, agreed, forwarded, meet
from strop.run.memory import of_tuning, positions
from strop.run.run import Interrupted
from strop.run.sft_config import SftConfig, stored_config
from strop.run.tracking import Trackers
from strop.run.update_memory import Device, largest_microbatch
from strop.run.watchdog import NotingView, Watch
from strop.training import checkpoint
from strop.training.embedded_base import tokenizer_of
from strop.training.ranks import ALONE, Ranks
from strop.training.settings import SftSettings
from strop.training.sft import Demonstration, FineTuning, SftPlan, planned
from strop.training.sharding import sharded_policy
from strop.training.storage import Storage
from strop.verifiers.answer import Answer
from strop_verify.verdict import shortened

LOOKED_AT = 1000  # demonstrations that show in which form answers are taught


def load_model(config: SftConfig) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The model before fine-tuning, and its tokenizer."""
    tokenizer = byte_tokenizer() if config.model.fresh is not None else None
    policy, found = load_policy(config.model, tokenizer, derive(config.seed, "model"))
    policy.to(pick_device(config.device))
    return policy, found


def as_demonstrations(
    problems: Iterable[Problem], config: SftConfig, tokenizer: PreTrainedTokenizerBase
) -> list[Demonstration]:
    """The rows of the file as token ids, each completion followed by the token that ends a turn.

    That is the chat template's own where it writes the prompts and has one, else EOS.

    Raises:
        InputError: the tokenizer has no such token, or its chat template refuses a prompt.
    """
    end = turn_end(tokenizer).token if isinstance(config.template, Auto | ChatTemplate) else None
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise InputError("the tokenizer has no EOS token, so a completion could not be told to end")
    return [_demonstration(problem, config, tokenizer, end) for problem in problems]


def _demonstration(
    problem: Problem, config: SftConfig, tokenizer: PreTrainedTokenizerBase, end: int
) -> Demonstration:  # fmt: skip
    # As training will ask for it, so that what is learned here is what is asked for there.
    instruction = Answer().instruction(problem) if _boxed(problem) else None
    example = make_example(problem, config.template, tokenizer, instruction)
    text, opened = problem.reference, example.problem.extra.get("opening")
    if opened and text.lstrip().startswith(opened):  # which the prompt has written already, with its line break
        text = text.lstrip().removeprefix(opened)
        text = text.removeprefix("\n") if tokenizer.decode(example.prompt_ids.tolist()).endswith("\n") else text
    completion = tokenizer.encode(text, add_special_tokens=False)
    return Demonstration(example.prompt_ids, np.array([*completion, end], dtype=np.int32))


def _boxed(problem: Problem) -> bool:
    return "\\boxed{" in str(problem.reference)


def as_taught(config: SftConfig) -> SftConfig:
    """The configuration of a run to begin: `Auto` asks for no box where most demonstrations have none.

    The stored configuration says so, and later prompts of the run's model follow it.

    Raises:
        InputError: the demonstrations cannot be read.
    """
    template = config.template
    if not isinstance(template, Auto) or template.instruct is not None:
        return config
    boxed = [_boxed(problem) for problem in itertools.islice(config.source.problems(), LOOKED_AT)]
    if 2 * sum(boxed) >= len(boxed):
        return config
    return config.model_copy(update={"template": template.model_copy(update={"instruct": False})})


class FineTuningData(NamedTuple):
    """The demonstrations of a run as token ids; `questions` are the digests of what it trains on.

    In `answered_before` of them the assistant speaks before the completion too, which is not trained. `findings` are on
    the rows as they are written.
    """

    tokenizer: PreTrainedTokenizerBase
    demonstrations: list[Demonstration]
    questions: frozenset[str]
    answered_before: int
    findings: tuple[Finding, ...] = ()


@progress.doing("reading the demonstrations")
def read_data(config: SftConfig) -> FineTuningData:
    """The tokenizer and the demonstrations, without the model.

    Raises:
        InputError: a row that is no demonstration, or no such model.
    """
    try:
        tokenizer = tokenizer_of(config.model)
    except (OSError, ValueError) as error:
        raise InputError(
            f"model.path {config.model.path}: its tokenizer cannot be loaded: {first_line(error)}"
        ) from error
    problems = config.source.load()
    demonstrations = as_demonstrations(problems, config, tokenizer)
    questions = frozenset(map(question_digest, problems))
    found = (*damaged(config.source.file.label, problems), *unread(config.source))
    return FineTuningData(tokenizer, demonstrations, questions, sum(map(is_answered_before, problems)), found)


def shuffled(config: SftConfig) -> SftSettings:
    """The settings of the training, with a shuffle seed derived from the run's seed too."""
    seed = derive(config.seed, "shuffle", config.training.seed) % 2**32
    return config.training.model_copy(update={"seed": seed})


class FineTuner:
    """The policy of a run and its tuning, in this process or of one of several ranks that make every call together."""

    def __init__(self, policy: Policy, data: FineTuningData, config: SftConfig, storage: Storage, ranks: Ranks) -> None:
        self._policy, self._tokenizer, self._storage = policy, data.tokenizer, storage
        self._tuning = FineTuning(policy, data.demonstrations, shuffled(config), ranks)

    @classmethod
    def single(cls, config: SftConfig, data: FineTuningData) -> FineTuner:
        """The tuner of a run that trains in this process.

        Raises:
            InputError: there is no such model, or nothing to learn from.
        """
        return cls(load_model(config)[0], data, config, Storage(), ALONE)

    def total(self) -> int:
        """How many updates there will be."""
        return self._tuning.total

    def update(self) -> Metrics:
        """The metrics of the next update."""
        return plain(self._tuning.update())

    def save(self, root: Path) -> None:
        """Write the checkpoint of the last update, the only one to stay; returns when it is there.

        Raises:
            StropError: it cannot be written.
        """
        tensors, state = self._tuning.trainer.state_dict()
        keep = checkpoint.Retention(last=1, best=0)
        entry = checkpoint.CheckpointEntry(root, self._tuning.trainer.updates, {"trainer": state}, retention=keep)
        self._storage.begin(entry, {"policy": self._policy.saved_weights(), "optimizer": tensors}, {})
        self._storage.settle(wait=True)

    def load(self, root: Path, step: int) -> None:
        """Take back the checkpoint of an update, of whatever number of ranks."""
        found = checkpoint.load(root, step, self._storage.layout)
        self._policy.load_weights(found.tensors["policy"])
        self._tuning.trainer.load_state_dict(found.tensors["optimizer"], found.state["trainer"])

    def export(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder."""
        self._storage.export_policy(self._policy, self._tokenizer, folder)

    def close(self) -> None:
        """Nothing to do: there is no other process."""


SILENCE_SECONDS, STALL_SECONDS = 60.0, 1800.0  # after which a rank that gives no sign, or makes nothing, counts as dead


class TunerRanks(TrainerRanks):
    """`FineTuner` over `config.trainers` ranks of this host, which each call it with their shards."""

    def __init__(self, config: SftConfig, folder: Path) -> None:
        """Launch the ranks of the run in `folder`."""
        data, entry = config.model_dump(mode="json"), "strop.run.fine_tuning:main"
        super().__init__(Processes(), entry, data, config.trainers, (SILENCE_SECONDS, STALL_SECONDS))
        self.start(folder)

    total = forwarded(FineTuner.total)
    update = forwarded(FineTuner.update)
    save = forwarded(FineTuner.save)
    load = forwarded(FineTuner.load)
    export = forwarded(FineTuner.export)


Tuner = FineTuner | TunerRanks


def main(connection: ControllerConnection, settings: RankSettings) -> None:
    """Run a rank: meet the others, then serve the controller's calls."""
    assert settings.rendezvous is not None
    tuner = join(SftConfig.model_validate(settings.config), settings.rank, settings.rendezvous)
    same = (tuner.total, tuner.update, tuner.save, tuner.load, tuner.export)
    serve(connection, settings.rank == 0, {method.__name__: agreed(method) for method in same})


def join(config: SftConfig, rank: int, rendezvous: str) -> FineTuner:
    """The tuner of a rank, once all have met."""
    data = read_data(config)
    place, ranks, storage = meet(pick_device(config.device), rank, config.trainers, rendezvous, STALL_SECONDS)
    policy = sharded_policy(config.model, derive(config.seed, "model"), place)
    return FineTuner(policy, data, config, storage, ranks)


FEW_UPDATES = 20  # at the learning rates of fine-tuning they leave a model as it was


def train(config: SftConfig, out: Path, view: View) -> Path:
    """Fine-tune in a new run folder; the folder of the model.

    Raises:
        StropError: see the parts; Ctrl-C raises `Interrupted` after a clean checkpoint.
    """
    check_free(out)
    config = as_taught(config)
    data = read_data(config)
    tuner = FineTuner.single(config, data) if config.trainers == 1 else None  # before any folder is made
    folder = RunFolder.create(out, config.model_dump(mode="json"))
    before = questions_of(config.model.path) or frozenset()
    try:
        folder.write_json(PROBLEMS, ProblemRecord(data.questions, held_out=(), before=before).to_json())
        return _run(config, data, folder, view, None, tuner)
    finally:
        folder.close()


def resume(out: Path, view: View) -> Path:
    """Continue from the newest checkpoint, or from the start if there is none yet."""
    folder = RunFolder.resume(out)
    try:
        config = stored_config(folder)
        return _run(config, read_data(config), folder, view, checkpoint.latest(folder.checkpoints), None)
    finally:
        folder.close()


def preview(config: SftConfig, view: View) -> list[Finding]:
    """Show the demonstrations and the number of updates, and run the checks, without loading the model.

    Returns:
        Findings: demonstrations that are left out, few updates, memory that this machine does not have.

    Raises:
        InputError: what `train` refuses before it loads the model.
    """
    config = as_taught(config)
    data = read_data(config)
    plan = planned(data.demonstrations, shuffled(config))
    for line in _described(config, data):
        view.note(line)
    batch, epoch = config.training.tokens_per_batch, sum(map(len, plan.fitting))
    view.note(f"{counted(len(plan.batches), 'updates')} of up to {batch:,} tokens; an epoch has {epoch:,}")
    return _findings(config, data, plan, here=False)


def _described(config: SftConfig, data: FineTuningData) -> list[str]:
    """Lines with the number of demonstrations and the first one as the model reads it."""
    first, decode = data.demonstrations[0], data.tokenizer.decode
    return [
        f"{counted(len(data.demonstrations), 'demonstrations')} of {config.demonstrations}",
        f"first prompt, {len(first.prompt_ids)} tokens: {decode(first.prompt_ids.tolist())!r}",
        f"its completion: {shortened(repr(decode(first.completion_ids.tolist())), 100)}",
    ]


def _findings(config: SftConfig, data: FineTuningData, plan: SftPlan, here: bool = True) -> list[Finding]:
    """All findings on a fine-tuning run; if it does not start `here`, too little memory is a warning."""
    longest, budget = max(map(len, plan.fitting)), config.training.tokens_per_microbatch
    lengths = largest_microbatch(longest, max(map(len, plan.batches)), budget)
    device: Device = "cuda" if pick_device(config.device).type == "cuda" else "cpu"
    memory = of_tuning(config.model, data.tokenizer, lengths, device, config.trainers)
    found = [memory if here else elsewhere(memory), *large_adapters(config.model), *data.findings]
    if data.answered_before:
        said = (
            f"in {data.answered_before} of them the assistant speaks several times: its last turn is trained, those "
            "before it are part of the prompt"
        )
        found.append(Finding("several-turns", "note", "demonstrations", said, "rows that end with them train them too"))
    if plan.overflow is not None:
        found.append(Finding("demonstrations-left-out", "note", "demonstrations", plan.overflow))
    most = positions(config.model)
    if most is not None and longest > most:
        said = f"the longest has {longest:,} tokens, and the model {most:,} positions"
        found.append(Finding("too-long", "error", "demonstrations", said, f"set training.max_length={most}"))
    training = config.training
    if training.epochs is not None and len(plan.batches) < FEW_UPDATES:
        said = (
            f"{counted(training.epochs, 'epochs')} of so few demonstrations are only "
            f"{counted(len(plan.batches), 'updates')} of up to {training.tokens_per_batch:,} tokens, which teach little"
        )
        way_out = "lower training.tokens_per_batch, or raise training.epochs"
        found.append(Finding("few-updates", "note", "demonstrations", said, way_out))
    return found


def _run(
    config: SftConfig, data: FineTuningData, folder: RunFolder, view: View, step: int | None, tuner: Tuner | None
) -> Path:
    """Fine-tune from the checkpoint of `step`, in this process or in ranks; the folder of the model."""
    plan = planned(data.demonstrations, shuffled(config))
    for line in _described(config, data):
        view.note(line)
    found = _findings(config, data, plan)
    refuse(found)
    note(found, view)
    with Watch(folder.path, None, view) as watch:
        if tuner is None:
            tuner = FineTuner.single(config, data) if config.trainers == 1 else TunerRanks(config, folder.path)
        try:
            return _FineTuningRun(config, tuner, folder, watch.view).go(step)
        finally:
            tuner.close()


class _FineTuningRun:
    """A fine-tuning run in the process that controls it."""

    def __init__(self, config: SftConfig, tuner: Tuner, folder: RunFolder, view: NotingView) -> None:
        self.config, self.tuner, self.folder, self.view = config, tuner, folder, view
        self.checkpoints = folder.checkpoints.resolve()  # a rank may run in another folder
        self.step = 0
        self.total = 0
        self.interrupted = False

    def go(self, step: int | None) -> Path:
        """Train what is left after the checkpoint of `step`; the folder of the model."""
        self.total = self.tuner.total()
        self.folder.truncate(0 if step is None else step)
        if step is not None:
            self.tuner.load(self.checkpoints, step)
            self.step = step
            self.view.passing(f"going on after update {step} of {self.total}")
        with on_interrupt(self._ask_to_stop):
            try:
                self._train(step)
            except Stopped:  # within an update, which is given up
                self._end_early()
        self.tuner.export(self.folder.model.resolve())
        write_questions(self.folder.model, self.folder)
        return self.folder.model

    def _train(self, resumed_at: int | None) -> None:
        trackers = Trackers(
            self.config.trackers, self.folder, self.config.model_dump(mode="json"), resumed_at
        )  # fmt: skip
        self.view.stage("sft", self.total)
        began = time.perf_counter()
        try:
            while self.step < self.total:
                metrics = self.tuner.update()
                self.step += 1
                now = time.perf_counter()
                row = values(metrics) | {"seconds/step": now - began}
                row["tokens_per_second"] = (row["tokens"] or 0.0) / (now - began)
                began = now
                trackers.log(self.step, row)
                self.view.advance(self.step, row)
                if self.step % self.config.checkpoint_every == 0 or self.step == self.total:
                    self.tuner.save(self.checkpoints)
                if self.interrupted and self.step < self.total:
                    self._end_early()
        finally:
            trackers.close()

    def _end_early(self) -> NoReturn:
        """Save the last finished update and end the run."""
        if self.step and self.step != checkpoint.latest(self.checkpoints):
            self.tuner.save(self.checkpoints)
        raise Interrupted(
            f"stopped after update {self.step} of {self.total}; go on with: {command('sft --resume', self.folder.path)}"
        )

    def _ask_to_stop(self) -> None:
        self.interrupted = True
