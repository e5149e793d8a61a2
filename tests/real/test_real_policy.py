"""A real pretrained model: its tokens, log-probs and gradients are those of transformers, on every path of strop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.runs import drain
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from strop.base.types import Completion, FloatArray, Problem
from strop.data.templates import Plain
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import Lora, ModelSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "def area(r):\n    return 3.14159 * r ** 2\n\n\nprint(area(2))",
    "Ein Zug fährt um 7:45 Uhr los; \\frac{3}{4} der Strecke später …",
    "小明有三个苹果。\tكم عدد التفاحات؟ 🦜🦉",
)


@pytest.fixture(scope="module")
def tokenizer(gemma: Path) -> PreTrainedTokenizerBase:
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(gemma)
    return found


@pytest.fixture(scope="module")
def ids(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] for text in TEXTS]


@pytest.fixture(scope="module")
def exact(gemma: Path) -> PreTrainedModel:
    """transformers' own model in float32."""
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(gemma, dtype=torch.float32)
    return found


@pytest.fixture(scope="module")
def policies(gemma: Path) -> Iterator[dict[str, Policy]]:
    yield {dtype: load_policy(_settings(gemma, dtype))[0] for dtype in ("float32", "bfloat16")}


def _settings(gemma: Path, dtype: str, **changes: object) -> ModelSettings:
    return ModelSettings.model_validate({"path": str(gemma), "dtype": dtype, **changes})


def of_transformers(model: PreTrainedModel, sequences: list[list[int]]) -> Tensor:
    """Log-probs of every token but the first of each sequence, one sequence after another."""
    found = []
    for sequence in sequences:
        given = torch.tensor([sequence])
        logits = model(given).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(1, given[0, 1:, None])[:, 0])
    return torch.cat(found)


def sharing(sequences: list[list[int]], prompt: int) -> PackedInputs:
    """Sequences with a common prompt of so many tokens, of which only what follows it is scored."""
    packed = PackedInputs.whole(sequences)
    starts = np.cumsum([0, *map(len, sequences)])
    rows = torch.cat(
        [torch.arange(start + prompt - 1, end - 1) for start, end in zip(starts, starts[1:], strict=False)]
    )
    return replace(packed, rows=rows, targets=packed.token_ids[rows + 1])


def test_a_prompt_has_the_ids_of_transformers_and_begins_once(tokenizer: PreTrainedTokenizerBase) -> None:
    for text in TEXTS:
        question = Plain(prefix="Question: ", suffix="\nAnswer:")(Problem("0", text, "", "math"), tokenizer)
        assert question.tolist() == tokenizer(f"Question: {text}\nAnswer:")["input_ids"]
        assert question.tolist().count(tokenizer.bos_token_id) == 1
        assert tokenizer.decode(question[1:]) == f"Question: {text}\nAnswer:"


def test_log_probs_and_gradients_in_float32(
    policies: dict[str, Policy], exact: PreTrainedModel, ids: list[list[int]]
) -> None:
    policy = policies["float32"]
    wanted = of_transformers(exact, ids)
    found, _ = policy(PackedInputs.whole(ids), 1.0)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)
    weights = torch.linspace(-1, 1, len(wanted))
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    theirs = dict(exact.named_parameters())
    away, size = 0.0, 0.0
    for name, parameter in policy.model.named_parameters():
        own, other = parameter.grad, theirs[name].grad
        assert own is not None and other is not None
        # The gradients of some norms are small sums of large terms.
        assert (own - other).norm() <= 1e-3 * other.norm(), name
        away, size = away + float((own - other).square().sum()), size + float(other.square().sum())
    assert away**0.5 <= 1e-4 * size**0.5
    exact.zero_grad()
    policy.zero_grad()


