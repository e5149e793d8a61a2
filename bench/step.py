"""A whole GRPO step: generate, verify, update; seconds a step beside TRL's GRPOTrainer.

    python bench/step.py --trl-python PYTHON        # the interpreter of a virtual environment that has trl

Both train the same model in the same precision with as many threads, on the same prompts, 32 × 8 completions a step,
one update of all of them, without a reference policy. The model has 1.8M parameters and random weights, arranged so
that every token ends its completion with the probability 1 / `--mean`: lengths are geometric, up to `--longest`.
Rewards, which are then all 0 or nearly, cost what they cost: the last number of the text is compared with the sum.
`--mean 0` gives completions that all have `--longest` tokens, where refilling slots brings nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SHAPES, OtherProcess, Spent, begin, emit, interleaved, model_of, parameter_count, parser_of, timed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.model.byte_tokenizer import byte_tokenizer
from strop.recipes.resolve import resolve
from strop.run.assembly import assemble
from strop.run.loop import Loop

PROMPTS, SAMPLES = 32, 8
STEPS = 10_000


def ending_model(shape: str, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase, mean: int) -> PreTrainedModel:
    """A model that draws EOS with a probability of about 1 / mean whatever came before; never where `mean` is 0.

    Dimension 0 of the residual stream is a constant that no layer writes to or reads, and the head's row of EOS reads
    it alone, the other rows not at all.
    """
    model = model_of(shape, torch.float32, "cpu")
    embedding = model.get_input_embeddings().weight
    head = torch.nn.Linear(embedding.shape[1], embedding.shape[0], bias=False)
    model.config.tie_word_embeddings = False
    eos = tokenizer.eos_token_id
    with torch.no_grad():
        head.weight.copy_(torch.randn_like(embedding) * 0.02)
        head.weight[:, 0] = 0.0
        head.weight[eos] = 0.0
        embedding[:, 0] = 0.02
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.set_output_embeddings(head)
        ids = torch.randint(256, (8, 64))
        hidden = model.model(ids).last_hidden_state.reshape(-1, embedding.shape[1])
        others = (hidden @ head.weight.t()).exp().sum(-1).mean() - 1.0
        wanted = torch.log(others / (mean - 1)) if mean else torch.tensor(-40.0)
        head.weight[eos, 0] = wanted / hidden[:, 0].mean()
    model.config.eos_token_id = model.generation_config.eos_token_id = eos
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.to(dtype)


def config_of(folder: Path, given: argparse.Namespace) -> RunConfig:
    """The run that both sides make."""
    return edit(
        resolve("grpo"),
        [
            f"steps={STEPS}", f"model.path={folder}", f"model.dtype={given.dtype}", f"device={given.device}",
            f"batch.prompts_per_step={given.prompts}", f"batch.samples_per_prompt={SAMPLES}",
            f"sampling.max_new_tokens={given.longest}", f"engine.slots={max(given.prompts * SAMPLES, 16)}",
            f"engine.max_tokens={given.longest + 64}", f"batch.tokens_per_microbatch={given.tokens}",
            "verifier.extract=last_number", "data.held_out=none", "evaluation.every=none",
        ],
    )  # fmt: skip


def ours(loop: Loop, counts: list[float], device: str) -> Callable[[], Spent]:
    """One step of the loop; notes how many completion tokens it had."""

    def run() -> None:
        record = loop.next_step()
        assert record is not None
        counts.append(sum(len(r.completion.token_ids) for group in record.groups for r in group.rollouts))

    return lambda: timed(run, device)


def theirs(other: OtherProcess, counts: list[float]) -> Callable[[], Spent]:
    """One step of the peer; notes how many completion tokens it had."""

    def run() -> Spent:
        line = other.run()
        counts.append(line["tokens"])
        return Spent(line["wall"], line["cpu"])

    return run


def problems_of(parts: Any) -> list[tuple[str, str]]:
    """Prompts as text, and references, as TRL takes them."""
    train = parts.data.train
    texts = [parts.tokenizer.decode(train[place].prompt_ids) for place in range(len(train))]
    return [(text, str(train[place].problem.reference)) for place, text in enumerate(texts)]


def main() -> None:
    """Measure."""
    parser = parser_of(__doc__, ("trl",))
    parser.add_argument("--model", choices=SHAPES, default="1.8m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--mean", type=int, default=47, help="of the completions' lengths")
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16_384, help="of our micro-batches")
    parser.add_argument("--trl-python", type=Path)
    given = parser.parse_args()
    begin(given)
    if given.peer == "trl" and given.trl_python is None:
        raise SystemExit("--peer trl wants --trl-python, the interpreter of a virtual environment that has trl")
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = ending_model(given.model, getattr(torch, given.dtype), tokenizer, given.mean)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        config = config_of(folder, given)
        parts = assemble(config, SilentView())
        counts: list[float] = []
        peer_counts: list[float] = []
        loop = Loop(config, parts.data.train, parts.executor, parts.judge, parts.learner, SilentView())
        sides = {"ours": ours(loop, counts, given.device)}
        other: OtherProcess | None = None
        if given.peer == "trl":
            what = {
                "model": str(folder), "dtype": given.dtype, "problems": problems_of(parts), "prompts": given.prompts,
                "samples": SAMPLES, "longest": given.longest, "threads": given.threads, "device": given.device,
            }  # fmt: skip
            other = OtherProcess(given.trl_python, "trl_worker.py", what, {})
            sides["peer"] = theirs(other, peer_counts)
        found = interleaved(sides, given.repeats, given.patience)
        if other is not None:
            other.close()
        parts.judge.close()
    peer = found.get("peer")
    emit(
        "step", f"GRPO {given.model} {given.prompts} x {SAMPLES} completions {given.dtype}", found["ours"].wall,
        None if peer is None else peer.wall, None if peer is None else "TRL", "s", None,
        None if peer is None else peer.cpu / found["ours"].cpu, ours_tokens=float(np.mean(counts)),
        peer_tokens=None if peer is None else float(np.mean(peer_counts)),
        ours_cpu_s=found["ours"].cpu, parameters=parameter_count(model), device=given.device,
        threads=torch.get_num_threads(), runs=found["ours"].runs, peer_runs=None if peer is None else peer.runs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
