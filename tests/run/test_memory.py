"""The estimated memory of an update, compared with the peak of real updates in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config

from strop.model.files import empty_model
from strop.model.policy import Policy, meta_policy
from strop.model.settings import FreshModel, ModelSettings
from strop.run.update_memory import BatchSizes, update_need

MEASURE = Path(__file__).parents[2] / "bench" / "peers" / "update_memory_worker.py"
# So that memory that is given back is seen to be: by itself glibc keeps some for what comes next.
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
SHAPE: dict[str, Any] = {
    "hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 3, "num_attention_heads": 10,
    "num_key_value_heads": 5, "head_dim": 64, "vocab_size": 24_576, "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}  # fmt: skip
LENGTHS = [128, 100, 28]


@pytest.mark.timeout(600)  # a processor without products of bfloat16 takes minutes for an update in it
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32", "gradient_checkpointing": True},
        {"dtype": "bfloat16", "lora": {"rank": 16}, "cpu_kernels": False, "chunk_tokens": 512},
    ],
    ids=["float32, checkpointed", "bfloat16, LoRA, plain layers"],
)
def test_the_estimate_is_near_the_peak_of_updates(settings: dict[str, Any]) -> None:
    what = {"device": "cpu", "shape": SHAPE, "settings": {"chunk_tokens": 128, **settings}, "lengths": LENGTHS}
    command = [sys.executable, str(MEASURE), json.dumps(what)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **AT_ONCE})
    measured = json.loads(done.stdout)["bytes"]
    model = ModelSettings.model_validate(what["settings"])
    policy = Policy(empty_model(Qwen3Config(**SHAPE), model), model)
    if model.lora is not None:
        policy.adapt(model.lora, 0)
    assert sum(update_need(policy, BatchSizes.of(LENGTHS), "cpu").values()) == pytest.approx(measured, rel=0.15)


def test_a_mixture_of_experts_is_looked_at_too() -> None:
    model = ModelSettings(fresh=FreshModel(experts=8, experts_per_token=2, layers=2), dtype="bfloat16")
    one, two = (update_need(meta_policy(model), BatchSizes.of([tokens]), "cuda") for tokens in (512, 4096))
    assert one["weights"] == two["weights"] and one["activations"] < two["activations"]
