"""How time and memory grow with the batch, the context, the vocabulary and the model: a decode step and an update.

    python bench/growth.py                                   # every axis, minutes on a CPU
    python bench/growth.py --axes context --most 8192
    python bench/growth.py --device cuda --dtype bfloat16

Every point runs in a process of its own, which measures the seconds of an engine step and of an optimizer step
(processor seconds on a CPU, so that a busy machine tells nearly the same), and the most memory that each held beyond
the model. A line a point; then for each axis the exponent of time and of memory: the slope of a line through the
logarithms of all points, and of the last two alone (`last`, `memory_last`), where fixed costs weigh least. 1 is linear.

The model: Qwen2, two layers, heads of 32, four key/value groups; what an axis does not vary stays at `FIXED`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from common import begin, emit, endless_tokenizer, parameter_count, parser_of, policy_of, synchronize
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from strop.algorithms import Objective, PpoClip, TokenMean
from strop.engines.base import Request, Sampling
from strop.engines.torch_engine import EngineSettings, TorchEngine
from strop.trainer.optimizer import AdamW
from strop.trainer.packing import pack
from strop.trainer.step import Trainer
from strop.types import Sample

MEBIBYTE = 2**20
FIXED = {"batch": 64, "context": 64, "vocabulary": 1024, "hidden": 128}
AXES = {
    "batch": (64, 256, 1024, 4096),
    "context": (512, 2048, 8192, 32_768),
    "vocabulary": (2048, 8192, 32_768, 131_072),
    "hidden": (128, 256, 512, 1024),
}
# Sequences of the context axis: few, so that the longest fit.
FEW = 16


def model_of(hidden: int, vocabulary: int, longest: int, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """Two layers of random weights."""
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=2, num_attention_heads=hidden // 32,
        num_key_value_heads=max(hidden // 128, 1), vocab_size=vocabulary, max_position_embeddings=longest,
        tie_word_embeddings=True, attention_dropout=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(dtype).eval()


def resident(field: str) -> int:
    """`VmRSS` or `VmHWM` (its peak) of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


class Peak:
    """Memory from its making to `mebibytes`."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            synchronize(device)
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
            self.before = resident("VmRSS")

    def mebibytes(self) -> float:
        """The most held since."""
        now = torch.cuda.max_memory_allocated() if self.device == "cuda" else resident("VmHWM")
        return (now - self.before) / MEBIBYTE


def seconds(work: Callable[[], object], repeats: int, device: str) -> float:
    """Best of some runs: processor seconds, or on a GPU those of the clock."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    best = float("inf")
    for _ in range(repeats):
        synchronize(device)
        start = clock()
        work()
        synchronize(device)
        best = min(best, clock() - start)
    return best


def decoding(model: PreTrainedModel, batch: int, context: int, steps: int, repeats: int, device: str) -> list[float]:
    """Seconds of a step of `batch` sequences of `context` tokens, and MiB of the engine."""
    peak = Peak(device)
    total = context + 2 + steps * repeats
    settings = EngineSettings(slots=max(batch, 16), max_tokens=total + 1)
    engine = TorchEngine(policy_of(model), endless_tokenizer(), settings)
    prompt = np.random.default_rng(0).integers(0, model.config.vocab_size, context).astype(np.int32)
    engine.submit(Request("growth", prompt, Sampling(max_new_tokens=total - context), seed=0, n=batch))
    engine.step()

    def run() -> None:
        for _ in range(steps):
            engine.step()

    return [seconds(run, repeats, device) / steps, peak.mebibytes()]


def updating(model: PreTrainedModel, batch: int, context: int, repeats: int, device: str) -> list[float]:
    """Seconds of an update of `batch` sequences of `context` tokens, and MiB of the trainer."""
    peak = Peak(device)
    rng = np.random.default_rng(1)
    trained = np.arange(context) > 0
    samples = [
        Sample(
            token_ids=rng.integers(0, model.config.vocab_size, context).astype(np.int32),
            trained=trained,
            logprobs=np.where(trained, -np.log(model.config.vocab_size), 0.0).astype(np.float32),
            advantages=np.where(trained, rng.normal(), 0.0).astype(np.float32),
            versions=np.where(trained, 0, -1).astype(np.int32),
            group=place // 8,
            id=place,
        )  # fmt: skip
        for place in range(batch)
    ]
    update = pack(samples, TokenMean(), max(2048, context))
    trainer = Trainer(policy_of(model), Objective(PpoClip()), AdamW(lr=1e-6), 1000)
    trainer.update(update)
    return [seconds(lambda: trainer.update(update), repeats, device), peak.mebibytes()]


def point(what: dict[str, int], kind: str, dtype: torch.dtype, repeats: int, steps: int, device: str) -> None:
    """Measure in this process, and print."""
    context = what["context"]
    model = model_of(what["hidden"], what["vocabulary"], 2 * context + 1024, dtype, device)
    many = what["batch"]
    if kind == "decode":
        found = decoding(model, many, context, steps, repeats, device)
    else:
        found = updating(model, many, context, repeats, device)
    print(json.dumps({"seconds": found[0], "mib": found[1], "parameters": parameter_count(model)}))


def slope(x: list[float], y: list[float]) -> float:
    """Of the line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def axis(given: argparse.Namespace, name: str, kind: str) -> None:
    """The points of an axis, and their exponents."""
    x: list[float] = []
    taken: list[float] = []
    held: list[float] = []
    for value in (value for value in AXES[name] if value <= given.most):
        what = FIXED | ({"batch": FEW if kind == "decode" else 1} if name == "context" else {}) | {name: value}
        argument = {"what": what, "kind": kind}
        command = [sys.executable, __file__, "--device", given.device, "--dtype", given.dtype, "--steps",
                   str(given.steps), "--repeats", str(given.repeats), "--point", json.dumps(argument)]  # fmt: skip
        command += [] if given.threads is None else ["--threads", str(given.threads)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        x.append(found["parameters"] if name == "hidden" else value)
        taken.append(found["seconds"])
        held.append(max(found["mib"], 1 / 1024))
        emit("growth", f"{kind}, {name} {value}", 1000 * found["seconds"], None, None,
             "ms a step" if kind == "decode" else "ms an update", mib=found["mib"], parameters=found["parameters"],
             device=given.device, dtype=given.dtype)  # fmt: skip
    if len(x) < 2:
        return
    *_, last = pairwise(range(len(x)))
    ends = [[series[place] for place in last] for series in (x, taken, held)]
    label = "model" if name == "hidden" else name
    emit("growth", f"{kind} against {label}", slope(x, taken), None, None, "exponent", 1.0, last=slope(*ends[:2]),
         memory=slope(x, held), memory_last=slope(ends[0], ends[2]), device=given.device)  # fmt: skip


def main() -> None:
    """Run the axes asked for."""
    parser = parser_of(__doc__, ("none",))
    parser.set_defaults(repeats=3)
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--kinds", default="decode,update")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--most", type=int, default=1 << 30, help="leave larger values of an axis out")
    parser.add_argument("--steps", type=int, default=4, help="engine steps of a timing")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    given = parser.parse_args()
    begin(given)
    if given.point is not None:
        asked = json.loads(given.point)
        point(asked["what"], asked["kind"], getattr(torch, given.dtype), given.repeats, given.steps, given.device)
        return
    for kind in given.kinds.split(","):
        for name in given.axes.split(","):
            axis(given, name, kind)


if __name__ == "__main__":
    main()
