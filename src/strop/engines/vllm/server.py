"""How strop starts `vllm serve`: the interpreter, the flags, the variables."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from strop.base.guarded_process import GuardedProcess
from strop.base.machine import cuda_visible
from strop.engines.requests import Limits
from strop.engines.vllm.settings import Vllm
from strop.model.settings import DTypeName, ModelSettings

SOCKET = "socket"  # in the server's folder: a file that only this user can open, where it listens
# The endpoints that pause and load are those of development mode. Nothing asks a server of anybody.
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}  # fmt: skip


def start(settings: Vllm, folder: Path, arguments: dict[str, Any], gpus: Sequence[int] | None) -> GuardedProcess:
    """Start a server of the model in `folder`, on `gpus` (None: those that this process may see).

    Raises:
        InputError: no interpreter is named, or there is none where it is named.
    """
    python = settings.interpreter()
    place = Path(tempfile.mkdtemp(prefix="strop-vllm-"))
    # -I: neither our PYTHONPATH nor the working folder may stand in the way of what the other environment has.
    command = [python, "-I", "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--uds", str(place / SOCKET)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | ENVIRONMENT
    if settings.eager:
        environment["TORCHDYNAMO_DISABLE"] = "1"
    environment |= {} if gpus is None else cuda_visible(gpus)
    return GuardedProcess([*command, *flags(arguments)], environment, place)


def arguments_of(settings: Vllm, model: ModelSettings, dtype: DTypeName, limits: Limits) -> dict[str, Any]:
    """The arguments of `vllm serve`, with underscores."""
    head = "float32" if model.generator_fp32_head else "model"
    known: dict[str, Any] = {
        "enable_scale_out": True, "skip_tokenizer_init": True, "disable_uvicorn_access_log": True, "seed": 0,
        "disable_log_stats": True,  # counted for every token of every sequence, and nobody asks for them
        "trust_remote_code": model.trust_remote_code, "dtype": dtype, "max_model_len": limits.max_tokens,
        "max_num_seqs": settings.slots + 1,  # a place for the probe of `verify_weights`
        "max_num_batched_tokens": max(settings.prefill_tokens, settings.slots + 1),
        "tensor_parallel_size": settings.tensor_parallel, "gpu_memory_utilization": settings.memory_fraction,
        "enable_prefix_caching": settings.prefix_caching, "enforce_eager": settings.eager,
        "enable_return_routed_experts": model.replay_routing,
        "logprobs_mode": "processed_logprobs",  # of logits / temperature; vLLM's default leaves the temperature out
        "generation_config": "vllm",  # or the model's own top-p and temperature would be mixed in
        # A head that is tied to the embedding is served as a weight of its own: where loading packs copies of the
        # weights (on CPUs), a reload would leave a tied one behind at the version before.
        "hf_overrides": {"tie_word_embeddings": False, "head_dtype": head},
    }  # fmt: skip
    if settings.kv_cache_gib is not None:
        known["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * 2**30)
    return known | settings.arguments


def flags(arguments: dict[str, Any]) -> Iterator[str]:
    """Arguments as a command line has them: `--name value`; `--name` or `--no-name` for a truth value."""
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", value if isinstance(value, str) else json.dumps(value))
