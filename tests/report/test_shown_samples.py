"""What the model wrote early and late: every token with what generation recorded of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.report.cases import row
from tests.runs import small_config

from strop.model.files import byte_tokenizer
from strop.report.runs import read_runs
from strop.report.samples import (
    SHOWN_TOKENS,
    chosen,
    flow_of,
    prompt_of,
    recorded_answers,
    shown_tokens,
    tokenizer_of,
)
from strop.run.folder import RunFolder


def test_rollouts_of_the_first_and_of_the_last_step_have_entropies(real_run: Path) -> None:
    (run,) = read_runs([real_run])
    found = recorded_answers(run, byte_tokenizer(), 4)
    assert [each.label for each in found] == ["Step 1", "Step 1", "Step 4", "Step 4"]
    tokens = [token for each in found for token in each.tokens]
    assert all(token.entropy is not None and token.logprob is not None and token.flow is not None for token in tokens)
    assert [token.text for token in found[0].tokens] and found[0].verdict in ("correct", "wrong", "unparsed")


def test_a_prompt_shows_what_the_model_saw_and_a_right_and_a_wrong_answer_to_it() -> None:
    tokenizer = byte_tokenizer()
    prompt = tokenizer.encode("Q: 1+1=2\nQ: 2+2=")
    assert prompt_of(tokenizer, row(prompt_ids=prompt)) == "Q: 1+1=2\nQ: 2+2="
    outcomes = {1: ("wrong", "wrong"), 2: ("wrong", "correct", "wrong"), 3: ("correct",), 4: ("unparsed", "correct")}
    numbered = [(ticket, place, one) for ticket, of in outcomes.items() for place, one in enumerate(of, 1)]
    rows = [row(ticket, status=one, tokens=place) for ticket, place, one in numbered]

    def shown(most: int) -> list[tuple[int, str, int]]:
        return [(each["ticket"], each["status"], len(each["token_ids"])) for each in chosen(rows, most)]

    both = [(2, "correct", 2), (2, "wrong", 1), (4, "correct", 2), (4, "unparsed", 1)]
    assert shown(4) == both and shown(6) == [(1, "wrong", 1), *both[:2], (3, "correct", 1), *both[2:]]
    uniform = [row(ticket, status="wrong") for ticket in range(50)]
    spread = [each["ticket"] for each in chosen(uniform, 4)]
    assert spread == sorted(spread) != [0, 1, 2, 3] and max(spread) > 20
    assert chosen(uniform, 4) == chosen(uniform, 4) and chosen([row(token_ids=[])], 4) == []
    turns = [row(1, turns=[]), row(1, turns=[2])]
    assert chosen(turns, 4) == [turns[1]]


def test_without_entropies_only_the_surprise_is_known() -> None:
    tokens = shown_tokens(byte_tokenizer(), row(tokens=3, entropies=None))
    assert [token.logprob for token in tokens] == [-0.5] * 3
    assert all(token.entropy is None and token.flow is None and not token.reasoning for token in tokens)


def test_tokens_that_were_forced_in_are_marked_and_nothing_is_said_of_them() -> None:
    entropies = [0.125, 9.0, 9.0, 0.5]
    tokens = shown_tokens(byte_tokenizer(), row(tokens=4, injected=[{"start": 1, "end": 3}], entropies=entropies))
    assert [token.injected for token in tokens] == [False, True, True, False]
    assert [token.entropy for token in tokens] == [0.125, None, None, 0.5]
    assert [token.reasoning for token in tokens] == [False, False, False, True]


def test_turns_are_told_apart_and_from_what_the_environment_said() -> None:
    said = [{"start": 1, "end": 3}, {"start": 4, "end": 5}, {"start": 6, "end": 8}]
    each = row(tokens=8, token_ids=[65] * 8, injected=said, turns=[3, 8], entropies=None)
    tokens = shown_tokens(byte_tokenizer(), each)
    assert [token.turn for token in tokens] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [token.said for token in tokens] == [False, True, True, False, False, False, True, True]
    assert [token.injected for token in tokens] == [False, True, True, False, True, False, True, True]
    alone = shown_tokens(byte_tokenizer(), row(tokens=2, entropies=None))
    assert [token.turn for token in alone] == [None, None]


def test_a_long_completion_is_cut() -> None:
    each = row(tokens=SHOWN_TOKENS + 5, token_ids=[10] * (SHOWN_TOKENS + 5))
    assert len(shown_tokens(byte_tokenizer(), each)) == SHOWN_TOKENS


def test_entropy_flow_has_the_sign_of_the_verdict() -> None:
    logprob, entropy = np.log(np.array([0.2, 0.9], dtype=np.float32)), np.array([1.0, 0.5], dtype=np.float32)
    # −(1 − p)² (log p + H): −0.64 (−1.6094 + 1) and −0.01 (−0.10536 + 0.5)
    assert flow_of(logprob, entropy, "correct") == pytest.approx([0.39004, -0.0039464], rel=1e-3)
    assert flow_of(logprob, entropy, "wrong") == pytest.approx([-0.39004, 0.0039464], rel=1e-3)


def test_the_tokenizer_is_of_the_export_or_of_the_model_it_began_with(tmp_path: Path, real_run: Path) -> None:
    config = json.loads(small_config().model_dump_json())
    exported, begun, lost = (
        RunFolder.create(tmp_path / name, config | {"model": {"path": str(path)}})
        for name, path in (("a", tmp_path / "gone"), ("b", real_run / "model"), ("c", tmp_path / "gone"))
    )
    byte_tokenizer().save_pretrained(exported.model)
    found = [tokenizer_of(run) for run in read_runs([exported.path, begun.path, lost.path])]
    assert [None if each is None else len(each) for each in found] == [len(byte_tokenizer())] * 2 + [None]
