"""The update: useful tokens a second of one optimizer step over packed sequences, beside a padded baseline.

    python bench/update.py                                     # 3.4M parameters, 256 sequences, float32 and bfloat16
    python bench/update.py --device cuda --model qwen3-1.7b --dtype bfloat16 --sequences 16 --longest 4096 \\
        --tokens 16384 --checkpointing
    python bench/update.py --peer operators --model 1.8m --equal 10+47 --tokens 16384     # a GRPO step's, equal lengths

Both sides make one AdamW step on the same prompts and completions of long-tailed lengths, in micro-batches of at most
`--tokens` tokens: ours packed, with GRPO's clipped loss, log-probs and entropies; the baseline a plain transformers
model over rows padded on the right (sequences in the order they come), `cross_entropy` over logits of every position,
clipping and fused AdamW. Tokens count prompts and completions, never padding. `packing_efficiency` is the share of the
rows computed that are tokens of a sequence: the rest would be padding. `fill` is how full the micro-batches are (the
`packing_efficiency` of a run's metrics); it cannot exceed `fill_at_best`, tokens over the budgets of the fewest
micro-batches that hold them, and costs no time, for what is not there is not computed. `peer_padding` is the share of
the baseline's rows that are none. With `--peer operators` the peer is ours without kernels
(`model.cpu_kernels=false`), which changes nothing else. With `--equal PROMPT+COMPLETION` all lengths are equal, and
eight sequences share a prompt. The limit is the model's operations (three products of each parameter, causal attention,
the head) at the measured rate of a matrix product; recomputation is not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from common import (
    Spent,
    begin,
    dimensions_of,
    emit,
    interleaved,
    long_tailed,
    matrix_rate,
    model_of,
    parser_of,
    policy_of,
    random_sample,
    shape_or_folder,
    timed,
)  # fmt: skip
from transformers import PreTrainedModel

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.objective import Objective
from strop.base.sample import Sample
from strop.training.packing import Update, pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

PEERS = {"padded": "padded cross_entropy", "operators": "ours without kernels"}


def equal_samples(count: int, prompt: int, completion: int, vocabulary: int) -> list[Sample]:
    """Sequences of equal lengths, in groups of eight that share a prompt."""
    rng = np.random.default_rng(2)
    samples = [random_sample(rng, prompt + completion, prompt, vocabulary, place) for place in range(count)]
    for sample in samples:
        sample.token_ids[:prompt] = samples[sample.group * 8].token_ids[:prompt]
    return samples


def samples_of(count: int, longest: int, vocabulary: int) -> list[Sample]:
    """Sequences with a prompt of 16 to 64 tokens and a completion of long-tailed length, with random advantages."""
    rng = np.random.default_rng(2)
    samples: list[Sample] = []
    for place, completion in enumerate(long_tailed(count, longest)):
        prompt = int(rng.integers(16, 65))
        length = prompt + completion
        samples.append(random_sample(rng, length, prompt, vocabulary, place))
    return samples


def ours(trainer: Trainer, update: Update, device: str) -> Callable[[], Spent]:
    """One update of the trainer."""
    return lambda: timed(lambda: trainer.update(update), device)


def trainer_of(model: PreTrainedModel, given: argparse.Namespace, settings: AdamW, kernels: bool) -> Trainer:
    """Ours, with GRPO's clipped loss."""
    policy = policy_of(model, gradient_checkpointing=given.checkpointing, cpu_kernels=kernels)
    return Trainer(policy, Objective(PpoClip()), settings, 1000)


