"""How strop starts `vllm serve`: the interpreter, the flags, the variables."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.base.machine import cuda_visible
from strop.engines.base import RequestLimits
from strop.engines.settings import Vllm
from strop.model.settings import DTypeName, ModelSettings

_GRACE_SECONDS = 5.0
_GUARD = (
    f'exec 3<&0 </dev/null; (trap "" TERM; read -r _ <&3; kill -TERM 0; sleep {_GRACE_SECONDS:g}; kill -KILL 0) & '
    'exec "$@" 3<&-'
)
_TAIL_BYTES = 20_000
_TAIL_LINES = 3


class GuardedProcess:
    """`command` in its own process group, so that Ctrl-C at the terminal is not for it.

    `place` is a folder for it, with its log; it is removed with the program, unless that has failed.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], place: Path) -> None:
        self.place = place
        self._failed = False
        # Linux shares the processor among sessions: in its own one, a busy server would keep this process waiting.
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )

    @property
    def _log(self) -> Path:
        return self.place / "log.txt"

    @property
    def pid(self) -> int:
        """The program's process id, which is its group's too."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def failed(self) -> str:
        """End it without waiting; returns its exit status, the first error in its log and the log's path."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # a connection breaks before its process is gone
            self._process.wait(0.5)
        code, self._failed = self._process.returncode, True
        self._release()
        said = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip() and "WARNING" not in line]
        errors = [found[0] for line in lines if (found := re.search(r"\w+(Error|Exception): .*", line))]
        words = " | ".join(errors[:1] or lines[-_TAIL_LINES:]) or "nothing"
        ending = "" if code is None else f"; it ended with code {code}"
        if code is not None and code < 0:
            ending = f"; it was killed by {signal.Signals(-code).name}"
        return f"{ending}; its log, {self._log}, says: {words}"

    def stop(self) -> None:
        """End it and everything it has started; its folder goes too, unless its log says why it failed."""
        self._release()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # it has just gone
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if not self._failed:
            shutil.rmtree(self.place, ignore_errors=True)

    def _release(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


SOCKET = "socket"  # in the server's folder: a file that only this user can open, where it listens
# The endpoints that pause and load are those of development mode. Nothing is sent to other servers.
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
    return GuardedProcess([*command, *flags(arguments)], environment_of(settings, gpus), place)


def environment_of(settings: Vllm, gpus: Sequence[int] | None) -> dict[str, str]:
    """The environment of a server: this process's, without what is meant for its Python and its torch.

    strop's own allocator setting (`PYTORCH_ALLOC_CONF=expandable_segments:True`) would end a tensor-parallel server at
    its start: vLLM's custom all-reduce does not work with it.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTORCH_"))}
    eager = {"TORCHDYNAMO_DISABLE": "1"} if settings.eager else {}
    return {**kept, **ENVIRONMENT, **eager, **({} if gpus is None else cuda_visible(gpus))}


def arguments_of(settings: Vllm, model: ModelSettings, dtype: DTypeName, limits: RequestLimits) -> dict[str, Any]:
    """The arguments of `vllm serve`, with underscores."""
    head = "float32" if model.generator_fp32_head else "model"
    known: dict[str, Any] = {
        "enable_scale_out": True, "skip_tokenizer_init": True, "disable_uvicorn_access_log": True, "seed": 0,
        "disable_log_stats": True,  # they are counted for every token, and strop does not read them
        "trust_remote_code": model.trust_remote_code, "dtype": dtype, "max_model_len": limits.max_tokens,
        "max_num_seqs": settings.slots + 1,  # a place for the probe of `verify_weights`
        "max_num_batched_tokens": max(settings.prefill_tokens, settings.slots + 1),
        "tensor_parallel_size": settings.tensor_parallel, "gpu_memory_utilization": settings.memory_fraction,
        "enable_prefix_caching": True, "enforce_eager": settings.eager,
        "enable_return_routed_experts": model.replay_routing,
        "logprobs_mode": "processed_logprobs",  # of logits / temperature; vLLM's default leaves the temperature out
        "generation_config": "vllm",  # or the model's own top-p and temperature would be mixed in
        # A head that is tied to the embedding is served as its own weight: where loading packs copies of the
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
