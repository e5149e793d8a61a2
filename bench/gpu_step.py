"""Whole ScaleRL steps in one process, and where their time goes: generate, verify, update, publish.

    python bench/gpu_step.py --device cuda                      # Qwen3-0.6B shape, 48 prompts × 16, bfloat16
    python bench/gpu_step.py --device cuda --no-fp32-head       # the mismatch of generator and trainer without it

Prompts have the lengths of GSM8K's in their template (log-normal, about 100 tokens, 40 to 250), completions geometric
lengths of mean `--mean`, cut at `--longest`: random weights, arranged so that every token ends its completion with
probability 1 / mean. Every other completion counts as right, so that groups are trained on; CISPO, prompt-level loss,
advantages over the batch, AdamW and the float32 head are ScaleRL's. Everything is in one process (`max_lag` 0):
generation and training take turns on the device.

`mismatch` is the mean of |log π_train − log π_generator| over trained tokens, in nats, `mismatch_k3` the KL divergence;
both are of equal weights, for each step is generated after the update before it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import SHAPES, begin, dimensions_of, emit, matrix_rate, model_of, parameter_count, parser_of, synchronize
from step import ending_model

from strop.base import pieces
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.model.byte_tokenizer import byte_tokenizer
from strop.recipes.resolve import resolve
from strop.run.assembly import assemble
from strop.run.loop import Loop, StepRecord

VERDICT = "gpu_verdict"
PROBLEMS = 512
SHORTEST, LONGEST = 40, 250
WARM_UP = 1
Step = tuple[dict[str, float], StepRecord]


def write_problems(path: Path) -> None:
    """Questions of GSM8K's lengths, a token a byte."""
    rng = np.random.default_rng(5)
    lengths = np.clip(rng.lognormal(np.log(100), 0.35, PROBLEMS), SHORTEST, LONGEST).astype(int)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype=np.uint8)
    lines = [
        json.dumps({"prompt": f"{place} " + bytes(rng.choice(letters, length)).decode(), "answer": "0"})
        for place, length in enumerate(lengths)
    ]
    path.write_text("\n".join(lines) + "\n")


def config_of(folder: Path, given: argparse.Namespace) -> RunConfig:
    """ScaleRL on this model and these prompts."""
    return edit(
        resolve("scalerl"),
        [
            f"steps={WARM_UP + given.repeats + 1}", f"model.path={folder}", f"model.dtype={given.dtype}",
            f"model.gradient_checkpointing={str(given.checkpointing).lower()}",
            f"model.trainer_fp32_head={str(given.fp32_head).lower()}",
            f"model.generator_fp32_head={str(given.fp32_head).lower()}", f"device={given.device}",
            f"batch.prompts_per_step={given.prompts}", f"batch.samples_per_prompt={given.samples}",
            f"batch.tokens_per_microbatch={given.tokens}", f"sampling.max_new_tokens={given.longest}",
            "sampling.thinking_tokens=none", "sampling.answer_tokens=none", "sampling.interruption=none",
            "orchestration.max_lag=0", f"engine.slots={given.slots or given.prompts * given.samples}",
            f"engine.max_tokens={given.longest + LONGEST + 8}", f"data.source={folder / 'problems.jsonl'}",
            "data.template.piece=Plain", "data.held_out=none", "evaluation.every=none",
            "algorithm.truncation_mask=none", "verifier.piece=PythonFunction", f"verifier.function={VERDICT}:even",
            "verifier.isolation=none",
        ],
    )  # fmt: skip


def steps(loop: Loop, given: argparse.Namespace) -> list[Step]:
    """Seconds by section and the record of each step after those that warm up."""
    found: list[Step] = []
    for number in range(WARM_UP + given.repeats):
        loop.clock.lap()
        record = loop.next_step()
        synchronize(given.device)
        assert record is not None
        if number >= WARM_UP:
            found.append((loop.clock.lap(), record))
    return found


def report(given: argparse.Namespace, found: list[Step], rate: float, began: float) -> None:
    """One line."""
    skeleton = model_of(given.model, torch.float32, "meta")
    seconds = {name: statistics.median(lap[name] for lap, _ in found) for name in found[0][0]}
    rows = [record.metrics for _, record in found]
    rollouts = [[rollout for group in record.groups for rollout in group.rollouts] for _, record in found]
    generated = statistics.median(sum(len(one.completion.token_ids) for one in step) for step in rollouts)
    trained = statistics.median(float(row["tokens"] or 0.0) for row in rows)
    # Of the update alone, attention left out: prompts go through the layers, trained tokens through the head as well.
    d = dimensions_of(skeleton)
    operations = 3 * (d.forward_operations([1], 0) * trained + 2 * d.hidden * d.vocabulary * generated)
    emit(
        "gpu_step", f"ScaleRL {given.model} {given.prompts} x {given.samples} {given.dtype}", seconds["step"], None,
        None, "s", None, **{f"{name}_s": value for name, value in seconds.items() if name != "step"},
        **{f"{name}_share": value / seconds["step"] for name, value in seconds.items() if name != "step"},
        publish_s=statistics.median(float(row["seconds/publish"] or 0.0) for row in rows),
        completion_tokens=generated, update_tokens=trained, generate_tokens_per_s=generated / seconds["rollout"],
        update_tokens_per_s=trained / seconds["update"], update_of_matrix_rate=operations / seconds["update"] / rate,
        mismatch=statistics.median(float(row["mismatch/mean"] or 0.0) for row in rows),
        mismatch_k3=statistics.median(float(row["mismatch/k3"] or 0.0) for row in rows), fp32_head=given.fp32_head,
        micro_batches=statistics.median(float(row["micro_batches"] or 0.0) for row in rows),
        peak_gib=torch.cuda.max_memory_allocated() / 2**30 if given.device == "cuda" else None,
        parameters=parameter_count(skeleton), steps=len(found), whole_bench_s=time.perf_counter() - began,
        device=given.device,
    )  # fmt: skip


def main() -> None:
    """Measure."""
    began = time.perf_counter()
    parser = parser_of(__doc__, ("none",))
    parser.add_argument("--model", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--mean", type=int, default=250, help="of the completions' lengths")
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a micro-batch")
    parser.add_argument("--slots", type=int, help="sequences that generate at a time; all by default")
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again in backward")
    parser.add_argument("--fp32-head", action=argparse.BooleanOptionalAction, default=True)
    parser.set_defaults(repeats=3)
    given = parser.parse_args()
    begin(given)
    rate = matrix_rate(getattr(torch, given.dtype), given.device)
    pieces.allow_module(VERDICT)
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dtype = getattr(torch, given.dtype)
        model = ending_model(given.model, dtype, tokenizer, given.mean, len(tokenizer), given.device)
        model.save_pretrained(folder)
        del model
        tokenizer.save_pretrained(folder)
        write_problems(folder / "problems.jsonl")
        config = config_of(folder, given)
        parts = assemble(config, SilentView())
        try:
            loop = Loop(config, parts.data.train, parts.executor, parts.judge, parts.learner, SilentView())
            report(given, steps(loop, given), rate, began)
        finally:
            parts.judge.close()


if __name__ == "__main__":
    main()
