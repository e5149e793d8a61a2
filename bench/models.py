"""Every model family, made small from its configuration: loaded, compared, trained, sampled from, exported, reloaded.

    python -m bench.models                        a JSON object a family
    python -m bench.models --only gemma2 gpt_oss
    python -m bench.models --docs docs            all of them, and write docs/models.md's table anew

The families are those of the tests (tests/kit/bring.py). Windows and chunks are shorter than the sequences. What a
family is held to: log-probs within 1e-4 of transformers' own eager attention in float32, gradients of every parameter
within 1e-3 relative, sampled log-probs within 1e-4 of the trainer's after an update, an export that is equal bit for
bit when it is loaded again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.kit.bring import FAMILIES, TEMPLATES, bring, tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from strop.base.metrics import values
from strop.base.types import StropError
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.attention import PackedContext
from strop.model.attention_kinds import PLAIN, AttentionKind
from strop.model.files import export
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import ModelSettings
from strop.training.settings import SftSettings
from strop.training.sft import Demonstration, FineTuning

LENGTHS = (1, 40, 3, 17, 90, 41)
LOGITS, GRADIENTS, SAMPLED = 1e-4, 1e-3, 1e-4
_ZERO = 1e-4  # of the largest gradient's norm
BEGIN, END = "<!-- the table -->", "<!-- the end of the table -->"


class Tried(NamedTuple):
    """What became of a family: gaps to transformers, the loss of an update, and whether an export came back equal."""

    family: str
    model_type: str
    attention: str
    logits: float
    gradients: float
    loss: float
    sampled: float
    export: bool

    @property
    def holds(self) -> bool:
        """Whether everything is as it should be."""
        near = self.logits <= LOGITS and self.gradients <= GRADIENTS and self.sampled <= SAMPLED
        return near and self.export and bool(np.isfinite(self.loss))


def attempt(family: str, folder: Path) -> Tried:
    """Try a family in an empty folder."""
    words = tokenizer(TEMPLATES[0])
    source = bring(family, TEMPLATES[0], folder / "model")
    policy, _ = load_policy(ModelSettings(path=str(source)))
    plain = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(256, (length,), generator=generator).tolist() for length in LENGTHS]
    logits, gradients = compared(policy, plain, rows)
    loss = updated(policy, rows)
    sampled = sampled_gap(policy, words)
    export(policy.model, words, folder / "export")
    again, _ = load_policy(ModelSettings(path=str(folder / "export")))
    same = all(torch.equal(again.weights()[name], weight) for name, weight in policy.weights().items())
    with torch.no_grad():
        same = same and torch.equal(
            again(PackedInputs.whole(rows), 1.0)[0], policy.eval()(PackedInputs.whole(rows), 1.0)[0]
        )
    model_type = policy.model.config.model_type
    return Tried(family, model_type, attention_of(policy), logits, gradients, loss, sampled, same)


def compared(policy: Policy, plain: PreTrainedModel, rows: list[list[int]]) -> tuple[float, float]:
    """The largest gap of log-probs to transformers', and of any parameter's gradient, relative to its norm."""
    wanted: list[Tensor] = []
    for ids in rows:
        tokens = torch.tensor(ids)
        wanted.append(plain(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0])
    ours, theirs = policy.train()(PackedInputs.whole(rows), 1.0)[0], torch.cat(wanted)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    gradients = [
        (own.grad, other.grad) for own, other in zip(policy.model.parameters(), plain.parameters(), strict=True)
    ]
    if any(own is None or other is None for own, other in gradients):
        raise StropError(f"{type(plain).__name__}: a parameter has no gradient")
    norms = [float(other.norm()) for _, other in gradients]
    # A bias of the keys changes no softmax: its gradient is rounding, and has no norm of its own to be compared with.
    least = _ZERO * max(norms)
    gaps = [float((own - other).norm()) / max(norm, least) for (own, other), norm in zip(gradients, norms, strict=True)]
    policy.zero_grad()
    return float((ours - theirs).detach().abs().max()), max(gaps)


def updated(policy: Policy, rows: list[list[int]]) -> float:
    """The loss of an optimizer step on the sequences."""
    ids = [np.array(row, np.int32) for row in rows if len(row) > 2]
    shown = [Demonstration(row[: len(row) // 2], row[len(row) // 2 :]) for row in ids]
    (event,) = FineTuning(policy, shown, SftSettings(epochs=1)).events()
    loss = values(event.metrics)["loss"]
    assert loss is not None
    return loss


@torch.no_grad()
def sampled_gap(policy: Policy, words: Any) -> float:
    """The largest gap between the embedded engine's log-probs of what it sampled and the trainer's."""
    engine = TorchEngine(policy.eval(), words, EngineSettings(slots=16))
    generator = np.random.default_rng(0)
    for index, length in enumerate((1, 30, 50)):
        prompt = generator.integers(0, 256, length).astype(np.int32)
        engine.submit(Request(str(index), prompt, Sampling(max_new_tokens=24), seed=index, n=2))
    gap = 0.0
    while engine.unfinished:
        for found in engine.step():
            ids = [*found.prompt_ids.tolist(), *found.token_ids.tolist()]
            scored = policy(PackedInputs.whole([ids]), 1.0)[0][len(found.prompt_ids) - 1 :]
            gap = max(gap, float(np.abs(found.logprobs - scored.numpy()).max()))
    return gap


class Noted(PackedContext):
    """A packed context that notes the kind of every layer's attention."""

    def __init__(self, packed: PackedInputs) -> None:
        super().__init__(packed.lengths, packed.token_ids.device)
        self.kinds: dict[int, AttentionKind] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        self.kinds[layer] = kind
        return super().attend(layer, query, key, value, scale, kind)


