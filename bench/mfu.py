"""Training on one GPU: tokens a second, and how much of the machine's matrix rate they are (MFU).

    python bench/mfu.py --device cuda                              # Qwen3 0.6B and 1.7B, 16,384 packed tokens, bfloat16
    python bench/mfu.py --device cuda --models qwen3-1.7b --longest 16384 --checkpointing always

For each model, with random weights: an `update` (forward, CISPO's loss, backward, gradient norm, AdamW with fp32
masters), `score` (forward alone, log-prob and entropy of every trained token) and `prefill` (forward alone, the head at
the last token of each sequence). The limit is the model's operations (`strop.training.compute.Dimensions`: layers,
causal attention, the head; recomputation not counted) at the rate of a large matrix product of the same run, so that
`of_limit` is the MFU. The peer is the same with `gpu_kernels` off: transformers' own modules and the chunked head.

`--checkpointing auto` keeps all activations, and computes them again only where they do not fit. A last line a model
says where the time of an update goes, from PyTorch's profiler: seconds of kernels by kind, and of none (`idle`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import (
    SHAPES,
    Spent,
    begin,
    dimensions_of,
    emit,
    interleaved,
    long_tailed,
    matrix_rate,
    model_of,
    parameter_count,
    parser_of,
    policy_of,
    random_sample,
    synchronize,
    timed,
)
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import Cispo
from strop.algorithms.objective import Objective
from strop.base.types import Sample
from strop.model.policy import Packed, Policy
from strop.training.packing import Update, pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

PROMPT = 100  # tokens of a question of GSM8K in its template, about
KINDS = {
    "head": ("_statistics_kernel", "_gradient_kernel", "softmax", "logsumexp"),
    "attention": ("flash", "fmha", "scaled_dot_product", "attention"),
    "optimizer": ("adam", "multi_tensor", "foreach"),
    "layers": ("_norm_", "_rotary_", "_gate_"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "aten::mm", "addmm", "bmm"),
    "copies": ("memcpy", "memset", "copy_"),
}


def samples_of(tokens: int, longest: int, vocabulary: int) -> list[Sample]:
    """Sequences of long-tailed length that fill `tokens` exactly, after prompts of about 100 tokens each."""
    rng = np.random.default_rng(3)
    lengths: list[int] = []
    prompt = min(PROMPT, longest // 4, tokens // 4)
    for length in long_tailed(tokens, longest):
        left = tokens - sum(lengths)
        if left <= 2 * prompt + 8:
            break
        lengths.append(min(max(length, prompt + 4), left))
    lengths[-1] += tokens - sum(lengths)
    samples: list[Sample] = []
    for place, length in enumerate(lengths):
        samples.append(random_sample(rng, length, prompt, vocabulary, place))
    return samples


@dataclass(frozen=True)
class Task:
    """What is measured: an update's tokens, and the same tokens scored at the end of each sequence alone."""

    update: Update
    packed: Packed
    last: Packed


@dataclass(frozen=True)
class Side:
    """What one way of computing took: seconds of each case, whether activations were computed again, memory."""

    seconds: dict[str, Spent]
    checkpointing: bool
    peak_gib: float
    shares: dict[str, float]


def side(given: Any, shape: str, kernels: bool, checkpointing: bool, task: Task) -> Side:
    """Build a trainer and run all cases with it."""
    device = given.device
    model = model_of(shape, getattr(torch, given.dtype), device)
    policy = policy_of(model, gradient_checkpointing=checkpointing, gpu_kernels=kernels)
    trainer = Trainer(policy, Objective(Cispo()), AdamW(lr=1e-6), 1000)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.update(task.update)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    works: dict[str, Callable[[], object]] = {
        "update": lambda: trainer.update(task.update),
        "score": lambda: forward(policy, task.packed),
        "prefill": lambda: forward(policy, task.last),
    }

    def run(work: Callable[[], object]) -> Callable[[], Spent]:
        return lambda: timed(work, device)

    seconds = interleaved({name: run(work) for name, work in works.items()}, given.repeats)
    return Side(seconds, checkpointing, peak, shares(works["update"], device))


