"""A judge model behind strop's own server: a small model that has learned to grade, and limits that it meets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.serving.running import endpoint
from tests.tiny import byte_tokenizer, tiny_settings

from strop.base.types import Problem
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.policy import load_policy
from strop.serving import ServeLimits
from strop.training.settings import AdamW, SftSettings
from strop.training.sft import Demonstration, FineTuning
from strop.verifiers.judge_model import JudgeModel, keep_in
from strop.verifiers.judges import judged
from strop_verify.verdict import Status

KEY = "STROP_TEST_JUDGE_KEY"


def test_a_model_that_has_learned_to_grade_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "judge-key")
    tokenizer, settings = byte_tokenizer(chat=True), tiny_settings(dtype="float32")
    assert settings.fresh is not None
    settings = settings.model_copy(update={"fresh": settings.fresh.model_copy(update={"max_positions": 1024})})
    policy, _ = load_policy(settings, tokenizer, 1)
    url = "http://127.0.0.1:9/v1"
    piece = JudgeModel(url=url, model="tiny", api_key_env=KEY, rubric="", max_tokens=20, backoff=0.05)
    problem = Problem("p", "1+1=", "2")
    asked = [(problem, "good", False), (problem, "bad", False)]
    shown = []
    for _, text, _ in asked:
        prompt = tokenizer.encode(f"user: {piece.prompt(problem, text)}\nassistant: ", add_special_tokens=False)
        said = tokenizer.encode(f'{{"score": {int("good" in text)}}}', add_special_tokens=False)
        shown.append(Demonstration(np.array(prompt, np.int32), np.array([*said, 256], np.int32)))
    training = SftSettings(tokens_per_batch=2000, steps=25, optimizer=AdamW(lr=1e-2, warmup_steps=5))
    for _ in FineTuning(policy, shown, training).events():
        pass
    engine = TorchEngine(policy.eval(), tokenizer, EngineSettings(slots=16))
    # One request at a time: the other is told to come again.
    limits = ServeLimits(requests=1, grace=1.0)
    with endpoint(key="judge-key", engine=engine, limits=limits) as served, keep_in(tmp_path):
        found = judged(piece.model_copy(update={"url": served.url, "retries": 60}), asked)
        assert [verdict.status for verdict in found] == [Status.CORRECT, Status.WRONG]
        (too_long,) = judged(piece.model_copy(update={"url": served.url}), [(problem, "good " * 200, False)])
        assert too_long.status is Status.ERROR and "context" in too_long.detail
    assert served.server.answered == 2  # counted once the client has its answer: known when the server has ended
