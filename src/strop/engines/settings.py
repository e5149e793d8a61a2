"""Settings of the engines: the embedded one and vLLM. Imports neither torch, nor transformers, nor vllm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from strop.base.pieces import OneOrMore, Piece
from strop.base.types import InputError
from strop.engines.protocol import Sampling
from strop.model.settings import DTypeName


class EngineSettings(Piece):
    """The engine that generates. This class is `Torch`, the embedded engine.

    Attributes:
        slots: sequences that run at once. At least 16: in smaller float32 matrix products a row's result depends on
            the number of rows, so that completions would depend on their neighbours.
        max_tokens: longest prompt + completion; None takes the model's own limit.
        dtype: type of the engine's own copy of the parameters; None keeps the policy's.
        share_parameters: read the trainer's own parameters (after an update the owner calls `set_version`), or own
            a copy that `update_weights` fills.
        prefill_tokens: prompt tokens computed in one forward pass at most (a longer prompt goes by itself).
        kept_mib: MiB for copies of keys and values of trajectories that wait for their environment and whose slots are
            needed. Those without room are computed again, which changes the last digits of log-probs. 0: none is kept.
        shrink: decode only as many rows as there are running sequences (a multiple of 16); False always decodes all
            slots, for machines whose matrix products change with the number of rows.
        native: on a CPU, compute attention, norms and the draw with kernels in C, which the machine's compiler builds
            at first use. Without a compiler, or if False, the model's modules compute: equal, but slower.
    """

    slots: Annotated[int, Field(ge=16)] = 64
    max_tokens: Annotated[int, Field(ge=2)] | None = None
    dtype: DTypeName | None = None
    share_parameters: bool = True
    prefill_tokens: Annotated[int, Field(ge=16)] = 8192
    kept_mib: Annotated[int, Field(ge=0)] = 1024
    shrink: bool = True
    native: bool = True

    @property
    def quantises(self) -> bool:
        """Whether it draws from weights or caches of fewer bits than those that it is given."""
        return False

    def refuse_unable(self, sampling: Sampling) -> None:
        """Refuse, before an engine is started, sampling that it cannot do.

        Raises:
            InputError: naming the setting.
        """

    @classmethod
    def piece_name(cls) -> str:
        """`Torch`; other engines go by their own name."""
        return "Torch" if cls is EngineSettings else super().piece_name()


PYTHON_VARIABLE = "STROP_VLLM_PYTHON"
MEMORY_FRACTION = 0.85  # of a GPU that a server has for itself
LEAST_TEMPERATURE = 0.01  # vLLM raises lower ones to this

# The arguments that strop gives to `vllm serve`, and the setting that decides each, where there is one.
OWN_ARGUMENTS = {
    "model": "model.path", "hf_overrides": "model.generator_fp32_head", "kv_cache_memory_bytes": "engine.kv_cache_gib",
    "tokenizer": "model.path", "skip_tokenizer_init": None, "data_parallel_size": None, "pipeline_parallel_size": None,
    "trust_remote_code": "model.trust_remote_code", "enable_prefix_caching": None,
    "enable_return_routed_experts": "model.replay_routing", "gpu_memory_utilization": "engine.memory_fraction",
    "dtype": "engine.dtype", "logprobs_mode": None, "generation_config": None, "enable_scale_out": None,
    "max_model_len": "engine.max_tokens", "max_num_seqs": "engine.slots", "enforce_eager": "engine.eager",
    "max_num_batched_tokens": "engine.prefill_tokens", "tensor_parallel_size": "engine.tensor_parallel", "uds": None,
}  # fmt: skip


class Vllm(EngineSettings):
    """vLLM's server as the engine. It always has a copy of the parameters.

    Attributes:
        python: the interpreter of an environment with vLLM; None: what the variable STROP_VLLM_PYTHON names.
        urls: servers that run already, one for each generator; none: strop starts one for each (docs/vllm.md).
        api_key_env: the environment variable that holds the key of those servers; None sends none.
        weights_folder: a folder that this machine and the server both see, through which weights are sent. None sends
            them in memory, which a server on the same machine can read.
        tensor_parallel: GPUs that share a layer.
        memory_fraction: of a GPU's memory, for weights and KV cache; None: 0.85, or what others on the same GPU leave.
        kv_cache_gib: GiB of KV cache; None: what `memory_fraction` leaves, or without a GPU half of that fraction of
            what is free.
        eager: do not compile or capture graphs: starts sooner and decodes slower.
        start_seconds: how long a server may take to start.
        reply_seconds: how long a server may take to answer or to draw a token.
        arguments: further arguments of `vllm serve`, with underscores, e.g. {block_size = 32}.
    """

    share_parameters: Literal[False] = False
    shrink: Literal[True] = True
    native: Literal[True] = True
    python: str | None = None
    urls: OneOrMore[Annotated[str, Field(pattern=r"^https?://")]] = ()
    api_key_env: str | None = None
    weights_folder: str | None = None
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    kv_cache_gib: Annotated[float, Field(gt=0)] | None = None
    eager: bool = False
    start_seconds: Annotated[float, Field(gt=0)] = 900.0
    reply_seconds: Annotated[float, Field(gt=0)] = 300.0
    arguments: dict[str, Any] = {}

    @property
    def quantises(self) -> bool:
        """Whether `arguments` say so."""
        return "quantization" in self.arguments or self.arguments.get("kv_cache_dtype", "auto") != "auto"

    def refuse_unable(self, sampling: Sampling) -> None:
        """Refuse a temperature that vLLM would change."""
        if 0 < sampling.temperature < LEAST_TEMPERATURE:
            way_out = f"vLLM samples at {LEAST_TEMPERATURE} at least; set 0 for greedy decoding"
            raise InputError(f"sampling.temperature={sampling.temperature}: {way_out}")

    def interpreter(self) -> str:
        """The interpreter of the environment with vLLM that starts servers.

        Raises:
            InputError: none is named, or there is none where it is named.
        """
        named = self.python or os.environ.get(PYTHON_VARIABLE)
        path = Path(named or "").expanduser()
        if named and path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
        what = f"engine.python={named}: there is no such interpreter" if named else "engine=Vllm: it has no interpreter"
        way_out = f"name that of an environment with vLLM by engine.python=/path/to/bin/python or {PYTHON_VARIABLE}"
        raise InputError(f"{what}; {way_out}, or servers that run already by engine.urls (docs/vllm.md)")

    @field_validator("arguments")
    @classmethod
    def _not_our_own(cls, given: dict[str, Any]) -> dict[str, Any]:
        for name in sorted(given.keys() & OWN_ARGUMENTS.keys()):
            way_out = f"set {OWN_ARGUMENTS[name]} instead" if OWN_ARGUMENTS[name] else "strop depends on its own"
            raise ValueError(f"{name} is not to be given here: {way_out}")
        return given
