"""Peak memory of log-probs and entropies with their gradients, beside plain PyTorch; each in a process of its own.

    python bench/memory.py                  # 8,192 tokens, vocabulary 151,936, hidden size 256, float32
    python bench/memory.py --device cuda --hidden 1024 --dtype bfloat16 --repeats 1

The plain path: logits = hidden · weightᵀ (float32), log_softmax, the targets' log-probs, the entropies, backward. Where
that would not fit into the memory at hand, it is measured at two numbers of tokens that fit, and its memory, which
grows linearly with them, is extended; the line then has `peer_measured_at`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from common import begin, emit, parser_of

COPIES = 6  # of the logits that the plain path holds at most, as a first estimate
LEAST = 256


def measured(given: argparse.Namespace, side: str, tokens: int) -> dict[str, float]:
    """Of `repeats` processes the one with the median of memory; fewer where they took longer than `patience`."""
    what = {name: value for name, value in vars(given).items() if name not in ("peer", "repeats", "patience")}
    argument = json.dumps(what | {"side": side, "tokens": tokens})
    command = [sys.executable, str(Path(__file__).parent / "peers" / "head_memory.py"), argument]
    found: list[dict[str, float]] = []
    for turn in range(given.repeats):
        found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        last = f"{found[-1]['mib']:.0f} MiB, {found[-1]['wall']:.1f} s"
        print(f"  {side}, {tokens} tokens, run {turn + 1}: {last}", file=sys.stderr, flush=True)
        if sum(one["wall"] for one in found) > given.patience:
            break
    found.sort(key=lambda one: one["mib"])
    middle: dict[str, float] = found[len(found) // 2]
    return middle


def free_bytes(device: str) -> int:
    """Memory that can be had now."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def plain_path(given: argparse.Namespace) -> tuple[float, dict[str, object]]:
    """MiB of the plain path at all tokens, and what else there is to say of it."""
    fitting = int(free_bytes(given.device) * 0.7 / (4 * given.vocabulary * COPIES))
    if fitting >= given.tokens:
        found = measured(given, "plain", given.tokens)
        return found["mib"], {"peer_s": found["wall"], "peer_cpu_s": found["cpu"]}
    most = max(min(fitting, given.tokens // 4), LEAST)
    one, two = measured(given, "plain", most // 2), measured(given, "plain", most)
    a_token = (two["mib"] - one["mib"]) / (most - most // 2)
    scale = given.tokens / most
    about = {"peer_s": two["wall"] * scale, "peer_cpu_s": two["cpu"] * scale, "peer_measured_at": [most // 2, most]}
    return two["mib"] + a_token * (given.tokens - most), about


def main() -> None:
    """Measure both sides."""
    parser = parser_of(__doc__, ("plain",))
    parser.set_defaults(repeats=3)  # memory hardly varies
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--chunk", type=int, default=1024, help="rows of logits that exist at a time on our side")
    given = parser.parse_args()
    begin(given)
    ours = measured(given, "ours", given.tokens)
    peer, more = (None, {}) if given.peer == "none" else plain_path(given)
    emit(
        "memory", f"log-prob, entropy, gradients: {given.tokens} tokens, vocabulary {given.vocabulary} {given.dtype}",
        ours["mib"], peer, None if peer is None else "plain PyTorch", "MiB", ours_s=ours["wall"],
        ours_cpu_s=ours["cpu"], device=given.device, **more,
    )  # fmt: skip


if __name__ == "__main__":
    main()
