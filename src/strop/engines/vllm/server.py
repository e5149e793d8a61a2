"""vLLM's server: how strop starts `vllm serve`, and a client of its HTTP interface.

Requests and answers are JSON, a sequence comes as a stream of chunks. The pool of httpx compares all pairs of
connections, which takes seconds for 256 requests. Here each request gets a pool of one connection, and leaves it to a
later one.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from strop.base import machine
from strop.base.machine import cuda_visible
from strop.base.types import ExpertArray, FloatArray, InputError, IntArray, StropError
from strop.engines.base import RequestLimits
from strop.engines.protocol import EngineLost
from strop.engines.settings import MEMORY_FRACTION, Vllm
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

    `place` is its working folder, with its log; it is removed with the program, unless that has failed.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], place: Path) -> None:
        self.place = place
        self._failed = False
        # Linux shares the processor among sessions: in its own one, a busy server would keep this process waiting.
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=place,
                process_group=0,
            )

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.place / "log.txt"

    @property
    def pid(self) -> int:
        """The program's process id, which is its group's too."""
        return self._process.pid

    @property
    def socket(self) -> Path:
        """`SOCKET` in its working folder, by a path that is short wherever that folder is."""
        return Path(f"/proc/{self.pid}/cwd/{SOCKET}")

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def failed(self) -> str:
        """End it without waiting; returns its exit status, the first error in its log and the log's path."""
        with suppress(subprocess.TimeoutExpired):  # a connection breaks before its process is gone
            self._process.wait(0.5)
        code, self._failed = self._process.returncode, True
        self._release()
        said = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip() and "WARNING" not in line]
        errors = [found[0] for line in lines if (found := re.search(r"\w+(Error|Exception): .*", line))]
        words = " | ".join(errors[:1] or lines[-_TAIL_LINES:]) or "nothing"
        ending = "" if code is None else f"; it ended with code {code}"
        if code is not None and code < 0:
            ending = f"; it was killed by {signal.Signals(-code).name}"
        return f"{ending}; its log, {self.log}, says: {words}"

    def stop(self) -> None:
        """End it and everything it has started; its folder goes too, unless its log says why it failed."""
        self._release()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):  # it has just gone
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if not self._failed:
            shutil.rmtree(self.place, ignore_errors=True)

    def _release(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


SOCKET = "socket"  # in the server's folder: a file that only this user can open, where it listens
# The endpoints that pause and load are those of development mode. Nothing is sent to other servers. A socket's path has
# room for 107 bytes, and a batch system's TMPDIR may be longer: paths of sockets are relative to the server's folder.
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_RPC_BASE_PATH": ".",
}  # fmt: skip
# The variables of this process that a server has too: those of the user's session, compilers, proxies, GPU libraries.
_PASSED = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "LIBRARY_PATH", "CPATH", "CC", "CXX", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
}  # fmt: skip
_PASSED_FAMILIES = (
    "LC_", "XDG_", "SSL_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "HIP_", "ROCR_", "HF_", "VLLM_", "TRITON_",
    "TORCHINDUCTOR_", "FLASHINFER_",
)  # fmt: skip


def start(settings: Vllm, folder: Path, arguments: dict[str, Any], gpus: Sequence[int] | None) -> GuardedProcess:
    """Start a server of the model in `folder`, on `gpus` (None: those that this process may see).

    Raises:
        InputError: no interpreter is named, or there is none where it is named.
    """
    python = settings.interpreter()
    place = Path(tempfile.mkdtemp(prefix="strop-vllm-"))
    # vLLM finds what it has compiled before by the path of the model, among others, so every server of a model gets
    # the same one: a link in the server's working folder.
    model = f"model-{hashlib.sha256((folder / 'config.json').read_bytes()).hexdigest()[:12]}"
    (place / model).symlink_to(folder.absolute())
    # -I: neither our PYTHONPATH nor the working folder may stand in the way of what the other environment has.
    command = [python, "-I", "-m", "vllm.entrypoints.cli.main", "serve", model, "--uds", SOCKET]
    return GuardedProcess([*command, *flags(arguments)], environment_of(settings, gpus), place)


