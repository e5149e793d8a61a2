"""One measurement of bench/update_memory.py, in a process of its own: prints the peak memory of updates in bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import Cispo
from strop.algorithms.objective import Objective
from strop.base.machine import resident
from strop.base.sample import Sample
from strop.model.files import empty_model
from strop.model.policy import Policy
from strop.model.settings import ModelSettings
from strop.training.packing import pack
from strop.training.settings import AdamW
from strop.training.sharding import restore_buffers
from strop.training.step import Trainer

UPDATES = 2  # the moments are there from the first one's end on
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 256}  # to warm up


def policy_of(what: dict[str, Any], device: str | None) -> Policy:
    """The policy that is measured, with weights where `device` is not None, else on the meta device."""
    settings = ModelSettings.model_validate(what["settings"])
    model = empty_model(Qwen3Config(**what["shape"]), settings)
    if device is not None:
        model.to_empty(device=device)
        model.tie_weights()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.01)
        restore_buffers(model)
    policy = Policy(model, settings)
    if settings.lora is not None:
        policy.adapt(settings.lora, 0)
    return policy


def samples(lengths: list[int], vocabulary: int, times: int) -> list[Sample]:
    """Sequences of random tokens, all of them but the first trained, enough for so many micro-batches."""
    rng = np.random.default_rng(0)
    found = []
    for number, length in enumerate(lengths * times):
        trained = np.arange(length) > 0
        found.append(
            Sample(
                token_ids=rng.integers(0, vocabulary, length).astype(np.int32), trained=trained,
                logprobs=np.where(trained, -8.0, 0.0).astype(np.float32), advantages=trained.astype(np.float32),
                versions=np.where(trained, 0, -1).astype(np.int32), group=number, id=number,
            )  # fmt: skip
        )
    return found


def train(what: dict[str, Any]) -> None:
    """Some updates of two micro-batches each."""
    trainer = Trainer(policy_of(what, what["device"]), Objective(loss=Cispo()), AdamW(lr=1e-5), UPDATES)
    update = pack(samples(what["lengths"], what["shape"]["vocab_size"], 2), TokenMean(), sum(what["lengths"]))
    assert len(update.micro_batches) == 2
    for _ in range(UPDATES):
        trainer.update(update)


def main() -> None:
    """Measure, after the libraries have loaded what they load when they are first called."""
    what = json.loads(sys.argv[1])
    train({**what, "lengths": [32], "shape": {**what["shape"], **SMALL}})
    if what["device"] == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        train(what)
        peak = torch.cuda.max_memory_allocated() - before
    else:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        before = resident()
        train(what)
        peak = resident(peak=True) - before
    print(json.dumps({"bytes": peak}))


if __name__ == "__main__":
    main()
