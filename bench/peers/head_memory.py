"""One side of bench/memory.py, in a process of its own: prints its peak memory beyond the inputs, and its seconds.

On a GPU the work is done several times after one to warm up, and the median of seconds is printed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from strop.base.machine import resident
from strop.model.head import logprob_entropy

MEBIBYTE = 2**20
RUNS = 7  # on a GPU


def plain(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy through the logits of all tokens."""
    log_p = (hidden @ weight.t()).float().log_softmax(-1)
    return log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def main() -> None:
    """Forward and backward, once."""
    what = json.loads(sys.argv[1])
    if what["threads"] is not None:
        torch.set_num_threads(what["threads"])
    dtype, device = getattr(torch, what["dtype"]), what["device"]
    torch.manual_seed(0)
    hidden = torch.randn(what["tokens"], what["hidden"], device=device).to(dtype).requires_grad_()
    weight = (torch.randn(what["vocabulary"], what["hidden"], device=device) * 0.02).to(dtype).requires_grad_()
    target = torch.randint(what["vocabulary"], (what["tokens"],), device=device)

    def work() -> None:
        hidden.grad = weight.grad = None
        if what["side"] == "plain":
            logprob, entropy = plain(hidden, weight, target)
        else:
            logprob, entropy = logprob_entropy(hidden, weight, None, target, 1.0, what["chunk"], True)
        (logprob.sum() + 0.01 * entropy.sum()).backward()

    print(json.dumps(on_gpu(work) if device == "cuda" else on_cpu(work)))


def on_gpu(work: Callable[[], None]) -> dict[str, float]:
    """Median seconds, and the peak beyond what was there before."""
    before = torch.cuda.memory_allocated()
    work()  # to warm up
    torch.cuda.reset_peak_memory_stats()
    seconds: list[float] = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated()
    return {"mib": (peak - before) / MEBIBYTE, "wall": statistics.median(seconds), "cpu": 0.0}


def on_cpu(work: Callable[[], None]) -> dict[str, float]:
    """Seconds of one run, and how far resident memory rose."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return {"mib": (resident(peak=True) - before) / MEBIBYTE, **took}


if __name__ == "__main__":
    main()
