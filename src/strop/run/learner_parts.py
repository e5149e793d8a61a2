"""What a learner trains: the policy, and the critic and the reference policy where the algorithm wants them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strop.base.seeds import derive
from strop.base.types import InputError
from strop.base.view import View
from strop.config.schema import RunConfig, stage_configs
from strop.model.critic import HEAD_FILE, Critic
from strop.model.policy import Policy, WithoutAdapters, load_policy
from strop.training.embedded_base import located
from strop.training.learner import Learner, objective_of
from strop.training.ranks import ALONE, Ranks
from strop.training.step import Trainer
from strop.training.storage import Storage


@dataclass(frozen=True)
class Modules:
    """The modules that a learner trains, and its reference policy: whole, or all sharded over the same ranks."""

    policy: Policy
    critic: Critic | None = None
    reference: Policy | WithoutAdapters | None = None


def make_learner(
    config: RunConfig, modules: Modules, ranks: Ranks = ALONE, storage: Storage | None = None
) -> Learner:
    """The trainers of the policy and, where there is one, of the critic."""
    batch, temperature = config.batch, config.sampling.temperature
    updates = config.steps * batch.updates_per_step * batch.passes_per_batch
    trainer = Trainer(modules.policy, objective_of(config.algorithm), config.optim, updates, temperature, ranks)
    critic = None
    if modules.critic is not None:
        settings = config.critic
        assert settings is not None
        total = config.steps * settings.updates_per_step * settings.passes_per_batch
        critic = Trainer(modules.critic, settings.loss, settings.optim, total, temperature, ranks)
    return Learner(config.learner, trainer, critic, modules.reference, storage)


def wants_reference(config: RunConfig) -> bool:
    """Whether some stage holds on to the starting policy."""
    return any(stage.algorithm.needs_reference for stage in stage_configs(config))


def modules_of(config: RunConfig, policy: Policy, view: View) -> Modules:
    """The policy, and the critic and reference policy where the algorithm wants them, in this process."""
    critic = None
    if config.critic is not None:
        critic = _critic(config, config.critic.path, policy, view).to(policy.device)
    reference: Policy | WithoutAdapters | None = None
    if wants_reference(config):
        moves = any(stage.algorithm.reference.reset_every is not None for stage in stage_configs(config))
        reference = policy.frozen_copy() if policy.adapters is None or moves else WithoutAdapters(policy)
    return Modules(policy, critic, reference)


def _critic(config: RunConfig, path: str | None, policy: Policy, view: View) -> Critic:
    """The policy with a value head; or an exported critic, or another model with a value head, from `path`.

    Raises:
        InputError: there is no such model, or it knows other tokens than the policy.
    """
    seed = derive(config.seed, "critic")
    if path is None:
        return Critic.from_policy(policy, seed)
    settings = config.model.model_copy(update={"path": path, "fresh": None, "revision": None, "lora": None})
    try:
        settings = located(settings, config.seed, view)
        if (Path(path) / HEAD_FILE).is_file():
            critic = Critic.load(Path(path), settings)
        else:
            critic = Critic.from_policy(load_policy(settings)[0], seed)
    except InputError as error:
        raise InputError(f"critic.path={path}: {error}") from error
    check_tokens(critic, policy, path)
    return critic


def check_tokens(critic: Critic, policy: Policy, path: str) -> None:
    """Refuse a critic from `path` that does not know the policy's tokens.

    Raises:
        InputError: naming both numbers.
    """
    known = critic.model.get_input_embeddings().weight.shape[0]
    if known < policy.vocabulary:
        raise InputError(
            f"critic.path={path}: it knows {known} tokens and the policy {policy.vocabulary}; name a model with the "
            "policy's tokenizer"
        )
