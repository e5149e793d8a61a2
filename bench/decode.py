"""Decoding of the engine with pages: milliseconds a step beside the time that reading weights and KV would take.

    python bench/decode.py --device cuda                                     # Qwen3-0.6B and 1.7B, four shapes
    python bench/decode.py --device cuda --models qwen3-1.7b --shapes 64x16384 --tune
    python bench/decode.py --models tiny --shapes 16x40 --steps 2            # a CPU computes the same in small

First what must hold: attention over random pages against float64, and log-probs of sampled tokens against the policy's
own forward pass; the bench ends where they do not. Then, for so many running sequences of so much context each, whole
engine steps (host work included). The limit is reading all weights and every running sequence's keys and values once
at the bandwidth of a copy measured in the same run; `shares` are parts of the wall time of a step by kind of kernel,
what no kernel fills being `gaps`, and `waits` is what made the host wait in a step, if anything did. Sequences that
the GPU's memory cannot hold are left out, and the line says how many ran.
`--tune` times the attention kernel alone for several block sizes, warps and stages, and goes on with the best.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
from collections.abc import Callable

import numpy as np
import torch
from common import (
    SHAPES,
    bandwidth,
    begin,
    emit,
    endless_tokenizer,
    kv_bytes_a_token,
    model_of,
    parameter_count,
    parser_of,
    policy_of,
    synchronize,
    timed,
)  # fmt: skip
from torch import Tensor
from torch.autograd import DeviceType
from transformers import PreTrainedModel

from strop.engines.protocol import Request, Sampling
from strop.engines.torch import EngineSettings
from strop.engines.torch.decoder import heads_of
from strop.engines.torch.kernels import Heads, Kernels, LayerCache, kernels_for, plan
from strop.engines.torch.paged_engine import PagedEngine
from strop.model.policy import Packed, Policy

DECODE = ((1024, 1024), (256, 2048), (256, 4096), (64, 16_384))
WARM = 6
# Parts of kernels' names, first match counts.
KINDS = {
    "attention": ("attend_kernel", "join_kernel"),
    "sampling": ("blocks_kernel", "choose_kernel"),
    "layers": ("norm_kernel", "rotate_and_write", "gate_kernel"),
    "products": ("gemm", "gemv", "cutlass", "nvjet", "xmma", "splitk", "cublas"),
    "copies": ("memcpy", "memset"),
}


def pages_of(rows: int, tokens: int, page: int, heads: Heads, dtype: torch.dtype, device: str):
    """Random keys and values of `rows` rows of `tokens` tokens in shuffled pages, their table and their queries."""
    each = -(-tokens // page)
    shape = (rows * each + 1, heads.kv, page, heads.dim)
    cache = LayerCache(*(torch.randn(shape, dtype=dtype, device=device) for _ in range(2)))
    table = (torch.randperm(rows * each, device=device) + 1).view(rows, each).int()
    return cache, table, torch.randn(rows, heads.query, heads.dim, dtype=dtype, device=device)


def attended(query: Tensor, cache: LayerCache, table: Tensor, length: int, scale: float) -> Tensor:
    """Attention [H, D] of one row in float64."""
    group = query.shape[0] // cache.keys.shape[1]
    keys, values = (
        one[table.long()].double().transpose(0, 1).flatten(1, 2)[:, :length].repeat_interleave(group, 0)
        for one in cache
    )
    weights = (torch.einsum("hd,htd->ht", query.double(), keys) * scale).softmax(-1)
    return torch.einsum("ht,htd->hd", weights, values)


def check_attention(kernels: Kernels, heads: Heads, dtype: torch.dtype, given: argparse.Namespace) -> None:
    """‖found − float64‖ / ‖float64‖ over rows of every kind of length, output poisoned where the kernel leaves it."""
    longest = 40 if given.device == "cpu" else 5000
    lengths = [1, longest, given.page, given.page + 1, longest - 3, 0, longest // 2, 7]
    cache, table, query = pages_of(len(lengths), longest, given.page, heads, dtype, given.device)
    on_device = torch.tensor(lengths, dtype=torch.int32, device=given.device)
    scale, worst = heads.dim**-0.5, 0.0
    for processors in (1, 1000):  # whole rows, and rows divided
        how = plan(len(lengths), heads, longest, given.page, processors)
        found = kernels.attend(query, cache, table, on_device, scale, how).double()
        for row, length in enumerate(lengths):
            if not length:
                assert not found[row].any(), "an empty row attends to something"
                continue
            wanted = attended(query[row], cache, table[row], length, scale)
            worst = max(worst, float((found[row] - wanted).norm() / wanted.norm()))
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    emit("decode", f"attention against float64 {str(dtype)[6:]}", worst, None, None, "relative error", bound,
         device=given.device)  # fmt: skip
    if not worst < bound:
        raise SystemExit(f"attention differs from float64 by {worst}")


def check_forward(engine: PagedEngine, policy: Policy, name: str, given: argparse.Namespace) -> None:
    """Log-probs of sampled tokens against the policy's own forward pass over the whole sequences, in nats."""
    rng = np.random.default_rng(5)
    tokens = 8 if given.device == "cpu" else 48
    for place in range(8):
        prompt = rng.integers(0, policy.vocabulary, int(rng.integers(2, 20 if given.device == "cpu" else 400)))
        engine.submit(Request(f"check {place}", prompt.astype(np.int32), Sampling(max_new_tokens=tokens), seed=place))
    done = [completion for _ in iter(lambda: engine.unfinished, 0) for completion in engine.step()]
    gaps = []
    for completion in done:
        ids = [*completion.prompt_ids.tolist(), *completion.token_ids.tolist()]
        with torch.inference_mode():
            wanted = policy(Packed.whole([ids]).to(policy.device), 1.0)[0].float().cpu().numpy()
        gaps.append(np.abs(completion.logprobs - wanted[len(completion.prompt_ids) - 1 :]))
    worst, mean = float(np.concatenate(gaps).max()), float(np.concatenate(gaps).mean())
    bound = 1e-3 if policy.head_weight.dtype == torch.float32 else 0.5
    emit("decode", f"log-probs against the policy {name}", mean, None, None, "nats", device=given.device, worst=worst)
    if not worst < bound:
        raise SystemExit(f"log-probs of the engine differ from the policy's by {worst} nats")


