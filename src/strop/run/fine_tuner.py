"""The fine-tuning of a run: its demonstrations, its model, updates, checkpoints, the model as a folder.

tuner = FineTuner.single(config, read_data(config))
while …: tuner.update()
tuner.save(checkpoints)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from strop.base.metrics import Metrics, plain
from strop.base.seeds import derive
from strop.base.types import InputError, Problem, first_line
from strop.data.dataset import make_example
from strop.data.demonstrations import is_answered_before
from strop.data.source import question_digest
from strop.data.templates import Auto
from strop.model.device import pick_device
from strop.model.files import byte_tokenizer
from strop.model.policy import Policy, load_policy
from strop.run.sft_config import SftConfig
from strop.training import checkpoint
from strop.training.embedded_base import tokenizer_of
from strop.training.ranks import ALONE, Ranks
from strop.training.settings import SftSettings
from strop.training.sft import Demonstration, FineTuning
from strop.training.storage import Storage
from strop.verifiers.answer import Answer

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
    """The rows of the file as token ids, each completion followed by EOS.

    Raises:
        InputError: the tokenizer has no EOS token, or its chat template refuses a prompt.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise InputError("the tokenizer has no EOS token, so a completion could not be told to end")
    return [_demonstration(problem, config, tokenizer, eos) for problem in problems]


def _demonstration(
    problem: Problem, config: SftConfig, tokenizer: PreTrainedTokenizerBase, eos: int
) -> Demonstration:  # fmt: skip
    # As training will ask for it, so that what is learned here is what is asked for there.
    instruction = Answer().instruction(problem) if _boxed(problem) else None
    example = make_example(problem, config.template, tokenizer, instruction)
    text, opened = problem.reference, example.problem.extra.get("opening")
    if opened and text.lstrip().startswith(opened):  # which the prompt has written already, with its line break
        text = text.lstrip().removeprefix(opened)
        text = text.removeprefix("\n") if tokenizer.decode(example.prompt_ids.tolist()).endswith("\n") else text
    completion = tokenizer.encode(text, add_special_tokens=False)
    return Demonstration(example.prompt_ids, np.array([*completion, eos], dtype=np.int32))


def _boxed(problem: Problem) -> bool:
    return "\\boxed{" in str(problem.reference)


def as_taught(config: SftConfig) -> SftConfig:
    """The configuration of a run to begin: `Auto` asks for no box where most demonstrations have none.

    It is stored so, and whoever asks the run's model later asks as it was taught.

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

    In `answered_before` of them the assistant speaks before the completion too, which is not trained.
    """

    tokenizer: PreTrainedTokenizerBase
    demonstrations: list[Demonstration]
    questions: frozenset[str]
    answered_before: int


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
    return FineTuningData(tokenizer, demonstrations, questions, sum(map(is_answered_before, problems)))


def shuffled(config: SftConfig) -> SftSettings:
    """The settings of the training, whose shuffle follows from the run's seed too."""
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
        """There is no process to end."""


class Tuner(Protocol):
    """What the run sees of its `FineTuner`, or of several."""

    def total(self) -> int: ...
    def update(self) -> Metrics: ...
    def save(self, root: Path) -> None: ...
    def load(self, root: Path, step: int) -> None: ...
    def export(self, folder: Path) -> None: ...
    def close(self) -> None: ...