@torch.no_grad()
def attention_of(policy: Policy) -> str:
    """What a family's layers and its head compute beside the usual, in words."""
    packed = PackedInputs.whole([[1, 2, 3]])
    context = Noted(packed)
    policy.hidden(packed.token_ids, packed.positions, context)
    kinds = list(context.kinds.values())
    counts = {
        "windows": sum(kind.reach.window is not None for kind in kinds),
        "chunks": sum(kind.reach.chunk is not None for kind in kinds),
        "sinks": sum(kind.sinks is not None for kind in kinds),
        "capped scores": sum(kind.cap is not None for kind in kinds),
    }
    parts = [f"{what} in {count} of {len(kinds)} layers" for what, count in counts.items() if count]
    parts += ["capped logits"] * (policy.logit_form.cap is not None)
    parts += ["scaled logits"] * (policy.logit_form.scale != 1)
    return ", ".join(parts) or "full"


def row(found: Tried) -> str:
    """A family's row of the table."""
    figures = (found.logits, found.gradients, found.sampled)
    limits = (LOGITS, GRADIENTS, SAMPLED)
    cells = [f"{gap:.0e}" if gap <= limit else f"**{gap:.0e}**" for gap, limit in zip(figures, limits, strict=True)]
    whole = ["trained" if np.isfinite(found.loss) else "**not finite**", "equal" if found.export else "**differs**"]
    shown = (found.family, f"`{found.model_type}`", found.attention, *cells[:2], whole[0], cells[2], whole[1])
    return "| " + " | ".join(shown) + " |"


def table(tried: list[Tried]) -> str:
    """The table of docs/models.md."""
    head = (
        "| family | model type | attention | log-probs | gradients | update | sampled log-probs | export |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    return head + "\n".join(row(found) for found in tried) + "\n"


def tell(page: Path, text: str) -> None:
    """Put the table between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(FAMILIES), help="these families")
    parser.add_argument("--docs", type=Path, help="a folder whose models.md gets the table")
    given = parser.parse_args()
    if given.docs is not None and given.only:
        parser.error("--docs writes the whole table; leave --only out")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tried: list[Tried] = []
    for family in given.only or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            tried.append(attempt(family, Path(folder)))
        print(json.dumps({"bench": "models", **tried[-1]._asdict(), "holds": tried[-1].holds}), flush=True)
    if given.docs is not None:
        tell(given.docs / "models.md", table(tried))


if __name__ == "__main__":
    main()
