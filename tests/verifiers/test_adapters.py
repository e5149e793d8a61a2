"""strop-verify's reward functions, called as TRL, verl and verifiers call them; with the real packages if installed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strop_verify.adapters import VerifierFailed, compute_score, rubric_reward, task_reward, trl_reward
from strop_verify.sandbox import probe
from strop_verify.verdict import VerifyError

RIGHT, WRONG = r"so it is \boxed{0.5}", r"so it is \boxed{0.6}"
HALF = r"\frac{1}{2}"
UNREADABLE = "{" * 40  # a reference that the verifier refuses: its own failure
DOUBLE = "```python\nprint(2 * int(input()))\n```"
TESTS = {"inputs": ["1\n"], "outputs": ["2\n"]}
needs_walls = pytest.mark.skipif(not probe().isolated, reason="no isolation on this machine")


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_trl_gets_a_list_with_none_where_the_verifier_failed() -> None:
    reward = trl_reward("math")
    completions = [said(RIGHT), WRONG, said(RIGHT)]
    assert reward(completions=completions, prompts=["?"] * 3, solution=[HALF, HALF, UNREADABLE]) == [1.0, 0.0, None]
    assert trl_reward("math", "gold")(completions=[RIGHT], gold=[HALF]) == [1.0]
    assert reward.__name__ == "math_reward"
    with pytest.raises(VerifyError, match="'solution' or 'answer'"):
        reward(completions=[RIGHT], gold=[HALF])


def test_verl_says_what_an_answer_is_beside_it() -> None:
    first = {"question": "List the first three terms.", "index": 0}
    assert compute_score("x", r"\boxed{2, 1, 3}", "1, 2, 3", {"index": 0})["score"] == 1.0
    assert compute_score("x", r"\boxed{2, 1, 3}", "1, 2, 3", first)["score"] == 0.0
    assert compute_score("x", r"\boxed{3.6 \text{ s}}", "3.5", {"error": "0.2"})["score"] == 1.0
    assert compute_score("x", r"\boxed{3.5 \text{ s}}", "3.5", {"unit": "m"})["score"] == 0.0


def test_verl_gets_numbers_only() -> None:
    assert compute_score("x", RIGHT, HALF) == {"score": 1.0, "acc": 1.0, "verifier_failed": 0.0}
    assert compute_score("x", WRONG, HALF) == {"score": 0.0, "acc": 0.0, "verifier_failed": 0.0}
    assert compute_score("x", RIGHT, UNREADABLE)["verifier_failed"] == 1.0
    assert compute_score("x", r"\boxed{[1, 2]}", "[1, 2]")["score"] == 1.0  # a list, not tests


@needs_walls
def test_tests_of_programs_are_seen_by_their_form() -> None:
    assert compute_score("x", DOUBLE, json.dumps(TESTS))["score"] == 1.0
    assert trl_reward("code")(completions=[DOUBLE, said("none")], tests=[TESTS, TESTS]) == [1.0, 0.0]
    assert asyncio.run(rubric_reward("code")(completion=said(DOUBLE), answer=json.dumps(TESTS))) == 1.0


def test_verifiers_gets_floats_and_an_exception_where_the_verifier_failed() -> None:
    reward = rubric_reward("math")
    assert asyncio.run(reward(completion=said(RIGHT), answer=HALF, prompt="?", state={})) == 1.0
    with pytest.raises(VerifierFailed):
        asyncio.run(reward(completion=said(RIGHT), answer=UNREADABLE))
    assert asyncio.run(task_reward(SimpleNamespace(answer=HALF), SimpleNamespace(last_reply=WRONG))) == 0.0
    with pytest.raises(VerifyError, match="'tests'"):
        asyncio.run(task_reward(SimpleNamespace(), SimpleNamespace(last_reply=WRONG)))


def test_with_the_real_trl(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the package trl is not installed")
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    words = {word: place for place, word in enumerate(["<pad>", "<eos>", "half", "is", "what"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    reward = trl_reward("math")
    trainer = GRPOTrainer(
        Qwen2ForCausalLM(config), reward_funcs=reward, processing_class=fast,
        args=GRPOConfig(
            str(tmp_path), max_steps=1, per_device_train_batch_size=2, num_generations=2, max_completion_length=4,
            report_to=[], use_cpu=True, bf16=False, logging_steps=1,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["what is half"] * 4, "solution": [HALF] * 4}),
    )  # fmt: skip
    trainer.train()
    assert trainer.state.log_history[0]["rewards/math_reward/mean"] == 0.0


def test_with_the_real_verl() -> None:
    pytest.importorskip("verl", reason="the package verl is not installed")
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {"path": "pkg://strop_verify.adapters", "name": "compute_score"},
                "reward_manager": {"source": "register", "name": "naive"},
            }
        }
    )
    tokenizer: Any = SimpleNamespace(decode=lambda ids, skip_special_tokens: RIGHT)
    manager = load_reward_manager(config, tokenizer)
    data = DataProto.from_single_dict(
        {
            "responses": torch.ones(1, 2, dtype=torch.long),
            "attention_mask": torch.ones(1, 4, dtype=torch.long),
            "data_source": np.array(["x"], dtype=object),
            "reward_model": np.array([{"ground_truth": HALF}], dtype=object),
            "extra_info": np.array([{}], dtype=object),
        }
    )
    found = manager.loop.run_until_complete(manager.run_single(data))
    assert found["reward_score"] == 1.0
    assert found["reward_extra_info"]["acc"] == 1.0


def test_with_a_real_rubric() -> None:
    vf = pytest.importorskip("verifiers", reason="the package verifiers is not installed")
    if not hasattr(vf, "Rubric"):
        pytest.skip("this version of verifiers has no rubrics")
    rubric = vf.Rubric(funcs=[rubric_reward("math")])
    row = {"prompt": said("?"), "answer": HALF, "example_id": 0}
    state = vf.State(input=row, completion=said(RIGHT), timing=SimpleNamespace(scoring=SimpleNamespace()))
    assert asyncio.run(rubric._call_individual_reward_func(rubric.funcs[0], state)) == 1.0


def test_with_a_real_task_of_verifiers() -> None:
    vf = pytest.importorskip("verifiers.v1", reason="the package verifiers from 0.4 on is not installed")

    class Question(vf.TaskData):  # type: ignore[name-defined]
        answer: str

    task = vf.Task(
        Question(prompt="?", answer=HALF),
        vf.TaskConfig(rewards={"math": {"fn": "strop_verify.adapters:task_reward"}}),
    )
    trace = vf.Trace.model_construct(root_reply=RIGHT, rewards={}, metrics={})
    asyncio.run(task.score(trace))
    assert trace.rewards["math"].value == 1.0