def tuned(heads: Heads, rows: int, context: int, given: argparse.Namespace, rate: float) -> Kernels:
    """The attention kernel alone, for one layer and several tunings: GB/s of each; kernels with the best."""
    from strop.engines.torch.kernels.triton_attention import Tuning
    from strop.engines.torch.kernels.triton_kernels import TritonKernels

    processors = torch.cuda.get_device_properties(0).multi_processor_count
    cache, table, query = pages_of(rows, context, given.page, heads, torch.bfloat16, given.device)
    lengths = torch.full((rows,), context, dtype=torch.int32, device=given.device)
    how = plan(rows, heads, context, given.page, processors)
    read = rows * context * heads.kv * heads.dim * 2 * 2
    best: tuple[float, TritonKernels] | None = None
    for block, warps, stages in itertools.product((32, 64, 128), (2, 4, 8), (2, 3, 4)):
        if block > given.page:
            continue
        kernels = TritonKernels(Tuning(block, warps, stages))

        def attend(kernels: Kernels = kernels) -> Tensor:
            return kernels.attend(query, cache, table, lengths, heads.dim**-0.5, how)

        seconds = events(attend, 20)
        emit("decode", f"attention {rows} x {context} block {block} warps {warps} stages {stages}", read / seconds,
             None, None, "B/s", rate, splits=how.splits)  # fmt: skip
        if best is None or seconds < best[0]:
            best = seconds, kernels
    assert best is not None
    return best[1]


def events(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of `work` on the GPU, after three runs to warm up."""
    for _ in range(3):
        work()
    taken = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1000)
    return statistics.median(taken)


def shares(work: Callable[[], object], steps: int, wall: float) -> dict[str, float]:
    """Parts of `wall` seconds a step that each kind of kernel takes, of `steps` steps that `work` runs."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    found = dict.fromkeys((*KINDS, "other"), 0.0)
    for event in profile.key_averages():
        if event.device_type != DeviceType.CUDA or event.is_user_annotation:
            continue  # a launch carries the seconds of what it launched
        name = event.key.lower()
        kind = next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "other")
        found[kind] += event.self_device_time_total / 1e6 / steps / wall
    return {kind: round(part, 4) for kind, part in (*found.items(), ("gaps", 1 - sum(found.values())))}


