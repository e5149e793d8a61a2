"""Settings of vLLM; imports neither torch nor transformers, nor vllm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from strop.base.types import InputError
from strop.engines.protocol import Capabilities, Sampling
from strop.engines.settings import EngineSettings

PYTHON_VARIABLE = "STROP_VLLM_PYTHON"
LEAST_TEMPERATURE = 0.01  # vLLM raises lower ones to this

# What the adapter itself tells vLLM, and the setting that says so where there is one.
OWN_ARGUMENTS = {
    "model": "model.path",
    "tokenizer": "model.path",
    "trust_remote_code": "model.trust_remote_code",
    "hf_overrides": "model.generator_fp32_head",
    "dtype": "engine.dtype",
    "max_model_len": "engine.max_tokens",
    "max_num_seqs": "engine.slots",
    "max_num_batched_tokens": "engine.prefill_tokens",
    "tensor_parallel_size": "engine.tensor_parallel",
    "gpu_memory_utilization": "engine.memory_fraction",
    "kv_cache_memory_bytes": "engine.kv_cache_gib",
    "enable_prefix_caching": "engine.prefix_caching",
    "enforce_eager": "engine.eager",
    "skip_tokenizer_init": None,
    "logprobs_mode": None,
    "generation_config": None,
    "async_scheduling": None,
    "worker_extension_cls": None,
    "speculative_config": None,
    "enable_lora": None,
    "load_format": None,
    "data_parallel_size": None,
    "pipeline_parallel_size": None,
}


class Vllm(EngineSettings):
    """vLLM in its own process: `engine=Vllm` generates with it. It always has a copy of the parameters.

    Attributes:
        python: the interpreter of an environment with vLLM; None: what the variable STROP_VLLM_PYTHON names.
        tensor_parallel: GPUs that share a layer.
        memory_fraction: of a GPU's memory, for weights and KV cache; leave room for a trainer on the same GPU.
        kv_cache_gib: GiB of KV cache; None: what `memory_fraction` leaves, on a CPU 1.
        prefix_caching: samples of one prompt share its keys and values; never across versions.
        eager: neither compile nor capture graphs: starts sooner and decodes slower.
        start_seconds: after which a worker that is not ready is given up.
        reply_seconds: after which a worker that does not answer is given up.
        arguments: further arguments of vLLM's EngineArgs, as they are, e.g. {block_size = 32}.
    """

    share_parameters: Literal[False] = False
    shrink: Literal[True] = True
    native: Literal[True] = True
    python: str | None = None
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85
    kv_cache_gib: Annotated[float, Field(gt=0)] | None = None
    prefix_caching: bool = True
    eager: bool = False
    start_seconds: Annotated[float, Field(gt=0)] = 900.0
    reply_seconds: Annotated[float, Field(gt=0)] = 300.0
    arguments: dict[str, Any] = {}

    def refuse_unable(self, sampling: Sampling) -> None:
        """Refuse thinking budgets, interruptions, and a temperature that vLLM would change."""
        Capabilities(max_tokens=0, interruptions=False).refuse_unable(sampling)
        if 0 < sampling.temperature < LEAST_TEMPERATURE:
            raise InputError(
                f"sampling.temperature={sampling.temperature}: vLLM samples at {LEAST_TEMPERATURE} at least; set 0 "
                "for greedy decoding"
            )

    def interpreter(self) -> str:
        """The interpreter of the environment with vLLM.

        Raises:
            InputError: none is named, or there is none where it is named.
        """
        named = self.python or os.environ.get(PYTHON_VARIABLE)
        if not named:
            raise InputError(
                "engine=Vllm: name the interpreter of an environment with vLLM: engine.python=/path/to/bin/python, or "
                f"the variable {PYTHON_VARIABLE} (docs/vllm.md)"
            )
        path = Path(named).expanduser()
        if not path.is_file() or not os.access(path, os.X_OK):
            raise InputError(f"engine.python={named}: there is no such interpreter")
        return str(path)

    @field_validator("arguments")
    @classmethod
    def _not_our_own(cls, given: dict[str, Any]) -> dict[str, Any]:
        for name in sorted(given.keys() & OWN_ARGUMENTS.keys()):
            way_out = f"set {OWN_ARGUMENTS[name]} instead" if OWN_ARGUMENTS[name] else "the engine depends on its own"
            raise ValueError(f"{name} is not to be given here: {way_out}")
        return given
