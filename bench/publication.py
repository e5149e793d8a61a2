"""Publication: what an engine takes to swap weights in, and what a version is as a difference to an earlier one.

    python bench/publication.py --device cuda --model qwen3-1.7b
    python bench/publication.py --model 3.4m
    python bench/publication.py --case delta --model qwen3-0.6b --repeats 20
    python bench/publication.py --case delta --model embedded --repeats 20
    python bench/publication.py --case delta --model qwen3-8b-layer --repeats 20

`swap`: milliseconds to give an engine of its own parameters the trainer's new ones: checking (names, shapes, finite
values) and swapping, until the device is done; sequences that run keep their keys and values. `recompute_ms` is the
same where these are computed again. The limit is reading the new weights twice, once to check them, and writing them
once, at the bandwidth of a copy.

`delta`: `--repeats` updates at `--lr` in bfloat16 with float32 masters, a version after each, as generators of other
nodes get it: a difference to the last full version, or in full where that is too large. `ours` is the share of the
bytes, full versions among them. `qwen3-8b-layer` is one layer of that shape.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import (
    SHAPES,
    bandwidth,
    begin,
    emit,
    endless_tokenizer,
    model_of,
    parameter_count,
    parser_of,
    policy_of,
    random_sample,
)
from common import timed as timed_once

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.objective import Objective
from strop.base.view import SilentView
from strop.engines.protocol import KvMode, Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.policy import Policy, load_policy
from strop.model.settings import EMBEDDED, ModelSettings
from strop.orchestration.weight_store import WeightFile, difference, patched
from strop.training.embedded_base import located
from strop.training.packing import pack
from strop.training.settings import AdamW
from strop.training.step import Trainer


def main() -> None:
    """One line."""
    parser = parser_of(__doc__, ())
    parser.add_argument("--case", choices=("swap", "delta"), default="swap")
    parser.add_argument("--model", choices=(*SHAPES, EMBEDDED), default="3.4m")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--sequences", type=int, default=2, help="of 64 tokens, in an update of `delta`")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--running", type=int, default=64, help="sequences that run meanwhile")
    parser.add_argument("--context", type=int, default=256)
    given = parser.parse_args()
    begin(given)
    (swap if given.case == "swap" else delta)(given)


def delta(given: argparse.Namespace) -> None:
    """A version after each update, as it is sent to other nodes."""
    if given.model == EMBEDDED:
        settings = located(ModelSettings(path=EMBEDDED, dtype="bfloat16"), 0, SilentView())
        policy: Policy = load_policy(settings)[0]
    else:
        policy = policy_of(model_of(given.model, torch.bfloat16, given.device))
    rng = np.random.default_rng(3)
    trainer = Trainer(policy, Objective(PpoClip()), AdamW(lr=given.lr), 10_000, 1.0)
    base, sent = np.zeros(0, np.uint8), []
    seconds: dict[str, list[float]] = {"store": [], "difference": [], "apply": []}
    with tempfile.TemporaryDirectory() as folder:
        for version in range(given.repeats + 1):
            begin = time.perf_counter()
            stored = WeightFile(Path(folder, f"weights-{version}")).write(version, policy.weights().items())
            seconds["store"].append(time.perf_counter() - begin)
            content = np.memmap(stored.path, np.uint8, "r")
            Path(stored.path).unlink()
            begin = time.perf_counter()
            found = difference(base, content)
            sent.append(1.0 if found is None else len(found) / len(content))
            if found is None:
                base = content
            else:
                seconds["difference"].append(time.perf_counter() - begin)
                begin, start = time.perf_counter(), 0
                for piece in patched(base, found):
                    assert np.array_equal(np.frombuffer(piece, np.uint8), content[start : start + len(piece)])
                    start += len(piece)
                assert start == len(content)
                seconds["apply"].append(time.perf_counter() - begin)
            print(f"  version {version}: {sent[-1]:.4f}", file=sys.stderr, flush=True)
            samples = [random_sample(rng, 64, 8, policy.vocabulary, place) for place in range(given.sequences)]
            trainer.update(pack(samples, TokenMean(), 4096))
    after = sent[1:]  # the first version is full for everybody
    emit("publication", f"{given.model} delta at {given.lr:g}", statistics.fmean(after), 1.0, "full versions",
         "share of the bytes", device=given.device, bytes=stored.bytes,
         full_versions=sum(share == 1.0 for share in after),
         first_delta=min(after), largest_delta=max((share for share in after if share < 1), default=None),
         versions=len(after), threads=torch.get_num_threads(),
         **{f"{name}_s": statistics.median(spent) for name, spent in seconds.items() if spent})  # fmt: skip


def swap(given: argparse.Namespace) -> None:
    """Weights of an engine in this process."""
    model = model_of(given.model, getattr(torch, given.dtype), given.device)
    trainer = policy_of(model)
    settings = EngineSettings(
        slots=max(16, given.running), max_tokens=given.context + 2 * given.repeats + 8, share_parameters=False
    )
    engine = TorchEngine(trainer, endless_tokenizer(), settings)
    prompt = np.arange(given.context, dtype=np.int32) % 256
    sampling = Sampling(max_new_tokens=2 * given.repeats + 8)
    engine.submit(Request("x", prompt, sampling, seed=0, n=given.running))
    engine.step()
    versions = itertools.count(1)

    def publish(kv: KvMode) -> float:
        engine.step()
        spent = timed_once(lambda: engine.update_weights(trainer.weights(), next(versions), kv), given.device)
        return 1000 * spent.wall

    milliseconds: dict[KvMode, float] = {}
    for kv in ("keep", "recompute"):
        publish(kv)
        milliseconds[kv] = statistics.median(publish(kv) for _ in range(given.repeats))
    size = parameter_count(model) * next(model.parameters()).element_size()
    emit("publication", f"{given.model} {given.dtype}", milliseconds["keep"], None, None, "ms",
         1000 * 3 * size / bandwidth(given.device), device=given.device, bytes=size,
         recompute_ms=milliseconds["recompute"])  # fmt: skip


if __name__ == "__main__":
    main()