def padded_shapes(samples: Sequence[Sample], tokens: int) -> list[tuple[int, int]]:
    """Rows and width of the baseline's micro-batches of at most `tokens`."""
    rows = max(tokens // max(map(len, samples)), 1)
    parts = [samples[start : start + rows] for start in range(0, len(samples), rows)]
    return [(len(part), max(map(len, part))) for part in parts]


def padded(
    model: PreTrainedModel, samples: Sequence[Sample], tokens: int, device: str, settings: AdamW
) -> Callable[[], Spent]:
    """One update of a plain model over padded rows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, fused=True)
    trained = sum(sample.trained_tokens for sample in samples)

    def run() -> None:
        start = 0
        for rows, width in padded_shapes(samples, tokens):
            batch = samples[start : start + rows]
            start += rows
            ids, mask = torch.zeros(len(batch), width, dtype=torch.int64), torch.zeros(len(batch), width)
            labels, advantage = torch.full((len(batch), width), -100), torch.zeros(len(batch), width)
            for row, sample in enumerate(batch):
                size = len(sample)
                ids[row, :size] = torch.from_numpy(sample.token_ids.astype(np.int64))
                mask[row, :size] = 1
                labels[row, :size] = torch.where(torch.from_numpy(sample.trained), ids[row, :size], -100)
                advantage[row, :size] = torch.from_numpy(sample.advantages)
            ids, mask, labels, advantage = (part.to(device) for part in (ids, mask, labels, advantage))
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
            loss = F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
            ((loss * advantage[:, 1:]).sum() / trained).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return lambda: timed(run, device)


def operations(model: PreTrainedModel, samples: Sequence[Sample]) -> float:
    """Operations of forward and backward, the head at trained tokens only."""
    trained = sum(sample.trained_tokens for sample in samples)
    return 3 * dimensions_of(model).forward_operations([len(sample) for sample in samples], trained)


def main() -> None:
    """Run the cases asked for."""
    parser = parser_of(__doc__, tuple(PEERS))
    parser.add_argument("--model", type=shape_or_folder, default="3.4m")
    parser.add_argument("--dtype", default="float32,bfloat16", help="precisions, one or both")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--equal", metavar="PROMPT+COMPLETION", help="tokens of every sequence, instead of --longest")
    parser.add_argument("--tokens", type=int, default=2048, help="of a micro-batch")
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again in backward")
    given = parser.parse_args()
    begin(given)
    settings = AdamW(lr=1e-6)
    for name in given.dtype.split(","):
        dtype = getattr(torch, name)
        model = model_of(given.model, dtype, given.device)
        if given.equal is None:
            samples = samples_of(given.sequences, given.longest, model.config.vocab_size)
        else:
            samples = equal_samples(given.sequences, *map(int, given.equal.split("+")), model.config.vocab_size)
        update = pack(samples, TokenMean(), given.tokens)
        sides = {"ours": ours(trainer_of(model, given, settings, True), update, given.device)}
        if given.peer != "none":
            other = model_of(given.model, dtype, given.device)
        if given.peer == "operators":
            sides["peer"] = ours(trainer_of(other, given, settings, False), update, given.device)
        if given.peer == "padded":
            if given.checkpointing:
                other.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            sides["peer"] = padded(other.train(), samples, given.tokens, given.device, settings)
        found = interleaved(sides, given.repeats, given.patience)
        tokens = sum(map(len, samples))
        rate = matrix_rate(dtype, given.device)
        padding = 1 - tokens / sum(rows * width for rows, width in padded_shapes(samples, given.tokens))
        emit(
            "update", f"{given.model} {given.sequences} sequences {given.equal or f'up to {given.longest}'} {name}",
            tokens / found["ours"].wall, tokens / found["peer"].wall if "peer" in found else None,
            PEERS.get(given.peer), "tokens/s",
            tokens / (operations(model, samples) / rate),
            found["peer"].cpu / found["ours"].cpu if "peer" in found else None,
            packing_efficiency=tokens / sum(len(part.packed.token_ids) for part in update.micro_batches),
            fill=update.efficiency, fill_at_best=tokens / (-(-tokens // given.tokens) * given.tokens),
            peer_padding=padding if given.peer == "padded" else None,
            ours_cpu_s=found["ours"].cpu, micro_batches=len(update.micro_batches), runs=found["ours"].runs,
            peer_runs=found["peer"].runs if "peer" in found else None, device=given.device,
            threads=torch.get_num_threads(),
        )  # fmt: skip


if __name__ == "__main__":
    main()
