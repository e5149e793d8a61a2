"""What ends a completion, and which tokens its text shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.engines.runs import run
from tests.environments.players import LLAMA_LIKE, QWEN_LIKE, STRICT, chat_tokenizer
from tests.tiny import CHAT_TEMPLATE, byte_tokenizer, tiny_settings
from transformers import GenerationConfig

from strop.base.types import Problem
from strop.engines.protocol import Interruption, Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.endings import TurnEnd, end_ids, text_of, turn_end
from strop.model.files import export
from strop.model.policy import load_policy
from strop.verifiers.answer import Answer

NO_PROMPT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


ONE_TURN = "{% if messages | length > 2 %}{{ raise_exception('one turn') }}{% endif %}" + QWEN_LIKE


@pytest.mark.parametrize(
    ("template", "end"), [(QWEN_LIKE, "<|im_end|>"), (LLAMA_LIKE, "<|eot_id|>"), (ONE_TURN, "<|im_end|>")]
)
def test_a_turn_ends_as_the_chat_template_ends_it(template: str, end: str) -> None:
    tokenizer = chat_tokenizer(template)
    token = tokenizer.convert_tokens_to_ids(end)
    assert turn_end(tokenizer) == TurnEnd(end, token)
    assert end_ids([5, 3], tokenizer) == (3, 5, *sorted((tokenizer.eos_token_id, token)))


@pytest.mark.parametrize(
    ("template", "end"), [(QWEN_LIKE, "<|im_end|>"), (CHAT_TEMPLATE, ""), (NO_PROMPT, ""), (STRICT, ""), (None, "")]
)
def test_a_template_without_such_a_token_ends_nothing(template: str | None, end: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    assert turn_end(tokenizer) == TurnEnd(end, None) and end_ids(None, tokenizer) == (256,)


def test_special_markers_reach_the_verifier_and_the_end_does_not() -> None:
    tokenizer = chat_tokenizer(QWEN_LIKE, "<think>", "</think>")
    ids = tokenizer.encode("add</think>\\boxed{6}<|im_end|>", add_special_tokens=False)
    text = text_of(tokenizer, [*ids, 257], end_ids(None, tokenizer))
    assert text == "add</think>\\boxed{6}"
    assert Answer()(Problem("p", "3+3=", "6", extra={"opening": "<think>"}), text).score == 1.0


def test_an_engine_stops_where_the_template_ends_a_turn_and_shows_special_markers(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(QWEN_LIKE, "</think>")
    policy, _ = load_policy(tiny_settings(), tokenizer, 0)
    engine = TorchEngine(policy, tokenizer, EngineSettings(slots=16))
    asked = Sampling(max_new_tokens=400, temperature=8.0, interruption=Interruption(after=(2, 2), phrase="x</think>"))
    found = run(engine, [Request("r", np.array([5, 17], np.int32), asked, 1, n=16)])
    ended = [one for one in found.values() if tokenizer.convert_tokens_to_ids("<|im_end|>") == one.token_ids[-1]]
    assert ended and all(one.finish_reason == "stop" and "<|im_end|>" not in one.text for one in ended)
    assert all("x</think>" in one.text for one in found.values() if one.interrupted_at is not None)
    export(policy.model, tokenizer, tmp_path / "model")
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id == list(end_ids(None, tokenizer))
