"""verl's losses and estimators for bench/parity.py; runs in an environment that has verl, imports nothing of ours.

See answers.py for what it reads and writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from answers import Found, Given, answer
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig


def with_gradient(loss: torch.Tensor, of: torch.Tensor) -> Found:
    """A scalar loss and its gradient."""
    return {"value": loss.detach(), "gradient": torch.autograd.grad(loss, of)[0]}


def policy(given: Given, name: str, mode: str, actor: dict[str, Any], covariance: dict[str, Any]) -> Found:
    """A registered policy loss."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, policy_loss=PolicyLossConfig(**covariance), **actor
    )
    logprob = given["logprob"].requires_grad_()
    advantages = given["advantage"][:, None] * given["mask"]
    loss, _ = core_algos.get_policy_loss_fn(name)(
        given["anchor"], logprob, advantages, given["mask"], loss_agg_mode=mode, config=config
    )
    return with_gradient(loss, logprob)


def kl(given: Given, kind: str, mode: str) -> Found:
    """A KL penalty in the loss."""
    logprob = given["logprob"].requires_grad_()
    terms = core_algos.kl_penalty(logprob, given["reference"], kind)
    return with_gradient(core_algos.agg_loss(terms, given["mask"], mode), logprob)


def kl_in_reward(given: Given, beta: float) -> Found:
    """The rewards of tokens, minus the KL."""
    zero = torch.zeros_like(given["anchor"])
    rewards = core_algos.compute_rewards(zero, given["anchor"], given["reference"], beta)
    return {"reward": rewards * given["mask"]}


def value(given: Given, clip: float) -> Found:
    """The critic's loss."""
    predicted = given["predicted"].requires_grad_()
    loss, _ = core_algos.compute_value_loss(predicted, given["target"], given["value"], given["mask"], clip)
    return with_gradient(loss, predicted)


def entropy(given: Given) -> Found:
    """The mean entropy of logits."""
    logits = given["logits"].requires_grad_()
    return with_gradient(core_algos.compute_entropy_loss(logits, given["mask"]), logits)


def advantage(given: Given, name: str, groups: str, returns: bool, more: dict[str, Any]) -> Found:
    """A registered estimator, on a reward at the last token; `gdpo` also reads its parts."""
    last = given["mask"].sum(-1).long() - 1
    rewards = torch.zeros_like(given["mask"])
    rewards[torch.arange(len(last)), last] = given["reward"]
    estimator = core_algos.get_adv_estimator_fn(name)
    groups_of = {"index": np.array([f"group {i}" for i in given[groups].long().tolist()], dtype=object)}
    named: dict[str, Any] = {"values": given["value"]} if name == "gae" else groups_of
    if name == "gdpo":
        parts, prompt = ("reward", "shaped"), torch.ones(len(last), 1, dtype=torch.long)
        masks = {"prompts": prompt, "attention_mask": torch.cat([prompt, given["mask"].long()], 1)}
        named |= {"config": {"gdpo_reward_keys": parts}, "non_tensor_batch": given, "batch": masks}
    advantages, targets = estimator(token_level_rewards=rewards, response_mask=given["mask"], **named, **more)
    return {"advantage": (targets if returns else advantages) * given["mask"]}


def factor(given: Given, level: str, threshold: float | str) -> Found:
    """The weights that correct for the generator's mismatch."""
    gap = given["anchor"] - given["generator"]
    weights, _ = rollout_corr_helper.compute_rollout_correction_weights(gap, given["mask"], level, threshold)
    return {"factor": weights * given["mask"]}


def kept(given: Given, rule: str, threshold: str) -> Found:
    """The tokens that rejection keeps."""
    gap = given["anchor"] - given["generator"]
    mask, _ = rollout_corr_helper.compute_rollout_rejection_mask(gap, given["mask"], rule, threshold)
    return {"factor": mask}


CALLS = {
    "policy": policy, "kl": kl, "kl_in_reward": kl_in_reward, "value": value, "entropy": entropy,
    "advantage": advantage, "factor": factor, "kept": kept,
}  # fmt: skip


if __name__ == "__main__":
    answer("verl", CALLS)
