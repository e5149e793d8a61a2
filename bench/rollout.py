"""Rollout: useful completion tokens a second of the embedded engine, beside other ways to sample them.

    python bench/rollout.py                                        # transformers' generate, batches of the same memory
    python bench/rollout.py --peer continuous --sequences 64       # transformers' continuous batching
    python bench/rollout.py --peer vllm --peer-python PYTHON
    python bench/rollout.py --model FOLDER --peer llamacpp --peer-python PYTHON --gguf FILE       # xllamacpp is there
    python bench/rollout.py --device cuda --case decode --model qwen3-0.6b

The long-tailed case: `--sequences` completions, eight a prompt, of log-normal lengths up to `--longest`, on a model of
random weights; float32, bfloat16, and the one over the other. `generate` runs batches of as many rows as the engine has
slots, so that both hold equally many keys and values, each until its longest row is done, and without log-probs.
The limit is the time that the matrix products and the reading of each token's keys and values would take on their own;
a step whose products take less than reading the weights takes as long as that, where no cache holds them.
The decode case: so many running sequences of so much context; the limit is reading weights, keys and values
once a step at the bandwidth of a copy.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from common import (
    OtherProcess,
    Spent,
    bandwidth,
    begin,
    emit,
    endless_tokenizer,
    interleaved,
    kv_bytes_a_token,
    long_tailed,
    matrix_rate,
    model_of,
    parameter_count,
    parser_of,
    policy_of,
    shape_or_folder,
    timed,
)  # fmt: skip
from numpy.typing import NDArray
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine

GROUP = 8
DECODE = ((256, 1024), (64, 4096), (16, 16_384))
CACHED = 64 << 20  # bytes of weights that caches may hold between two steps
Work = list[tuple[list[int], int]]  # prompt ids, completion tokens


def work_of(sequences: int, longest: int, vocabulary: int) -> Work:
    """Prompts of 16 to 64 tokens, each for a group of completions, and how long every completion is."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, vocabulary, int(rng.integers(16, 65))).tolist() for _ in range(-(-sequences // GROUP))]
    return [(prompts[place // GROUP], length) for place, length in enumerate(long_tailed(sequences, longest))]


def engine_of(model: PreTrainedModel, slots: int, tokens: int) -> TorchEngine:
    """An engine over a model of its own."""
    return TorchEngine(policy_of(model), endless_tokenizer(), EngineSettings(slots=slots, max_tokens=tokens))


def ours(engine: TorchEngine, work: Work, device: str) -> Callable[[], Spent]:
    """Sample everything with the embedded engine."""

    def run() -> None:
        for place, (prompt, length) in enumerate(work):
            sampling = Sampling(max_new_tokens=length)
            engine.submit(Request(str(place), np.array(prompt, np.int32), sampling, seed=place))
        tokens = 0
        while engine.unfinished:
            tokens += sum(len(completion.token_ids) for completion in engine.step())
        assert tokens == sum(length for _, length in work)

    return lambda: timed(run, device)


def generate(model: PreTrainedModel, work: Work, rows: int, device: str) -> Callable[[], Spent]:
    """Sample everything with `generate`, `rows` sequences at a time, prompts padded on the left."""

    def run() -> None:
        for start in range(0, len(work), rows):
            batch = work[start : start + rows]
            width = max(len(prompt) for prompt, _ in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch], device=device)
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch], device=device)
            with torch.inference_mode():
                model.generate(
                    ids, attention_mask=mask, do_sample=True, top_k=0, top_p=1.0, pad_token_id=0,
                    max_new_tokens=max(length for _, length in batch),
                )  # fmt: skip

    return lambda: timed(run, device)


