"""The client of vLLM's server: completion tokens a second, beside vLLM's own offline `LLM.generate` in one process.

    python bench/vllm_client.py --peer-python PYTHON                                # 3.4M parameters, 256 sequences
    python bench/vllm_client.py --peer-python PYTHON --model qwen3-0.6b --sequences 32 --slots 32 --longest 128
    python bench/vllm_client.py --peer-python PYTHON --case publication

Both sample the same prompts to the same lengths from the same weights in the same precision, head included, with
log-probs and a seed for each sequence, each with vLLM's own choice of threads, warm, and take turns: what does not run
waits. The case `publication` is milliseconds to give the server new weights while sequences run, beside writing
as many bytes to memory and having them reloaded by the paused server; `pause_ms` of it are the stop between two tokens:
the rest of the steps that the server is in. This process has half the threads, as a generator beside a trainer.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import torch
from common import (
    Spent,
    begin,
    emit,
    endless_tokenizer,
    interleaved,
    kv_bytes_a_token,
    model_of,
    parser_of,
    policy_of,
    shape_or_folder,
    timed,
)  # fmt: skip
from rollout import Work, vllm, work_of
from transformers import PreTrainedModel

from strop.engines.build import build_engine
from strop.engines.protocol import Engine, Request, Sampling
from strop.engines.settings import Vllm
from strop.engines.vllm.engine import HEAD, VllmEngine
from strop.engines.vllm.server import SOCKET
from strop.model import tensor_file

COMPILES_NOTHING = {"TORCHDYNAMO_DISABLE": "1"}  # as a server with `engine.eager` has it

# The CPU build's worker ends where a sequence with a seed of its own has its prompt computed in parts.
WHOLE_PROMPTS: dict[str, object] = {"enable_chunked_prefill": False}


def client_of(model: PreTrainedModel, work: Work, slots: int, python: Path, eager: bool) -> VllmEngine:
    """The engine, whose server has the weights of `model`."""
    tokens = max(len(prompt) + length for prompt, length in work) + 8
    cache = 2 * slots * kv_bytes_a_token(model) * tokens / 2**30
    settings = Vllm(
        python=str(python), slots=slots, max_tokens=tokens, eager=eager, kv_cache_gib=max(cache, 0.1),
        arguments=WHOLE_PROMPTS,
    )  # fmt: skip
    policy = policy_of(model, generator_fp32_head=False)  # the peer's head is of the model's type too
    engine = build_engine(settings, policy.settings, endless_tokenizer(), policy)
    assert isinstance(engine, VllmEngine)
    sample(engine, [(prompt, 2) for prompt, _ in work])  # warm, as the peer is
    return engine


def sample(engine: Engine, work: Work) -> None:
    """Everything once."""
    for place, (prompt, length) in enumerate(work):
        engine.submit(Request(str(place), np.array(prompt, np.int32), Sampling(max_new_tokens=length), seed=place))
    tokens = 0
    while engine.unfinished:
        tokens += sum(len(completion.token_ids) for completion in engine.step())
    assert tokens == sum(length for _, length in work)


def keep_drawing(engine: VllmEngine, work: Work, round_: int) -> None:
    """Have all sequences in flight, with a token each."""
    if engine.health().running < len(work):
        for place, (prompt, _) in enumerate(work):
            sampling = Sampling(max_new_tokens=engine.capabilities.max_tokens - len(prompt))
            engine.submit(Request(f"{round_} {place}", np.array(prompt, np.int32), sampling, seed=place))
    for _ in range(20):
        engine.step()


def publish(engine: VllmEngine, model: PreTrainedModel, work: Work, device: str) -> dict[str, Spent]:
    """What an update, a copy of as many bytes to memory and a pause cost while sequences run, and the reload alone."""
    weights = dict(policy_of(model).weights())
    served = {HEAD: weights["model.embed_tokens.weight"]} | weights  # the server has a head of its own
    whole = b"".join(bytes(parts) for parts in tensor_file.parts(served))
    assert engine.server is not None
    transport = httpx.HTTPTransport(uds=str(engine.server.place / SOCKET))
    spent: dict[str, list[Spent]] = {"update": [], "copy": [], "pause": [], "reload": []}
    with httpx.Client(transport=transport, timeout=300) as server:
        for version in range(1, 6):
            keep_drawing(engine, work, 2 * version)
            spent["update"].append(timed(lambda at=version: engine.update_weights(weights, at), device))
            keep_drawing(engine, work, 2 * version + 1)
            # Both at once in memory, as in an update: memory that has just been freed is had sooner than other.
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                file = Path(folder, "model.safetensors")
                call = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
                spent["copy"].append(timed(lambda to=file: to.write_bytes(whole), device))
                spent["pause"].append(timed(lambda: server.post("http://s/sleep?level=0&mode=keep"), device))
                spent["reload"].append(timed(lambda of=call: server.post("http://s/collective_rpc", json=of), device))
            server.post("http://s/wake_up?tags=scheduling")
    return {name: statistics.median_low(runs) for name, runs in spent.items()}


def main() -> None:
    """One line."""
    parser = parser_of(__doc__, ("vllm",))
    parser.add_argument("--case", choices=("throughput", "publication"), default="throughput")
    parser.add_argument("--model", type=shape_or_folder, default="3.4m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--peer-python", type=Path, required=True)
    given = parser.parse_args()
    begin(given)
    model = model_of(given.model, getattr(torch, given.dtype), given.device)
    work = work_of(given.sequences, given.longest, model.config.vocab_size)
    tokens = sum(length for _, length in work)
    eager = given.device == "cpu"
    case = f"{given.case} {given.model} {given.sequences} sequences {given.slots} slots {given.dtype}"
    with ExitStack() as stack:
        engine = client_of(model, work, given.slots, given.peer_python, eager)
        stack.callback(engine.close)
        if given.case == "publication":
            torch.set_num_threads(max(torch.get_num_threads() // 2, 1))
            ms = {name: 1000 * one.wall for name, one in publish(engine, model, work, given.device).items()}
            emit(
                "vllm_client", case, ms["update"], ms["copy"] + ms["reload"], "copy and reload", "ms",
                device=given.device, copy_ms=ms["copy"], reload_ms=ms["reload"], pause_ms=ms["pause"],
            )  # fmt: skip
            return
        sides = {"ours": lambda: timed(lambda: sample(engine, work), given.device)}
        if given.peer == "vllm":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            environment = COMPILES_NOTHING if eager else {}
            alike = {**WHOLE_PROMPTS, "max_num_batched_tokens": engine.settings.prefill_tokens}
            other = vllm(model, work, given.slots, given, Path(folder), environment, seeds=True, arguments=alike)
            stack.callback(other.close)
            sides["peer"] = other.spent
        found = interleaved(sides, given.repeats, given.patience)
    rates = {name: tokens / spent.wall for name, spent in found.items()}
    emit(
        "vllm_client", case, rates["ours"], rates.get("peer"), "LLM.generate" if "peer" in rates else None, "tokens/s",
        device=given.device, runs=found["ours"].runs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
