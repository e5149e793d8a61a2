"""From a configuration to the parts of a run: each part receives its own section, never the whole."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from strop.config import RunConfig, stage_configs
from strop.console import View
from strop.data import Data, load_data
from strop.data.chain_sum import part_of
from strop.embedded import EXPERTS, NAME, embedded_base, named_base
from strop.engines.base import Engine
from strop.engines.build import build_engine, embedded_settings
from strop.engines.torch_engine import TorchEngine
from strop.learner import Learner, objective_of
from strop.model_settings import ModelSettings
from strop.orchestration.in_process import InProcess
from strop.policy import Policy, load_policy
from strop.seeds import derive
from strop.trainer.critic import HEAD_FILE, Critic
from strop.trainer.step import Trainer
from strop.types import InputError
from strop.verifiers.judges import judge_for
from strop.verifiers.pool import Judge, first_refusal


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    policy: Policy
    tokenizer: PreTrainedTokenizerBase
    data: Data
    executor: InProcess
    judge: Judge
    learner: Learner
    evaluator: Engine
    evaluation_judge: Judge


def assemble(config: RunConfig, view: View) -> Parts:
    """Load the model and the data, build engine, verifier and trainer.

    Raises:
        InputError: a model, a data set or a device that is not there, or cannot be used.
    """
    torch.manual_seed(derive(config.seed, "torch"))
    policy, tokenizer = load_policy(located(config.model, config.seed, view), seed=derive(config.seed, "model"))
    if config.model.fresh is not None:
        view.note("model: fresh, its weights are random; name one that can do something with --set model.path=…")
    policy.to(pick_device(config.device))
    data = load_data(config.data, tokenizer)
    for line in data.report():
        view.note(line)
    refused = first_refusal(config.verifier, data.train.problems)
    if refused is not None:
        problem, reason = refused
        raise InputError(f"{data.train.name}: problem {problem.id!r}: {reason}; choose another verifier")
    _warn_of_seen_questions(config, data, view)
    engine = build_engine(config.engine, config.model, tokenizer, policy, sampling=config.sampling)
    _refuse_too_long(config, data, engine.capabilities.max_tokens)
    learner = _learner(config, policy, view)
    judge = judge_for(config.verifier)
    executor = InProcess(engine, policy)
    if config.orchestration.max_lag == 0:
        return Parts(policy, tokenizer, data, executor, judge, learner, engine, judge)
    # Completions in flight must not meet those of an evaluation; the embedded engine needs no weights of its own.
    evaluator = TorchEngine(policy, tokenizer, embedded_settings(config.engine))
    return Parts(policy, tokenizer, data, executor, judge, learner, evaluator, judge_for(config.verifier))


def _learner(config: RunConfig, policy: Policy, view: View) -> Learner:
    """The policy's trainer, and the critic and reference policy where the algorithm wants them."""
    batch, temperature = config.batch, config.sampling.temperature
    updates = config.steps * batch.updates_per_step * batch.passes_per_batch
    trainer = Trainer(policy, objective_of(config.algorithm), config.optim, updates, temperature)
    critic = None
    if config.critic is not None:
        settings = config.critic
        module = _critic(config, settings.path, policy, view).to(policy.device)
        total = config.steps * settings.updates_per_step * settings.passes_per_batch
        critic = Trainer(module, settings.loss, settings.optim, total, temperature)
    reference = None
    if any(stage.algorithm.needs_reference for stage in stage_configs(config)):
        reference = copy.deepcopy(policy).requires_grad_(False)
    return Learner(config, trainer, critic, reference)


def _critic(config: RunConfig, path: str | None, policy: Policy, view: View) -> Critic:
    """The policy with a value head; or an exported critic, or another model with a value head, from `path`.

    Raises:
        InputError: there is no such model, or it knows other tokens than the policy.
    """
    seed = derive(config.seed, "critic")
    if path is None:
        return Critic.from_policy(policy, seed)
    settings = config.model.model_copy(update={"path": path, "fresh": None, "revision": None})
    try:
        settings = located(settings, config.seed, view)
        if (Path(path) / HEAD_FILE).is_file():
            critic = Critic.load(Path(path), settings)
        else:
            critic = Critic.from_policy(load_policy(settings)[0], seed)
    except InputError as error:
        raise InputError(f"critic.path={path}: {error}") from error
    known = critic.model.get_input_embeddings().weight.shape[0]
    if known < policy.vocabulary:
        raise InputError(
            f"critic.path={path}: it knows {known} tokens and the policy {policy.vocabulary}; name a model with the "
            "policy's tokenizer"
        )
    return critic


def _warn_of_seen_questions(config: RunConfig, data: Data, view: View) -> None:
    """The embedded base was fine-tuned on the training part of chain sums; what is held out should be of the other."""
    if config.model.path not in (NAME, EXPERTS) or data.held_out is None:
        return
    seen = [p for p in data.held_out.problems if p.source == "chain_sum" and part_of(p.question) == "train"]
    if seen:
        view.note(
            f"{len(seen)} of {len(data.held_out)} held-out sums are of the part that the embedded base may have been "
            "fine-tuned on; for a clean test set data.held_out.source.piece=ChainSum and "
            "data.held_out.source.part=held_out"
        )


def _refuse_too_long(config: RunConfig, data: Data, room: int) -> None:
    longest = max(part.longest_prompt for part in (data.train, data.held_out) if part is not None)
    budget = max(stage.sampling.max_new_tokens for stage in stage_configs(config))
    if longest + budget > room:
        raise InputError(
            f"the longest prompt ({longest} tokens) and sampling.max_new_tokens={budget} exceed the {room} tokens of "
            f"the model; lower sampling.max_new_tokens to {max(room - longest, 1)}, or data.max_prompt_tokens"
        )


def located(model: ModelSettings, seed: int, view: View) -> ModelSettings:
    """`model` with the reserved path `embedded` or `embedded-moe` replaced by the folder of that base of this seed."""
    base = None if model.path is None else named_base(model.path, seed)
    return model if base is None else model.model_copy(update={"path": str(embedded_base(base, view))})


def pick_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """`auto` is the GPU where there is one.

    Raises:
        InputError: CUDA was asked for and is not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda: this torch sees no GPU; set device=cpu, or see `strop doctor`")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
