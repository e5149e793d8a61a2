"""From settings to what vLLM's EngineArgs are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strop.engines.requests import Limits
from strop.engines.vllm.settings import Vllm
from strop.model.settings import DTypeName, ModelSettings


def arguments_of(
    settings: Vllm, folder: Path, model: ModelSettings, dtype: DTypeName, limits: Limits
) -> dict[str, Any]:
    """The arguments of vLLM's EngineArgs."""
    head = "float32" if model.generator_fp32_head else "model"
    known: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "trust_remote_code": model.trust_remote_code,
        "dtype": dtype,
        "hf_overrides": {"head_dtype": head},
        "max_model_len": limits.max_tokens,
        "max_num_seqs": settings.slots + 1,  # a place for the probe of `verify_weights`
        "max_num_batched_tokens": max(settings.prefill_tokens, settings.slots + 1),
        "tensor_parallel_size": settings.tensor_parallel,
        "gpu_memory_utilization": settings.memory_fraction,
        "enable_prefix_caching": settings.prefix_caching,
        "logprobs_mode": "processed_logprobs",  # of logits / temperature; vLLM's default leaves the temperature out
        "generation_config": "vllm",  # or the model's own top-p and temperature would be mixed in
        "async_scheduling": False,  # or a step would report tokens of the one before
        "disable_log_stats": True,
        "seed": 0,
    }
    if settings.eager:
        known["enforce_eager"] = True
    if settings.kv_cache_gib is not None:
        known["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * 2**30)
    return known | settings.arguments
