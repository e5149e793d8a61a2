"""How time and memory grow with the batch, the context, the vocabulary and the model: a decode step and an update.

    python bench/growth.py                                   # every axis, minutes on a CPU
    python bench/growth.py --axes context --most 8192
    python bench/growth.py --axes batch --values 8,32 --kinds decode --steps 1
    python bench/growth.py --device cuda --dtype bfloat16

Every point runs in a process of its own (the fork of one that has imported everything and computed nothing), which
measures the seconds of an engine step and of an optimizer step (processor seconds on a CPU, so that a busy machine
tells nearly the same), and the most memory that each held beyond the model. The best of `--repeats` runs counts, after
one to warm up; where that one takes longer than `--enough` seconds it is the one that counts.

A line a point; then for each axis the exponent of time and of memory: the slope of a line through the logarithms of all
points, and of the last two alone (`last`, `memory_last`), where fixed costs weigh least. 1 is linear.

The model: Qwen2, two layers, heads of 32, four key/value groups; what an axis does not vary stays at `FIXED`.
"""

from __future__ import annotations

import argparse
import json
import os
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

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.objective import Objective
from strop.base.machine import resident
from strop.base.sample import Sample
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.training.packing import pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

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
            self.before = resident()

    def mebibytes(self) -> float:
        """The most held since."""
        now = torch.cuda.max_memory_allocated() if self.device == "cuda" else resident(peak=True)
        return (now - self.before) / MEBIBYTE


def seconds(work: Callable[[], object], given: argparse.Namespace) -> float:
    """Best of some runs: processor seconds, or on a GPU those of the clock."""
    clock = time.perf_counter if given.device == "cuda" else time.process_time
    taken: list[float] = []
    for _ in range(1 + given.repeats):
        synchronize(given.device)
        start = clock()
        work()
        synchronize(given.device)
        taken.append(clock() - start)
        if taken[0] > given.enough:
            return taken[0]
    return min(taken[1:])


def decoding(model: PreTrainedModel, batch: int, context: int, given: argparse.Namespace) -> list[float]:
    """Seconds of a step of `batch` sequences of `context` tokens, and MiB of the engine."""
    peak = Peak(given.device)
    total = context + 2 + given.steps * (1 + given.repeats)
    settings = EngineSettings(slots=max(batch, 16), max_tokens=total + 1)
    engine = TorchEngine(policy_of(model), endless_tokenizer(), settings)
    prompt = np.random.default_rng(0).integers(0, model.config.vocab_size, context).astype(np.int32)
    engine.submit(Request("growth", prompt, Sampling(max_new_tokens=total - context), seed=0, n=batch))
    engine.step()

    def run() -> None:
        for _ in range(given.steps):
            engine.step()

    return [seconds(run, given) / given.steps, peak.mebibytes()]


def updating(model: PreTrainedModel, batch: int, context: int, given: argparse.Namespace) -> list[float]:
    """Seconds of an update of `batch` sequences of `context` tokens, and MiB of the trainer."""
    peak = Peak(given.device)
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
    return [seconds(lambda: trainer.update(update), given), peak.mebibytes()]


def point(what: dict[str, int], kind: str, given: argparse.Namespace) -> None:
    """Measure in this process, and print."""
    context = what["context"]
    dtype = getattr(torch, given.dtype)
    model = model_of(what["hidden"], what["vocabulary"], 2 * context + 1024, dtype, given.device)
    work = decoding if kind == "decode" else updating
    found = work(model, what["batch"], context, given)
    print(json.dumps({"seconds": found[0], "mib": found[1], "parameters": parameter_count(model)}), flush=True)


def serve(given: argparse.Namespace) -> None:
    """Measure the points that standard input names, each in a fork: this process never computes anything itself."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            begin(given)
            point(asked["what"], asked["kind"], given)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"the measurement of {line.strip()} ended with status {status}")


class Points:
    """The process that measures points."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, *sys.argv[1:], "--serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, what: dict[str, int], kind: str) -> dict[str, float]:
        """Seconds, MiB and parameters of a point."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, "kind": kind}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"no measurement of {kind} at {what}: its process ended with {self._process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def slope(x: list[float], y: list[float]) -> float:
    """Of the line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def axis(given: argparse.Namespace, points: Points, name: str, kind: str) -> None:
    """The points of an axis, and their exponents."""
    x: list[float] = []
    taken: list[float] = []
    held: list[float] = []
    values = AXES[name] if given.values is None else map(int, given.values.split(","))
    for value in (value for value in values if value <= given.most):
        what = FIXED | ({"batch": FEW if kind == "decode" else 1} if name == "context" else {}) | {name: value}
        found = points.measure(what, kind)
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
    parser.add_argument("--values", help="of the axis asked for, instead of its own")
    parser.add_argument("--enough", type=float, default=2.0, help="seconds of a run that is not repeated")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given)
        return
    points = Points()
    for kind in given.kinds.split(","):
        for name in given.axes.split(","):
            axis(given, points, name, kind)
    points.close()


if __name__ == "__main__":
    main()