def test_bfloat16_is_no_further_from_float32_than_transformers(
    gemma: Path, policies: dict[str, Policy], exact: PreTrainedModel, ids: list[list[int]]
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(gemma, dtype=torch.bfloat16)
    with torch.no_grad():
        truth = of_transformers(exact, ids)
        theirs = of_transformers(plain, ids) - truth
        ours = policies["bfloat16"](PackedInputs.whole(ids), 1.0)[0] - truth
    assert ours.norm() <= 1.05 * theirs.norm()


def sampled(policy: Policy, tokenizer: PreTrainedTokenizerBase, ids: list[list[int]]) -> list[Completion]:
    """Two completions of each prompt."""
    engine = TorchEngine(policy, tokenizer, EngineSettings(slots=16))
    sampling = Sampling(temperature=1.0, max_new_tokens=12)
    for place, prompt in enumerate(ids):
        engine.submit(Request(str(place), np.array(prompt, np.int32), sampling, seed=place, n=2))
    return drain(engine)


def scored_by(policy: Policy, done: Completion) -> FloatArray:
    """Log-probs and entropies of a completion's tokens, [2, tokens]."""
    sequence = [*done.prompt_ids.tolist(), *done.token_ids.tolist()]
    with torch.no_grad():
        return torch.stack(policy(sharing([sequence], len(done.prompt_ids)), 1.0)).float().numpy()


def test_the_engine_samples_what_the_policy_scores_in_float32(
    policies: dict[str, Policy], tokenizer: PreTrainedTokenizerBase, ids: list[list[int]]
) -> None:
    for done in sampled(policies["float32"], tokenizer, ids):
        assert np.abs(scored_by(policies["float32"], done) - [done.logprobs, done.entropies]).max() < 1e-3


def test_in_bfloat16_the_engine_is_no_further_from_float32_than_the_policy(
    policies: dict[str, Policy], tokenizer: PreTrainedTokenizerBase, ids: list[list[int]]
) -> None:
    ours, theirs = [], []
    for done in sampled(policies["bfloat16"], tokenizer, ids):
        truth = scored_by(policies["float32"], done)
        ours.append(np.array([done.logprobs, done.entropies]) - truth)
        theirs.append(scored_by(policies["bfloat16"], done) - truth)
    one, other = (float(np.linalg.norm(np.concatenate(gaps, 1))) for gaps in (ours, theirs))
    assert one < 1.5 * other, (one, other)


def test_greedy_is_generate(
    policies: dict[str, Policy], exact: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: list[list[int]]
) -> None:
    engine = TorchEngine(policies["float32"], tokenizer, EngineSettings(slots=16))
    prompt = ids[0]
    engine.submit(Request("0", np.array(prompt, np.int32), Sampling(temperature=0, max_new_tokens=16), seed=0))
    (done,) = drain(engine)
    found = exact.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=16)
    assert done.token_ids.tolist() == found[0, len(prompt) :].tolist()


def test_shared_prompts_checkpointing_and_the_sliding_window_change_nothing(
    gemma: Path, policies: dict[str, Policy], exact: PreTrainedModel, ids: list[list[int]]
) -> None:
    policy = policies["float32"]
    common = (ids[0] + ids[1]) * 12  # beyond the window of 512
    sequences = [common + ids[2], common + ids[3]]
    packed = sharing(sequences, len(common))
    saving = load_policy(_settings(gemma, "float32", gradient_checkpointing=True))[0]
    with torch.no_grad():
        whole = of_transformers(exact, sequences).split([len(sequence) - 1 for sequence in sequences])
        wanted = torch.cat([one[len(common) - 1 :] for one in whole])
    gradients = []
    for one in (policy, saving):
        found, _ = one(packed, 1.0)
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=0)
        found.sum().backward()
        gradients.append([copy.copy(parameter.grad) for parameter in one.model.parameters()])
        one.zero_grad()
    for own, other in zip(*gradients, strict=True):
        assert own is not None and other is not None
        torch.testing.assert_close(own, other)


def test_an_adapter_begins_as_nothing_and_learns(
    gemma: Path, policies: dict[str, Policy], ids: list[list[int]]
) -> None:
    lora = Lora(rank=4, alpha=8)
    adapted = load_policy(_settings(gemma, "float32", lora=lora))[0]
    packed = PackedInputs.whole(ids)
    found, _ = adapted(packed, 1.0)
    with torch.no_grad():
        torch.testing.assert_close(found, policies["float32"](packed, 1.0)[0])
    found.sum().backward()
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert trained and all(parameter.grad is not None for parameter in trained)
    with torch.no_grad():
        for parameter in trained:
            assert parameter.grad is not None
            parameter.add_(parameter.grad.sign(), alpha=1e-3)
        adapted.merge()
        assert adapted(packed, 1.0)[0].sum() > found.sum()