def fitting(given: Any, shape: str, kernels: bool, task: Task) -> Side:
    """The same; where memory does not suffice, and it may, with checkpointing. One side is in memory at a time."""
    if given.checkpointing != "always":
        try:
            return side(given, shape, kernels, False, task)
        except torch.OutOfMemoryError:
            if given.checkpointing == "never":
                raise
    release(given.device)
    return side(given, shape, kernels, True, task)


def release(device: str) -> None:
    """Give memory back that nothing holds any more."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


@torch.no_grad()
def forward(policy: Policy, packed: Packed) -> object:
    """Log-probs and entropies of what is asked for, without gradient."""
    return policy(packed, 1.0)


def last_rows(packed: Packed) -> Packed:
    """The same tokens, scored at the end of each sequence alone."""
    rows = torch.tensor(packed.lengths).cumsum(0) - 1
    return Packed(packed.token_ids, packed.positions, packed.lengths, rows, torch.zeros_like(rows))


def shares(work: Callable[[], object], device: str) -> dict[str, float]:
    """Seconds by kind of kernel (of operator on a CPU) in one run of `work`, the whole, and what no kernel ran in."""
    kinds = dict.fromkeys((*KINDS, "elementwise"), 0.0)
    cuda = device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        synchronize(device)
        begin_at = time.perf_counter()
        work()
        synchronize(device)
        whole = time.perf_counter() - begin_at
    for event in found.key_averages():
        # On a GPU operators carry the seconds of their kernels too, and ranges those of all in them: count kernels.
        if cuda and (event.device_type != DeviceType.CUDA or event.is_user_annotation):
            continue
        name = event.key.lower()
        kind = next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "elementwise")
        kinds[kind] += (event.self_device_time_total if cuda else event.self_cpu_time_total) * 1e-6
    busy = sum(kinds.values())
    return kinds | {"idle": max(whole - busy, 0.0), "whole": whole}


def measure(given: Any, shape: str, rate: float) -> None:
    """All cases of one model."""
    skeleton = model_of(shape, torch.float32, "meta")
    dimensions = dimensions_of(skeleton)
    samples = samples_of(given.tokens, given.longest, dimensions.vocabulary)
    update = pack(samples, TokenMean(), given.tokens)
    packed, device = update.micro_batches[0].packed, torch.device(given.device)
    task = Task(update, packed.to(device), last_rows(packed).to(device))
    ways = {"ours": True} if given.peer == "none" else {"ours": True, "peer": False}
    sides: dict[str, Side] = {}
    for name, kernels in ways.items():
        release(given.device)
        sides[name] = fitting(given, shape, kernels, task)
    own, peer = sides["ours"], sides.get("peer")
    for case, spent in own.seconds.items():
        rows = task.last.rows if case == "prefill" else task.packed.rows
        operations = dimensions.forward_operations(packed.lengths, len(rows)) * (3 if case == "update" else 1)
        emit(
            "mfu", f"{case} {shape} {given.tokens} tokens in {len(samples)} sequences", given.tokens / spent.wall,
            None if peer is None else given.tokens / peer.seconds[case].wall,
            None if peer is None else "gpu_kernels off", "tokens/s", given.tokens / (operations / rate),
            matrix_rate=rate, operations=operations, head_rows=len(rows), parameters=parameter_count(skeleton),
            checkpointing=own.checkpointing, peak_gib=own.peak_gib,
            peer_checkpointing=None if peer is None else peer.checkpointing,
            peer_peak_gib=None if peer is None else peer.peak_gib, micro_batches=len(update.micro_batches),
            device=given.device,
        )  # fmt: skip
    for name, one in sides.items():
        case = f"shares of an update {shape}" + (", gpu_kernels off" if name == "peer" else "")
        emit("mfu", case, one.shares["whole"], None, None, "s", **one.shares, device=given.device)


def main() -> None:
    """Run the models asked for."""
    parser = parser_of(__doc__, ("plain",))
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-1.7b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--longest", type=int, default=4096, help="sequence; equal to --tokens for a single one")
    parser.add_argument("--checkpointing", choices=("auto", "never", "always"), default="auto")
    given = parser.parse_args()
    begin(given)
    rate = matrix_rate(getattr(torch, given.dtype), given.device)
    for shape in given.models.split(","):
        measure(given, shape, rate)


if __name__ == "__main__":
    main()