def environment_of(settings: Vllm, gpus: Sequence[int] | None) -> dict[str, str]:
    """The environment of a server: what it needs of this process's, and what is set for every server.

    What strop sets for its own processes, and launchers for theirs, is not for it. With strop's allocator setting
    (`PYTORCH_ALLOC_CONF=expandable_segments:True`) a tensor-parallel server would end at its start, because vLLM's
    custom all-reduce does not work with it.
    """
    kept = {n: v for n, v in os.environ.items() if n.upper() in _PASSED or n.startswith(_PASSED_FAMILIES)}
    kept.pop("VLLM_API_KEY", None)  # the key of some other server, which this one would ask us for
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
        "tensor_parallel_size": settings.tensor_parallel,
        "gpu_memory_utilization": settings.memory_fraction or MEMORY_FRACTION,
        "enable_prefix_caching": True, "enforce_eager": settings.eager,
        "enable_return_routed_experts": model.replay_routing,
        "logprobs_mode": "processed_logprobs",  # of logits / temperature; vLLM's default leaves the temperature out
        "generation_config": "vllm",  # or the model's own top-p and temperature would be mixed in
        # A head that is tied to the embedding is served as its own weight: where loading packs copies of the
        # weights (on CPUs), a reload would leave a tied one behind at the version before.
        "hf_overrides": {"tie_word_embeddings": False, "head_dtype": head},
    }  # fmt: skip
    if settings.kv_cache_gib is not None:
        known["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * machine.GIB)
    elif not machine.has_gpu():  # the CPU build would ask for its fraction of all memory, and end where less is free
        known["kv_cache_memory_bytes"] = int((settings.memory_fraction or MEMORY_FRACTION) * machine.memory()[1] / 2)
    return known | settings.arguments


def flags(arguments: dict[str, Any]) -> Iterator[str]:
    """Arguments as a command line has them: `--name value`; `--name` or `--no-name` for a truth value."""
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", value if isinstance(value, str) else json.dumps(value))


Json = dict[str, Any]
GENERATE = "/inference/v1/generate"
LOWEST = -9999.0  # what vLLM sends for a log-prob that is not finite
REST_SECONDS = 2.0  # after which a connection is not used again; the server closes it after 5


@dataclass(frozen=True)
class Chunk:
    """Tokens that a request drew, and their log-probs where they were asked for.

    The last one has a `reason` (stop, length or abort) and `spans`: which version drew what, as (version, start, end).
    A server that records experts sends with it those of every computed token, int16 [tokens, decoder layers, k].
    """

    token_ids: list[int]
    logprobs: list[float]
    reason: str | None
    spans: list[tuple[int, int, int]]
    experts: ExpertArray | None


class Client:
    """A server at the URL `name`, or behind the socket file `socket`; messages call it `name`.

    Raises, from every coroutine:
        EngineLost: the server cannot be reached, does not answer within `seconds`, or answers with its own error
            (5xx) or with what cannot be read.
        StropError: it refuses what it is asked.
    """

    def __init__(self, name: str, socket: Path | None, key: str | None, seconds: float) -> None:
        self._name, self._socket, self._seconds = name, socket, seconds
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._context: ssl.SSLContext | bool = httpx.create_ssl_context() if socket is None else False
        self._patient = httpx.Timeout(seconds, read=None)  # the engine ends silent streams
        self._idle: list[httpx.AsyncClient] = []

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            await self._idle.pop().aclose()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client with one connection, for one request; one that fails is not used again."""
        one = self._idle.pop() if self._idle else self._new()
        try:
            yield one
        except BaseException:
            await one.aclose()
            raise
        self._idle.append(one)

    def _new(self) -> httpx.AsyncClient:
        uds = None if self._socket is None else str(self._socket)
        limits = httpx.Limits(max_connections=1, keepalive_expiry=REST_SECONDS)
        transport = httpx.AsyncHTTPTransport(verify=self._context, uds=uds, limits=limits)
        url = self._name if self._socket is None else "http://localhost"
        return httpx.AsyncClient(base_url=url, transport=transport, headers=self._headers, timeout=self._seconds)

    async def ready(self) -> bool:
        """Whether the server can be reached and serves."""
        with suppress(httpx.TransportError):
            async with self._connection() as http:
                return (await http.get("/health", timeout=5.0)).status_code == 200
        return False

    async def ask(self, path: str, body: Json | None = None, method: str = "POST", **parameters: str) -> Json:
        """The server's answer to a request with a JSON body, or with parameters in its URL."""
        with self._understood(path):
            async with self._connection() as http:
                answer = await http.request(method, path, json=body, params=parameters)
            await self._refuse(answer, path)
            return dict(answer.json() if answer.content else {})

    async def abort(self, names: list[str]) -> None:
        """End requests; their streams end with the reason `abort`. Unknown ones are ignored."""
        await self.ask("/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-{name}" for name in names]})

    async def generate(self, body: Json) -> AsyncIterator[Chunk]:
        """Draw a sequence."""
        with self._understood(GENERATE):
            async with (
                self._connection() as http,
                http.stream("POST", GENERATE, json=body, timeout=self._patient) as answer,
            ):
                await self._refuse(answer, GENERATE)
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield _chunk(json.loads(line.removeprefix("data: ")))

    async def logprobs(self, ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of the tokens [L] after the first, at temperature 1."""
        params = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False, "ignore_eos": True}
        found = await self.ask(GENERATE, {"token_ids": ids.tolist(), "sampling_params": params})
        with self._understood(GENERATE):
            places = zip(found["prompt_logprobs"][1:], ids[1:], strict=True)
            return np.array([place[str(token)]["logprob"] for place, token in places], np.float32)

    async def refuse_unfit(self, max_tokens: int, experts: bool) -> None:
        """Raise `InputError` for a server, not of our making, with other log-probs, shorter sequences or no experts."""
        found = await self.ask("/server_info", method="GET", config_format="json")
        with self._understood("/server_info"):
            model, records = found["vllm_config"]["model_config"], found["vllm_config"]["aux_output_config"]
            mode, longest = model["logprobs_mode"], model["max_model_len"]
            unrecorded = experts and not records["enable_return_routed_experts"]
        if mode != "processed_logprobs" or longest < max_tokens:
            wanted = f"start it with processed_logprobs and {max_tokens} or more, or lower engine.max_tokens"
            raise InputError(f"{self._name} has --logprobs-mode {mode} and --max-model-len {longest}: {wanted}")
        if unrecorded:
            raise InputError(f"{self._name}: model.replay_routing needs a server with --enable-return-routed-experts")

    async def _refuse(self, answer: httpx.Response, path: str) -> None:
        if answer.status_code != 200:
            await answer.aread()
            said = f"{self._name} answered {answer.status_code} to {path}: {' '.join(answer.text.split())[:300]}"
            raise EngineLost(said) if answer.status_code >= 500 else StropError(said)

    @contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """Turn failures of the connection, and answers of another shape than we know, into `EngineLost`."""
        try:
            yield
        except httpx.TransportError as error:
            raise EngineLost(f"{self._name} did not answer {path} ({type(error).__name__})") from error
        except (ValueError, LookupError, TypeError) as error:
            raise EngineLost(f"{self._name} answered {path} with what cannot be read ({error!r})") from error


def _chunk(found: Json) -> Chunk:
    """A message of a stream. Raises `KeyError` or `ValueError` for one that is no chunk, such as an error's."""
    (choice,) = found["choices"]
    logprobs, spans, experts = choice["logprobs"], choice["weight_versions"], choice["routed_experts"]
    return Chunk(
        choice["token_ids"] or [],
        [] if logprobs is None else [one["logprob"] for one in logprobs["content"]],
        choice["finish_reason"],
        [(int(span["version"]), span["start"], span["end"]) for span in spans or ()],
        None if experts is None else np.load(io.BytesIO(base64.b64decode(experts))).astype(np.int16),
    )
