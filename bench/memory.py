"""Peak memory of log-probs and entropies with their gradients, beside plain PyTorch; each in a process of its own.

    python bench/memory.py                  # 8,192 tokens, vocabulary 151,936, hidden size 256, float32
    python bench/memory.py --device cuda --hidden 2048 --dtype bfloat16

The plain path: logits = hidden · weightᵀ (float32), log_softmax, the targets' log-probs, the entropies, backward. Where
that would not fit into the memory at hand it runs on as many tokens as fit, and its memory, which grows linearly with
them, is measured at two sizes and extended; the line then has `peer_measured_at`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from common import begin, emit, parser_of

from strop.head import logprob_entropy

MEBIBYTE = 2**20
COPIES = 6  # of the logits that the plain path holds at most, as a first estimate
LEAST = 256


def plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy through the logits of all tokens."""
    log_p = (hidden @ weight.t()).float().log_softmax(-1)
    return log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def child(given: argparse.Namespace) -> None:
    """Run one side once, and print its peak memory beyond what was there before, and its seconds."""
    dtype, device = getattr(torch, given.dtype), given.device
    torch.manual_seed(0)
    hidden = torch.randn(given.tokens, given.hidden, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(given.vocabulary, given.hidden, device=device) * 0.02).to(dtype).requires_grad_()
    target = torch.randint(given.vocabulary, (given.tokens,), device=device)
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    wall, cpu = time.perf_counter(), time.process_time()
    if given.side == "ours":
        logprob, entropy = logprob_entropy(hidden, weight, None, target, 1.0, given.chunk, True)
    else:
        logprob, entropy = plain(hidden, weight, target)
    (logprob.sum() + 0.01 * entropy.sum()).backward()
    if device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({"mib": (peak - before) / MEBIBYTE, **took}))


def measured(given: argparse.Namespace, side: str, tokens: int) -> dict[str, float]:
    """Medians by memory of `repeats` processes."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--tokens", str(tokens)]
    runs = (subprocess.run(command, check=True, stdout=subprocess.PIPE) for _ in range(given.repeats))
    found = [json.loads(run.stdout) for run in runs]
    middle: dict[str, float] = sorted(found, key=lambda one: one["mib"])[len(found) // 2]
    return middle


def free_bytes(device: str) -> int:
    """Memory that can be had now."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def main() -> None:
    """Measure both sides, or be one of them."""
    parser = parser_of(__doc__, ("plain",))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--chunk", type=int, default=1024, help="rows of logits that exist at a time on our side")
    parser.add_argument("--side", choices=("ours", "plain"), help=argparse.SUPPRESS)
    parser.set_defaults(repeats=3)
    given = parser.parse_args()
    begin(given)
    if given.side is not None:
        child(given)
        return
    ours = measured(given, "ours", given.tokens)
    peer: float | None = None
    more: dict[str, object] = {}
    if given.peer != "none":
        fitting = int(free_bytes(given.device) * 0.8 / (4 * given.vocabulary * COPIES))
        if fitting >= given.tokens:
            theirs = measured(given, "plain", given.tokens)
            peer, more = theirs["mib"], {"peer_s": theirs["wall"], "peer_cpu_s": theirs["cpu"]}
        else:
            most = max(min(fitting, given.tokens // 4), LEAST)
            one, two = measured(given, "plain", most // 2), measured(given, "plain", most)
            a_token = (two["mib"] - one["mib"]) / (most - most // 2)
            scale = given.tokens / most
            peer = two["mib"] + a_token * (given.tokens - most)
            more = {"peer_s": two["wall"] * scale, "peer_cpu_s": two["cpu"] * scale}
            more["peer_measured_at"] = [most // 2, most]
    emit(
        "memory", f"log-prob, entropy, gradients: {given.tokens} tokens, vocabulary {given.vocabulary} {given.dtype}",
        ours["mib"], peer, None if peer is None else "plain PyTorch", "MiB", None, None,
        ours_s=ours["wall"], ours_cpu_s=ours["cpu"], device=given.device, **more,
    )  # fmt: skip


if __name__ == "__main__":
    main()
