"""The process in which vLLM runs. Started by path with the interpreter of vLLM's own environment.

It imports the standard library, and inside functions vllm and the torch that vllm brings; nothing of strop. It obeys
one command at a time, over a socket: a frame is a JSON header and raw bytes, nothing is pickled. Nothing is sampled but
by `step` (and by `verify` and `score`, which have to step too): a change of weights always falls between two tokens.

    worker.py FD PARENT      FD: the socket; PARENT: the process id that started it, whose death is its own

Commands: start, step, update, verify, score, stop. The other side, which says what they mean, is
`engine.VllmEngine`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import traceback
from array import array
from collections.abc import Callable, Iterator
from typing import Any

MOST_BYTES = 1 << 30  # of a frame; more is a mistake, not a message
_HEAD = struct.Struct(">IQ")
_PR_SET_PDEATHSIG = 1
_PROBE = "probe"  # keys of samples are numbers


class Closed(Exception):
    """The other side has gone."""


class Frames:
    """Frames over a connected socket: a JSON object, and any number of byte strings that follow it.

    On the wire: bytes of the header, bytes of the whole rest (big-endian), the header, the byte strings. Their lengths
    stand in the header under `blobs`.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, header: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> None:
        """Raises `Closed` where nobody listens, `TimeoutError` after the socket's own time."""
        text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
        try:
            self._socket.sendall(b"".join((_HEAD.pack(len(text), sum(map(len, blobs))), text, *blobs)))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """Raises `Closed` at the end, `TimeoutError` after the socket's own time, `ValueError` for what is no frame."""
        length, rest = _HEAD.unpack(self._exactly(_HEAD.size))
        if length + rest > MOST_BYTES:
            raise ValueError(f"a frame of {length + rest} bytes")
        header = json.loads(self._exactly(length))
        body = self._exactly(rest)
        blobs, at = [], 0
        for size in header.pop("blobs"):
            blobs.append(body[at : at + size])
            at += size
        if at != rest:
            raise ValueError(f"byte strings of {at} bytes in all, {rest} were announced")
        return header, blobs

    def _exactly(self, count: int) -> bytes:
        parts, missing = [], count
        while missing:
            try:
                part = self._socket.recv(min(missing, 1 << 20))
            except ConnectionResetError as error:
                raise Closed from error
            if not part:
                raise Closed
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


class Refused(Exception):
    """A command that was not carried out, and has changed nothing."""


class StropExtension:
    """What vLLM mixes into its own worker class (`worker_extension_cls`), once in every process that holds a shard."""

    def strop_load(self, path: str) -> list[str]:
        """Load every parameter from a safetensors file; names of vLLM's parameters that the file left as they were."""
        from safetensors import safe_open

        worker: Any = self

        def tensors() -> Iterator[tuple[str, Any]]:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dictionary)
                    yield name, file.get_tensor(name)

        return _reload(worker.model_runner.get_model(), worker.vllm_config, worker.model_config, tensors())

    def strop_score_at(self, temperature: float) -> bool:
        """Have the log-probs of prompts be of logits / temperature; False where this vLLM is built otherwise.

        vLLM gives them at temperature 1 alone. The two ways are those of its first and second model runner.
        """
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if hasattr(runner, "_get_prompt_logprobs_dict"):
            owner, name = runner, "_get_prompt_logprobs_dict"
        elif hasattr(runner, "prompt_logprobs_worker"):
            owner, name = runner.prompt_logprobs_worker, "compute_prompt_logprobs"
        else:
            return False
        vars(owner).pop(name, None)
        if temperature != 1:
            scored = _first_scored if owner is runner else _second_scored
            setattr(owner, name, functools.partial(scored, owner, getattr(type(owner), name), temperature))
        return True


def _reload(model: Any, vllm_config: Any, model_config: Any, tensors: Iterator[tuple[str, Any]]) -> list[str]:
    """Load every parameter; names of vLLM's parameters that `tensors` left as they were."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    parameters = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    # The way of vLLM's own weight transfer: it undoes what was packed at start-up, loads, and packs again.
    with set_current_vllm_config(vllm_config), torch.no_grad():
        _unset_expert_kernels(model)
        initialize_layerwise_reload(model)
        loaded = model.load_weights(tensors)
        finalize_layerwise_reload(model, model_config)
        _pack_shared_again(model)
    torch.accelerator.synchronize()
    known = {parameters[name] for name in loaded if name in parameters}
    return sorted(name for name, identity in parameters.items() if name not in loaded and identity not in known)


def _first_scored(runner: Any, method: Any, temperature: float, *arguments: Any) -> Any:
    """The first model runner's prompts, its sampler's log-softmax dividing meanwhile; samples are not taken in it."""
    plain = runner.sampler.compute_logprobs
    runner.sampler.compute_logprobs = lambda logits: plain(logits.float() / temperature)
    try:
        return method(runner, *arguments)
    finally:
        del runner.sampler.compute_logprobs


def _second_scored(worker: Any, method: Any, temperature: float, compute_logits: Any, *arguments: Any) -> Any:
    """The second model runner's prompts: it is told how to compute their logits."""
    return method(worker, lambda hidden: compute_logits(hidden).float() / temperature, *arguments)


