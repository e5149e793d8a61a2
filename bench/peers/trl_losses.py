"""TRL's losses and estimators for bench/parity.py; runs in an environment that has trl, imports nothing of ours.

TRL's losses are methods of its trainers. Real trainers are built around a small model, and their method for
log-probs answers with the given tensors. The argument is the model's folder; see answers.py for the rest.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from answers import Found, Given, answer
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer
from trl.rewards import get_soft_overlong_punishment

KINDS = {"grpo": (GRPOTrainer, GRPOConfig), "gmpo": (GMPOTrainer, GMPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}


def trainer_of(given: Given, kind: str, config: dict[str, Any], rewards: Sequence[str] = ("reward",)) -> Any:
    """A trainer of `kind`, its model not in training: the loss is that of one batch, without accumulation."""
    trainer_class, config_class = KINDS[kind]
    rows, folder = len(given["reward"]), sys.argv[1]
    with tempfile.TemporaryDirectory() as output:
        arguments = config_class(
            output_dir=output, use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False,
            per_device_train_batch_size=rows, num_generations=4, max_completion_length=given["mask"].shape[1], **config,
        )  # fmt: skip
        trainer = trainer_class(
            model=AutoModelForCausalLM.from_pretrained(folder), args=arguments,
            reward_funcs=[lambda name=name, **_: given[name].tolist() for name in rewards],
            train_dataset=Dataset.from_list([{"prompt": "a"}] * rows),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )  # fmt: skip
    trainer.model.eval()
    return trainer


def answering(trainer: Any, logprob: torch.Tensor, entropy: torch.Tensor) -> None:
    """The trainer's next log-probs and entropies."""
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprob, entropy, None)


def scored(trainer: Any, given: Given) -> dict[str, Any]:
    """What the trainer makes of its generations, whose log-probs are the anchor's."""
    lengths = given["mask"].sum(-1).long().tolist()
    completions = [[1] * length for length in lengths]
    sampled = [row[:length].tolist() for row, length in zip(given["generator"], lengths, strict=True)]
    prompts, texts = [[1]] * len(lengths), ["a"] * len(lengths)
    if isinstance(trainer, RLOOTrainer):
        trainer._generate = lambda _: (prompts, completions, texts)
    else:
        trainer._generate = lambda _: (prompts, completions, None, texts, sampled, {}, None, None)
    answering(trainer, given["anchor"], given["entropy"])
    found: dict[str, Any] = trainer._generate_and_score_completions([{"prompt": "a"}] * len(lengths))
    return found


def inputs_of(given: Given) -> dict[str, torch.Tensor]:
    """A batch as the trainer's loss takes it."""
    ids = torch.ones_like(given["mask"], dtype=torch.long)
    return {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids,
        "completion_mask": given["mask"].long(), "advantages": given["advantage"],
        "old_per_token_logps": given["anchor"], "ref_per_token_logps": given["reference"],
        "sampling_per_token_logps": given["generator"], "num_items_in_batch": given["mask"].sum(),
    }  # fmt: skip


def loss(given: Given, config: dict[str, Any], kind: str = "grpo") -> Found:
    """The loss of a trainer with this configuration, and its gradients."""
    trainer = trainer_of(given, kind, config)
    logprob, entropy = given["logprob"].requires_grad_(), given["entropy"].requires_grad_()
    answering(trainer, logprob, entropy)
    value = trainer._compute_loss(trainer.model, inputs_of(given))
    by_logprob, by_entropy = torch.autograd.grad(value, (logprob, entropy), allow_unused=True)
    more = {} if by_entropy is None else {"entropy gradient": by_entropy}
    return {"value": value.detach(), "gradient": by_logprob} | more


def factor(given: Given, mode: str, low: float | None, high: float | None) -> Found:
    """The factor of the generator's mismatch, as used with vLLM (the trainer is not asked to start it)."""
    trainer = trainer_of(given, "grpo", {})
    trainer.use_vllm, trainer.vllm_importance_sampling_mode = True, mode
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = low, high
    return {"factor": scored(trainer, given)["importance_sampling_ratio"] * given["mask"]}


def advantage(
    given: Given, config: dict[str, Any], kind: str = "grpo", rewards: Sequence[str] = ("reward",)
) -> Found:
    """The advantages of completions with the given rewards, those of several functions added."""
    found = scored(trainer_of(given, kind, config, rewards), given)["advantages"]
    return {"advantage": found[:, None] * given["mask"]}


def adaptive(given: Given, config: dict[str, Any], entropies: list[float]) -> Found:
    """The bonus that each of several steps applies, by the loss's gradient of the entropy; then the state it leaves."""
    trainer = trainer_of(given, "grpo", config)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    applied, kept = [], []
    for mean in entropies:
        entropy = torch.full_like(given["entropy"], mean).requires_grad_()
        answering(trainer, given["logprob"], entropy)
        value = trainer._compute_loss(trainer.model, inputs_of(given))
        applied.append(-torch.autograd.grad(value, entropy)[0].sum())
        kept.append(torch.tensor(trainer.entropy_coef, dtype=torch.float64))
    return {"applied": torch.stack(applied), "coefficient": torch.stack(kept)}


def overlong(given: Given, longest: int, buffer: int) -> Found:
    """The punishment of long completions."""
    punish = get_soft_overlong_punishment(longest, buffer)
    lengths = given["mask"].sum(-1).long().tolist()
    return {"reward": torch.tensor(punish(completion_ids=[[1] * length for length in lengths]))}


CALLS: dict[str, Callable[..., Found]] = {
    "loss": loss, "factor": factor, "advantage": advantage, "adaptive": adaptive, "overlong": overlong,
}  # fmt: skip


if __name__ == "__main__":
    answer("trl", CALLS)
