"""A whole GRPO step: generate, verify, update; seconds a step beside TRL's GRPOTrainer.

    python bench/step.py --trl-python PYTHON        # the interpreter of a virtual environment that has trl
    python bench/step.py --trl-python PYTHON --apart --model qwen3-0.6b --dtype bfloat16 --prompts 16 --rows 8 \\
        --tokens 2048

Both train the same model in the same precision with as many threads, on the same prompts, 32 × 8 completions a step,
one update of all of them, without a reference policy. The model has 1.8M parameters and random weights, arranged so
that every token ends its completion with the probability 1 / `--mean`: lengths are geometric, up to `--longest`.
Rewards, which are then all 0 or nearly, cost what they cost: the last number of the text is compared with the sum.
`--mean 0` gives completions that all have `--longest` tokens, where refilling slots brings nothing.
`--apart` has the peer make all its steps first and end, for models of which memory holds one trainer at a time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from common import SHAPES, OtherProcess, Spent, begin, emit, interleaved, model_of, parameter_count, parser_of, timed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.data.loading import load_data
from strop.model.files import byte_tokenizer
from strop.recipes.resolve import resolve
from strop.run.assembly import assemble
from strop.run.loop import Loop

Side = Callable[[], Spent]
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


def ours(loop: Loop, counts: list[float], device: str) -> Side:
    """One step of the loop; notes how many completion tokens it had."""

    def run() -> None:
        record = loop.next_step()
        assert record is not None
        counts.append(sum(len(r.completion.token_ids) for group in record.groups for r in group.rollouts))

    return lambda: timed(run, device)


def theirs(other: OtherProcess, counts: list[float]) -> Side:
    """One step of the peer; notes how many completion tokens it had."""

    def run() -> Spent:
        line = other.run()
        counts.append(line["tokens"])
        return Spent(line["wall"], line["cpu"])

    return run


def own_side(config: RunConfig, given: argparse.Namespace, open_until: ExitStack) -> tuple[Side, list[float]]:
    """Ours, ready to make steps, and the number of tokens of each."""
    counts: list[float] = []
    parts = assemble(config, SilentView())
    open_until.callback(parts.judge.close)
    loop = Loop(config, parts.data.train, parts.executor, parts.judge, parts.learner, SilentView())
    return ours(loop, counts, given.device), counts


def peer_side(config: RunConfig, given: argparse.Namespace, open_until: ExitStack) -> tuple[Side, list[float]]:
    """TRL's, in its process, and the number of tokens of each step."""
    counts: list[float] = []
    what = {
        "model": config.model.path, "dtype": given.dtype, "problems": problems_of(config), "prompts": given.prompts,
        "samples": SAMPLES, "longest": given.longest, "threads": given.threads, "device": given.device,
        "rows": given.rows or given.prompts * SAMPLES,
    }  # fmt: skip
    other = OtherProcess(given.trl_python, "trl_worker.py", what, {})
    open_until.callback(other.close)
    return theirs(other, counts), counts


def problems_of(config: RunConfig) -> list[tuple[str, str]]:
    """Prompts as text, and references, as TRL takes them."""
    tokenizer = byte_tokenizer()
    train = load_data(config.data, tokenizer, config.instruction).train
    return [
        (tokenizer.decode(train[place].prompt_ids), str(train[place].problem.reference)) for place in range(len(train))
    ]


def measured(config: RunConfig, given: argparse.Namespace) -> tuple[dict[str, Spent], dict[str, list[float]]]:
    """Medians of both sides, and the tokens of every step: in turns, or the peer first where they are apart."""
    makers = ({"peer": peer_side} if given.peer == "trl" else {}) | {"ours": own_side}
    found: dict[str, Spent] = {}
    counts: dict[str, list[float]] = {}
    for names in [[name] for name in makers] if given.apart else [list(makers)]:
        sides: dict[str, Side] = {}
        with ExitStack() as open_until:
            for name in names:
                sides[name], counts[name] = makers[name](config, given, open_until)
            found |= interleaved(sides, given.repeats, given.patience)
    return found, counts


def main() -> None:
    """Measure."""
    parser = parser_of(__doc__, ("trl",))
    parser.add_argument("--model", choices=SHAPES, default="1.8m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--mean", type=int, default=47, help="of the completions' lengths")
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16_384, help="of our micro-batches")
    parser.add_argument("--apart", action="store_true", help="first all steps of the peer, then all of ours")
    parser.add_argument("--rows", type=int, help="completions of one backward pass of the peer, by default all")
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
        parameters = parameter_count(model)
        del model
        found, counts = measured(config_of(folder, given), given)
    peer = found.get("peer")
    emit(
        "step", f"GRPO {given.model} {given.prompts} x {SAMPLES} completions {given.dtype}", found["ours"].wall,
        None if peer is None else peer.wall, None if peer is None else "TRL", "s", None,
        None if peer is None else peer.cpu / found["ours"].cpu, ours_tokens=float(np.mean(counts["ours"])),
        peer_tokens=None if peer is None else float(np.mean(counts["peer"])),
        ours_cpu_s=found["ours"].cpu, parameters=parameters, device=given.device,
        threads=torch.get_num_threads(), runs=found["ours"].runs, peer_runs=None if peer is None else peer.runs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
