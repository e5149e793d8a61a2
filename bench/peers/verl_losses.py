"""verl's losses and estimators for bench/parity.py; runs in an environment that has verl, imports nothing of ours.

Reads a JSON object {tensors, cases, folder} on standard input and writes one of {version, found}.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

Given = dict[str, torch.Tensor]
Found = dict[str, torch.Tensor]


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
    """A registered estimator, on a reward at the last token."""
    last = given["mask"].sum(-1).long() - 1
    rewards = torch.zeros_like(given["mask"])
    rewards[torch.arange(len(last)), last] = given["reward"]
    index = given[groups].long().numpy().astype(object)
    estimator = core_algos.get_adv_estimator_fn(name)
    named = {"values": given["value"]} if name == "gae" else {"index": np.array([f"group {i}" for i in index])}
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


def main() -> None:
    """Compute every case."""
    what = json.load(sys.stdin)
    found = {}
    for name, case in what["cases"].items():
        given = {key: torch.tensor(column, dtype=torch.float64) for key, column in what["tensors"].items()}
        result = CALLS[case.pop("call")](given, **case)
        found[name] = {key: tensor.tolist() for key, tensor in result.items()}
    print(json.dumps({"version": version("verl"), "found": found}))


if __name__ == "__main__":
    main()