def continuous(
    model: PreTrainedModel, work: Work, rows: int, device: str, open_until: ExitStack
) -> Callable[[], Spent]:
    """Sample everything with transformers' continuous batching; its cache has room for `rows` of the longest."""
    longest = max(len(prompt) + length for prompt, length in work)
    manager = model.init_continuous_batching(
        GenerationConfig(do_sample=True, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0),
        # Left to itself it takes nine tenths of the memory that is free.
        ContinuousBatchingConfig(
            page_size=32, num_blocks=rows * -(-longest // 32), max_batch_tokens=2048, max_requests_per_batch=rows
        ),
    )
    manager.start()
    open_until.callback(manager.stop, block=True)
    runs = itertools.count()

    def run() -> None:
        number = next(runs)
        for place, (prompt, length) in enumerate(work):
            manager.add_request(prompt, request_id=f"{number}-{place}", max_new_tokens=length)
        done = 0
        for result in manager:
            if result.is_finished():
                assert len(result.generated_tokens) == work[int(result.request_id.partition("-")[2])][1]
                done += 1
                if done == len(work):
                    return
        raise SystemExit("transformers' continuous batching ended before its work was done")

    return lambda: timed(run, device)


def vllm(
    model: PreTrainedModel, work: Work, rows: int, given: argparse.Namespace, folder: Path,
    environment: dict[str, str], seeds: bool = False, arguments: dict[str, object] | None = None,
) -> OtherProcess:  # fmt: skip
    """Sample everything with vLLM, in its own virtual environment; with `seeds` each sequence has one of its own.

    `arguments` are further ones of vLLM's `LLM`.
    """
    model.save_pretrained(folder)
    what = {
        "model": str(folder), "dtype": str(next(model.parameters()).dtype).removeprefix("torch."), "rows": rows,
        "work": work, "tokens": max(len(prompt) + length for prompt, length in work), "eager": given.device == "cpu",
        "seeds": seeds, "arguments": arguments or {},
        "kv_bytes": 2 * rows * kv_bytes_a_token(model) * max(len(prompt) + length for prompt, length in work),
    }  # fmt: skip
    return OtherProcess(given.peer_python, "vllm_worker.py", what, environment)


def llamacpp(work: Work, rows: int, given: argparse.Namespace) -> OtherProcess:
    """Sample everything with llama.cpp, from the same weights as GGUF; without log-probs."""
    what = {
        "gguf": str(given.gguf), "rows": rows, "work": work, "threads": torch.get_num_threads(),
        "tokens": max(len(prompt) + length for prompt, length in work),
    }  # fmt: skip
    return OtherProcess(given.peer_python, "llama_worker.py", what, {})


def rows_of_steps(lengths: Sequence[int], slots: int) -> NDArray[np.int64]:
    """How many sequences run in each step where a slot that has become free gets the next one."""
    free = [0] * slots  # the step from which on each slot is free
    changes = np.zeros(sum(lengths) + 1, np.int64)
    for length in lengths:
        begin = heapq.heappop(free)
        heapq.heappush(free, begin + length)
        changes[begin] += 1
        changes[begin + length] -= 1
    return changes.cumsum()[: max(free)]


def least_seconds(
    model: PreTrainedModel, work: Work, slots: int, dtype: torch.dtype, device: str
) -> tuple[float, float, float]:
    """Seconds that the matrix products of all tokens, reading their keys and values, and all of it together cannot go
    below: a step reads the weights once at least, from memory where no cache holds them."""
    rows = rows_of_steps([length for _, length in work], slots)
    count, speed = parameter_count(model), bandwidth(device)
    weights = count * dtype.itemsize
    products = 2 * count * rows / matrix_rate(dtype, device)
    steps = np.maximum(products, weights / speed) if weights > CACHED else products
    read = sum(length * (len(prompt) + (length + 1) / 2) for prompt, length in work) * kv_bytes_a_token(model) / speed
    return float(products.sum()), read, float(steps.sum()) + read


def side_of(given: argparse.Namespace, dtype: torch.dtype, slots: int) -> tuple[Callable[[], Spent], Work]:
    """Our engine of one precision, on a model of its own, and what it is to sample."""
    model = model_of(given.model, dtype, given.device)
    work = work_of(given.sequences, given.longest, model.config.vocab_size)
    return ours(engine_of(model, slots, 64 + given.longest), work, given.device), work


def long_tail(given: argparse.Namespace, dtype: torch.dtype, slots: int) -> None:
    """One precision and number of slots."""
    model = model_of(given.model, dtype, given.device)
    own, work = side_of(given, dtype, slots)
    tokens = sum(length for _, length in work)
    sides = {"ours": own}
    with ExitStack() as stack:
        if given.peer == "generate":
            sides["peer"] = generate(model, work, slots, given.device)
        elif given.peer == "continuous":
            sides["peer"] = continuous(model, work, slots, given.device, stack)
        elif given.peer == "vllm":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # its processor seconds are those of the worker
            other = vllm(model, work, slots, given, Path(folder), one_process)
            stack.callback(other.close)
            sides["peer"] = other.spent
        elif given.peer == "llamacpp":
            other = llamacpp(work, slots, given)
            stack.callback(other.close)
            sides["peer"] = other.spent
        found = interleaved(sides, given.repeats, given.patience)
    rates = {name: tokens / spent.wall for name, spent in found.items()}
    products, reading, least = least_seconds(model, work, slots, dtype, given.device)
    emit(
        "rollout", f"long tail {given.model} {given.sequences} sequences {slots} slots {str(dtype)[6:]}", rates["ours"],
        rates.get("peer"), None if given.peer == "none" else given.peer, "tokens/s", tokens / least,
        found["peer"].cpu / found["ours"].cpu if "peer" in found else None, ours_cpu_s=found["ours"].cpu,
        products_s=products, reading_s=reading, device=given.device, threads=torch.get_num_threads(),
        runs=found["ours"].runs, peer_runs=found["peer"].runs if "peer" in found else None,
    )  # fmt: skip


def precisions(given: argparse.Namespace, slots: int) -> None:
    """Ours in bfloat16 against ours in float32, which take turns."""
    sides: dict[str, Callable[[], Spent]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        sides[str(dtype)[6:]], work = side_of(given, dtype, slots)
    found = interleaved(sides, given.repeats, given.patience)
    half, single = found["bfloat16"], found["float32"]
    tokens = sum(length for _, length in work)
    emit(
        "rollout", f"bfloat16 over float32 {given.model} {given.sequences} sequences {slots} slots", tokens / half.wall,
        tokens / single.wall, "ours in float32", "tokens/s", None, single.cpu / half.cpu, ours_cpu_s=half.cpu,
        device=given.device, threads=torch.get_num_threads(), runs=half.runs, peer_runs=single.runs,
    )  # fmt: skip


def decode(given: argparse.Namespace, dtype: torch.dtype, running: int, context: int) -> None:
    """Steps of `running` sequences that have `context` tokens each: milliseconds a step."""
    model = model_of(given.model, dtype, given.device)
    steps, warm = given.steps, 4
    engine = engine_of(model, running, context + warm + steps * (given.repeats + 1) + 1)
    rng = np.random.default_rng(0)
    sampling = Sampling(max_new_tokens=warm + steps * (given.repeats + 1))
    for place in range(running):  # each its own prompt: shared keys and values would be read from a cache
        prompt = rng.integers(0, model.config.vocab_size, context).astype(np.int32)
        engine.submit(Request(str(place), prompt, sampling, seed=place))
    for _ in range(warm):
        engine.step()

    def run() -> None:
        for _ in range(steps):
            engine.step()

    spent = interleaved({"ours": lambda: timed(run, given.device)}, given.repeats)["ours"]
    weights = parameter_count(model) * next(model.parameters()).element_size()
    middle = context + warm + steps * (given.repeats + 1) // 2
    least = (weights + running * middle * kv_bytes_a_token(model)) / bandwidth(given.device)
    emit(
        "rollout", f"decode {given.model} {running} x {context} {str(dtype)[6:]}", 1000 * spent.wall / steps, None,
        None, "ms a step", 1000 * least, device=given.device, tokens_per_second=running * steps / spent.wall,
    )  # fmt: skip


def main() -> None:
    """Run the cases asked for."""
    parser = parser_of(__doc__, ("generate", "continuous", "vllm", "llamacpp"))
    parser.add_argument("--case", choices=("long-tail", "decode"), default="long-tail")
    parser.add_argument("--model", type=shape_or_folder, default="3.4m", help="a shape, or a folder")
    parser.add_argument("--dtype", default="float32,bfloat16", help="precisions, one or both")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--slots", default="256", help="numbers of slots, and rows of a batch of `generate`")
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--shapes", default=",".join(f"{n}x{c}" for n, c in DECODE), help="of the decode case")
    parser.add_argument("--steps", type=int, default=16, help="of a timing of the decode case")
    parser.add_argument("--peer-python", type=Path, help="of a virtual environment that has vLLM or xllamacpp")
    parser.add_argument("--gguf", type=Path, help="the model for llama.cpp; peers/widen_gguf.py makes it bfloat16")
    given = parser.parse_args()
    if given.peer in ("vllm", "llamacpp") and given.peer_python is None:
        raise SystemExit(f"--peer {given.peer} wants --peer-python, the interpreter of an environment that has it")
    begin(given)
    dtypes = [getattr(torch, name) for name in given.dtype.split(",")]
    if given.case == "decode":
        for shape in given.shapes.split(","):
            for dtype in dtypes if given.device == "cpu" else [torch.bfloat16]:
                decode(given, dtype, *map(int, shape.split("x")))
        return
    for slots in map(int, given.slots.split(",")):
        for dtype in dtypes:
            long_tail(given, dtype, slots)
        if len(dtypes) == 2:
            precisions(given, slots)


if __name__ == "__main__":
    main()