def _unset_expert_kernels(model: Any) -> None:
    """On a CPU: have every mixture of experts set up its kernel again, as at the start.

    A reload finds the kernel there and copies the plain weights over the packed ones, which is garbage. On GPUs vLLM
    needs the kernel to stay, for its captured graphs, and packs nothing behind its back.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if hasattr(module, "quant_method") and hasattr(module.quant_method, "moe_kernel"):
            module.quant_method.moe_kernel = None


def _pack_shared_again(model: Any) -> None:
    """Pack again every module that computes with another module's parameter.

    A head tied to the embedding is not in the file, so that a reload passes it by: where packing copies the weights (on
    CPUs) it would go on with those of the version before.
    """
    seen: set[int] = set()
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        if weight.data_ptr() in seen and weight.numel() and hasattr(module, "quant_method"):
            module.quant_method.process_weights_after_loading(module)
        seen.add(weight.data_ptr())


def _record_whole_distribution() -> bool:
    """Make vLLM record log-probs before top-k and top-p cut the distribution; False where this vLLM is built otherwise.

    With `processed_logprobs` they are of logits / temperature, but of what top-k and top-p leave. The two samplers
    below are those of vLLM's first and second model runner.
    """
    import torch

    try:
        from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
        from vllm.v1.worker.gpu.sample.sampler import Sampler

        second = Sampler._sample_random
        first_init = TopKTopPSampler.__init__
    except (ImportError, AttributeError):
        return False

    def init(self: Any, *args: Any, **options: Any) -> None:
        first_init(self, *args, **options)
        inner = self.forward

        def forward(logits: torch.Tensor, generators: Any, k: Any, p: Any) -> tuple[torch.Tensor, Any]:
            if k is None and p is None:
                return inner(logits, generators, k, p)
            whole = logits.log_softmax(-1, dtype=torch.float32)
            return inner(logits, generators, k, p)[0], whole

        self.forward = forward

    def sample_random(self: Any, logits: torch.Tensor, a: Any, b: Any, c: Any, k: Any, p: Any, fused: Any) -> Any:
        whole = logits if k is None and p is None else logits.clone()
        return second(self, logits, a, b, c, k, p, fused)[0], whole

    TopKTopPSampler.__init__ = init
    Sampler._sample_random = sample_random
    return True


Blobs = tuple[bytes, ...]
Reply = tuple[dict[str, Any], Blobs]


class Server:
    """vLLM's synchronous engine behind the commands."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._salt = ""

    def start(self, header: dict[str, Any], blobs: list[bytes]) -> Reply:
        """Load the model. `arguments` are those of vLLM's EngineArgs; `cpu` what is added to them on a CPU."""
        whole = _record_whole_distribution()
        import vllm
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = {**header["arguments"], "worker_extension_cls": f"{__name__}.StropExtension"}
        if current_platform.is_cpu():
            arguments = {**header["cpu"], **arguments}
        self._llm = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._salt = str(header["version"])
        return {
            "vllm": vllm.__version__,
            "platform": current_platform.device_name,
            "vocabulary": self._llm.model_config.get_vocab_size(),
            "whole_distribution": whole,
            "most_logprobs": self._llm.model_config.max_logprobs,
        }, ()

    def step(self, header: dict[str, Any], blobs: list[bytes]) -> Reply:
        """Forget `abort`, take in `add`, and sample a token for every running sequence."""
        self._llm.abort_request([str(key) for key in header["abort"]])
        for added, ids in zip(header["add"], blobs, strict=True):
            self._add(added, array("i", ids).tolist())
        return self._sampled(self._llm.step())

    def update(self, header: dict[str, Any], blobs: list[bytes]) -> Reply:
        """Load the file at `path`, whose hash must be `blake2b`; forget `abort` and, with kv "recompute", the cache."""
        with open(header["path"], "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
        if found != header["blake2b"]:
            raise Refused("the file of the weights is not the one that was announced")
        self._llm.abort_request([str(key) for key in header["abort"]])
        missed = {name for names in self._llm.collective_rpc("strop_load", args=(header["path"],)) for name in names}
        self._loaded(header, missed)
        return {}, ()

    def _loaded(self, header: dict[str, Any], missed: set[str]) -> None:
        if missed:
            raise RuntimeError(f"vLLM left {len(missed)} parameters as they were, such as {min(missed)}")
        if header["kv"] == "recompute":
            self._llm.reset_prefix_cache(reset_running_requests=True)
        # What is cached of prompts is of older weights: it stays with the sequences that use it, and is found no more.
        self._salt = str(header["version"])

    def verify(self, header: dict[str, Any], blobs: list[bytes]) -> Reply:
        """Log-probs of a prompt; and what running sequences sampled meanwhile, as a `step` would report it."""
        answer, arrays, found = self._scored(header["abort"], blobs, 0)
        return answer, (*arrays, *found[:1])

    def score(self, header: dict[str, Any], blobs: list[bytes]) -> Reply:
        """Log-probs of prompts at a `temperature`, with ids and log-probs of the `top` best tokens in each place.

        Three byte strings of all prompts one after the other; and what running sequences sampled meanwhile.
        """
        if not all(self._llm.collective_rpc("strop_score_at", args=(header["temperature"],))):
            raise Refused("this vLLM scores given tokens at temperature 1 alone; ask for that")
        try:
            answer, arrays, found = self._scored(header["abort"], blobs, header["top"])
        finally:
            self._llm.collective_rpc("strop_score_at", args=(1.0,))
        return answer, (*arrays, *found)

    def _scored(self, abort: list[int], blobs: list[bytes], top: int) -> tuple[dict[str, Any], Blobs, Blobs]:
        """What running sequences sampled meanwhile, as a `step` reports it; and the prompts' scores."""
        from vllm import SamplingParams

        self._llm.abort_request([str(key) for key in abort])
        prompts = [array("i", blob).tolist() for blob in blobs]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=top, detokenize=False, ignore_eos=True)
        found: dict[str, Any] = {}
        for number, ids in enumerate(prompts):
            self._llm.add_request(f"{_PROBE}{number}", self._prompt(ids, _PROBE + self._salt), params)
        meanwhile = []
        while len(found) < len(prompts):
            for output in self._llm.step():
                if not output.request_id.startswith(_PROBE):
                    meanwhile.append(output)
                elif output.finished:
                    found[output.request_id] = output.prompt_logprobs
        logprobs, ids_of_best, best = array("f"), array("i"), array("f")
        for number, ids in enumerate(prompts):
            for place, token in zip(found[f"{_PROBE}{number}"][1:], ids[1:], strict=True):
                logprobs.append(place[token].logprob)
                # The token itself is there too, wherever it stands.
                ranked = sorted((one.rank, other, one.logprob) for other, one in place.items())[:top]
                ids_of_best.extend(other for _, other, _ in ranked)
                best.extend(value for _, _, value in ranked)
        answer, arrays = self._sampled(meanwhile)
        return answer, arrays, (logprobs.tobytes(), ids_of_best.tobytes(), best.tobytes())

    def _prompt(self, ids: list[int], salt: str) -> Any:
        return {"type": "token", "prompt_token_ids": ids, "cache_salt": salt}

    def _add(self, added: dict[str, Any], ids: list[int]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=added["temperature"],
            top_p=added["top_p"],
            top_k=added["top_k"],
            seed=added["seed"],
            max_tokens=added["max_tokens"],
            stop_token_ids=added["stop_token_ids"],
            ignore_eos=True,  # the ids above are all there are
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._llm.add_request(str(added["key"]), self._prompt(ids, self._salt), params)

    def _sampled(self, outputs: list[Any]) -> Reply:
        """Keys, tokens and log-probs, aligned; `finished` gives vLLM's own reason by key."""
        keys, tokens, logprobs = array("q"), array("i"), array("f")
        finished: dict[str, str] = {}
        for output in outputs:
            (completion,) = output.outputs
            for place, token in enumerate(completion.token_ids):
                start = completion.logprobs.start_indices[place]
                assert completion.logprobs.token_ids[start] == token
                keys.append(int(output.request_id))
                tokens.append(token)
                logprobs.append(completion.logprobs.logprobs[start])
            if completion.finish_reason is not None:
                finished[output.request_id] = str(completion.finish_reason)
        return {"finished": finished}, (keys.tobytes(), tokens.tobytes(), logprobs.tobytes())


def serve(frames: Frames) -> None:
    """Answer commands until `stop` or the other side's end."""
    server = Server()
    commands: dict[str, Callable[[dict[str, Any], list[bytes]], Reply]] = {
        "start": server.start,
        "step": server.step,
        "update": server.update,
        "verify": server.verify,
        "score": server.score,
    }
    while True:
        try:
            header, blobs = frames.receive()
        except Closed:
            return
        name = header.pop("command")
        if name == "stop":
            return
        try:
            answer, arrays = commands[name](header, blobs)
            frames.send({"outcome": "done", **answer}, arrays)
        except Refused as error:
            frames.send({"outcome": "refused", "reason": str(error)})
        except Exception as error:  # whatever vLLM raises belongs to the other side; the trace is in the log
            traceback.print_exc()
            frames.send({"outcome": "failed", "reason": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Tie this process to its parent's life, and serve."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    serve(Frames(socket.socket(fileno=descriptor)))
    # vLLM's own way out takes seconds; what it has started goes with this process's group.
    os._exit(0)


if __name__ == "__main__":
    main()