def waits(work: Callable[[], object]) -> str | None:
    """The first thing in `work` that makes the host wait for the GPU beside reading steps queued before; None: none."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def fitting(running: int, tokens: int, model: PreTrainedModel, given: argparse.Namespace) -> int:
    """How many of the sequences fit into nine tenths of the memory that is free."""
    if given.device == "cpu":
        return running
    gc.collect()
    torch.cuda.empty_cache()
    each = -(-tokens // given.page) * given.page * kv_bytes_a_token(model)
    logits = 3 * 4 * model.config.vocab_size
    return min(running, max(16, int(0.9 * torch.cuda.mem_get_info()[0] / (each + logits)) // 16 * 16))


def decode(
    model: PreTrainedModel, kernels: Kernels, name: str, asked: int, context: int, given: argparse.Namespace,
    rate: float,
) -> None:  # fmt: skip
    """Steps of as many of `asked` sequences as fit, each of `context` tokens at first: prints the line."""
    timings = WARM + given.steps * (given.repeats + 2)
    running = fitting(asked, context + timings + 1, model, given)
    each = -(-(context + timings + 1) // given.page)
    settings = EngineSettings(
        slots=max(16, running), max_tokens=context + timings + 1, cache="paged", page_tokens=given.page,
        cache_pages=running * each + 1, prefill_tokens=8192,
    )  # fmt: skip
    engine = PagedEngine(policy_of(model), endless_tokenizer(), settings, kernels=kernels, graphs=given.graphs)
    rng = np.random.default_rng(0)
    for place in range(running):  # prompts of their own: shared pages would be read from the cache of the GPU
        prompt = rng.integers(0, model.config.vocab_size, context).astype(np.int32)
        engine.submit(Request(str(place), prompt, Sampling(max_new_tokens=timings), seed=place))

    def steps() -> None:
        for _ in range(given.steps):
            engine.step()

    spent = timed(lambda: [engine.step() for _ in range(WARM)], given.device)  # prompts, and the first steps
    walls = [timed(steps, given.device).wall / given.steps for _ in range(given.repeats)]
    step = statistics.median(walls)
    middle = context + WARM + given.steps * given.repeats / 2
    weights = parameter_count(model) * next(model.parameters()).element_size()
    least = (weights + running * middle * kv_bytes_a_token(model)) / rate
    more: dict[str, object] = {}
    if given.device == "cuda":
        more = {"shares": shares(steps, given.steps, step), "waits": waits(steps),
                "peak_gib": torch.cuda.max_memory_allocated() / 2**30}  # fmt: skip
    emit("decode", f"{name} {running} x {context} {str(next(model.parameters()).dtype)[6:]}", 1000 * step, None, None,
         "ms a step", 1000 * least, device=given.device, asked=asked, running=running, prompts_s=spent.wall,
         tokens_per_second=running / step, bandwidth=rate, spread=(max(walls) - min(walls)) / step, **more)  # fmt: skip
    engine.close()


def main() -> None:
    """Checks, then every model and shape asked for."""
    parser = parser_of(__doc__, ())
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-1.7b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--shapes", default=",".join(f"{n}x{c}" for n, c in DECODE), help="sequences x context")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=8, help="of one timing")
    parser.add_argument("--page", type=int, default=64, help="tokens of a page")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True, help="replay CUDA graphs")
    parser.add_argument("--tune", action="store_true", help="try the attention kernel in several forms first")
    given = parser.parse_args()
    begin(given)
    dtype, device = getattr(torch, given.dtype), torch.device(given.device)
    rate = bandwidth(given.device, 256 if given.device == "cpu" else 2048)
    shapes = [tuple(map(int, shape.split("x"))) for shape in given.shapes.split(",")]
    for name in given.models.split(","):
        model = model_of(name, dtype, given.device)
        policy = policy_of(model)
        kernels = kernels_for(device, heads_of(policy))
        check_attention(kernels, heads_of(policy), dtype, given)
        settings = EngineSettings(slots=16, max_tokens=512, cache="paged", page_tokens=given.page, cache_memory=0.2)
        engine = PagedEngine(policy, endless_tokenizer(), settings, graphs=given.graphs)
        check_forward(engine, policy, name, given)
        engine.close()
        for running, context in shapes:
            if given.tune and given.device == "cuda":
                fits = fitting(running, context // model.config.num_hidden_layers + 1, model, given)
                kernels = tuned(heads_of(policy), fits, context, given, rate)
            synchronize(given.device)
            decode(model, kernels, name, running, context, given, rate)


if __name__ == "__main__":
    main()
