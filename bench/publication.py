"""Publication within a process: milliseconds to give an engine of its own parameters the trainer's new ones.

    python bench/publication.py --device cuda --model qwen3-1.7b
    python bench/publication.py --model 3.4m

Checking (names, shapes, every value finite) and swapping, until the device is done; sequences that run keep their keys
and values. `recompute_ms` is the same where these are computed again. The limit is reading the new weights twice, once
to check them, and writing them once, at the bandwidth of a copy.
"""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import torch
from common import (
    bandwidth,
    begin,
    emit,
    endless_tokenizer,
    model_of,
    parameter_count,
    parser_of,
    policy_of,
    shape_or_folder,
)
from common import timed as timed_once

from strop.engines.protocol import KvMode, Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine


def main() -> None:
    """One line."""
    parser = parser_of(__doc__, ())
    parser.add_argument("--model", type=shape_or_folder, default="3.4m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--running", type=int, default=64, help="sequences that run meanwhile")
    parser.add_argument("--context", type=int, default=256)
    given = parser.parse_args()
    begin(given)
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
