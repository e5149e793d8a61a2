"""Small samples and a small policy of known structure for the tests of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from strop.algorithms.objective import UpdateContext
from strop.algorithms.tokens import Tokens
from strop.base.metrics import Mean, Metrics
from strop.base.sample import Sample
from strop.model.policy import PackedInputs
from strop.training.packing import Update

VOCABULARY = 11
EOS = 2


class TinyPolicy(nn.Module):
    """A causal model in a few lines: each position sees the mean of the embeddings so far. Any dtype, float64 too."""

    def __init__(self, width: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)
        self.unused = nn.Linear(width, width)
        self.to(dtype)

    def forward(self, packed: PackedInputs, temperature: float) -> tuple[Tensor, Tensor]:
        """(log-prob [M], entropy [M]) of the packed targets, in fp32 or wider."""
        hidden = []
        for ids in packed.token_ids.split(list(packed.lengths)):
            seen = torch.arange(1, len(ids) + 1)[:, None]
            hidden.append(self.embedding(ids).cumsum(0) / seen)
        logits = self.head(self.norm(torch.cat(hidden)[packed.rows]))
        wide = logits if logits.dtype == torch.float64 else logits.float()
        logp = torch.log_softmax(wide / temperature, dim=-1)
        return logp.gather(1, packed.targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@dataclass(frozen=True)
class WeightedNegative:
    """−Σ weight · advantage · log p: the plainest policy gradient."""

    needs_scores: bool = False

    def prepare(self, tokens: Tokens, context: UpdateContext) -> Tokens:
        """Nothing to fill in."""
        return tokens

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, context: UpdateContext
    ) -> tuple[Tensor, Metrics]:
        """Loss and the mean log-prob."""
        loss = -(tokens.weight * tokens.advantage * logprob).sum()
        return loss, {"logprob": Mean(logprob.detach().sum(), len(logprob))}


def make_sample(prompt: int, completion: int, group: int = 0, seed: int = 0, holes: Sequence[int] = ()) -> Sample:
    """Random tokens; `holes` are completion indices that are not trained."""
    random = np.random.default_rng((seed, prompt, completion, group))
    length = prompt + completion
    trained = np.arange(length) >= prompt
    trained[[prompt + hole for hole in holes]] = False
    zeros = np.zeros(prompt, dtype=np.float32)
    token_ids = random.integers(0, VOCABULARY, length).astype(np.int32)
    token_ids[-1:] = EOS
    return Sample(
        token_ids=token_ids,
        trained=trained,
        logprobs=np.concatenate([zeros, -random.random(completion, dtype=np.float32)]),
        advantages=np.concatenate([zeros, random.standard_normal(completion, dtype=np.float32)]),
        versions=np.concatenate([np.full(prompt, -1), random.integers(0, 3, completion)]).astype(np.int32),
        group=group,
    )


def make_samples(count: int = 12, groups: int = 4, seed: int = 0) -> list[Sample]:
    """Samples of uneven lengths, some with untrained tokens inside the completion."""
    random = np.random.default_rng(seed)
    shapes = random.integers(1, 9, size=(count, 2))
    return [
        make_sample(int(p), int(c) + 2, group=index % groups, seed=seed + index, holes=(1,) if index % 3 == 0 else ())
        for index, (p, c) in enumerate(shapes)
    ]


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the gradients by name."""
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters by name."""
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def loss_and_gradient(policy: nn.Module, update: Update) -> tuple[float, dict[str, Tensor]]:
    """Those of an update at temperature 0.9, without a step."""
    policy.zero_grad()
    total = 0.0
    for batch in update.micro_batches:
        logprob, entropy = policy(batch.packed, 0.9)
        loss, _ = WeightedNegative()(batch.tokens, logprob, entropy, UpdateContext())
        loss.backward()
        total += loss.item()
    return total, gradients(policy)
