"""What the model wrote before and after: the same prompts, the same seeds, every token with what is known of it."""

from pathlib import Path

import numpy as np
import pytest
from tests.report.cases import row

from strop.model.byte_tokenizer import byte_tokenizer
from strop.report.runs import read_runs
from strop.report.samples import SHOWN_TOKENS, _Known, _tokens, recorded, sampled
from strop.report.snapshots import Models


def test_both_models_answer_the_same_held_out_prompts_and_again_the_same(real_run: Path) -> None:
    (run,) = read_runs([real_run])
    found, again = (sampled(run, Models(run), 3) for _ in range(2))
    assert found is not None and again is not None
    assert "the first held-out prompts" in found.origin and "temperature 0.9" in found.origin
    assert [len(each.completions) for each in found.answers] == [2, 2, 2]
    assert [one.tokens for each in found.answers for one in each.completions] == [
        one.tokens for each in again.answers for one in each.completions
    ]
    tokens = [token for each in found.answers for one in each.completions for token in one.tokens]
    assert all(token.entropy is not None and token.value is not None and token.flow is not None for token in tokens)


def test_recorded_rollouts_of_the_last_step_are_scored_and_of_the_first_are_not(real_run: Path) -> None:
    (run,) = read_runs([real_run])
    found = recorded(run, byte_tokenizer(), Models(run), 2)
    assert found is not None
    first, last = (each.completions[0] for each in found.answers)
    assert (first.label, last.label) == ("step 1", "step 4")
    assert all(token.entropy is None and token.logprob is not None for token in first.tokens)
    assert all(token.entropy is not None for token in last.tokens)


def test_tokens_that_were_forced_in_are_marked_and_nothing_is_said_of_them() -> None:
    each = row(tokens=4, interrupted_at=1, injected_tokens=2)
    known = _Known(np.full(4, -0.5, np.float32), np.array([0.1, 9.0, 9.0, 0.4], np.float32), None)
    tokens = _tokens(byte_tokenizer(), each, known, "correct")
    assert [token.injected for token in tokens] == [False, True, True, False]
    assert [token.entropy for token in tokens] == [pytest.approx(0.1), None, None, pytest.approx(0.4)]
    assert [token.reasoning for token in tokens] == [False, False, False, True]


def test_a_long_completion_is_cut() -> None:
    each = row(tokens=SHOWN_TOKENS + 5, token_ids=[10] * (SHOWN_TOKENS + 5))
    known = _Known(np.full(SHOWN_TOKENS + 5, -0.5, np.float32), None, None)
    assert len(_tokens(byte_tokenizer(), each, known, "")) == SHOWN_TOKENS
