"""The held-out split, SFT data, and duplicates by embedding."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.prepare.working import questions, run
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.types import InputError
from strop.model.files import export
from strop.prepare.embedding import _Encoder
from strop.prepare.filters import count_tokens


def test_held_out_questions_are_not_trained_on_however_they_are_typed(tmp_path: Path) -> None:
    rows = questions(*(f"Question number {n}?" for n in range(50)), *(f"QUESTION number {n}!" for n in range(50)))
    outcome = run(tmp_path, [rows], [{"piece": "Split", "count": 20}])
    held = {problem.question.upper().rstrip("?!") for problem in outcome.held_out}
    trained = {problem.question.upper().rstrip("?!") for problem in outcome.kept}
    assert (len(outcome.held_out), len(held), held & trained) == (20, 20, set())
    assert outcome.reasons == {"asks a held-out question": 20}
    assert len(outcome.kept) == 60
    assert outcome.report["validation"] == 20


def test_what_is_held_out_follows_from_the_seed(tmp_path: Path) -> None:
    rows = questions(*(f"Question number {n}?" for n in range(50)))
    found = []
    for place, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(place)
        folder.mkdir()
        found.append([p.question for p in run(folder, [rows], [{"piece": "Split", "count": 10}], seed=seed).held_out])
    assert found[0] == found[1] != found[2]


def test_a_split_that_would_take_everything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leaves nothing to train on: .* came in: 2"):
        run(tmp_path, [questions("one 1", "two 2", "TWO 2")], [{"piece": "Split", "count": 2}])


def test_sft_data_loses_trivial_prompts_and_long_traces(tmp_path: Path) -> None:
    trace = "First we add the numbers, then we halve the sum, and so the answer is 4."
    rows = [
        {"prompt": "Hello there!", "completion": trace},
        {"prompt": "7?", "completion": trace},
        {"prompt": "What is the mean of 3 and 5?", "completion": "4."},
        {"prompt": "What is the mean of 3 and 5, slowly?", "completion": "so " * 12_001},
        {"prompt": "What is the mean of 3 and 5, please?", "completion": trace},
    ]
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(f"{__import__('json').dumps(row)}\n" for row in rows))
    source = {"path": str(path), "columns": {"answer": "completion"}, "domain": "sft"}
    outcome = run(tmp_path, [source], ["NoTrivialPrompts", {"piece": "TraceLength", "max_tokens": 12_000}])
    assert outcome.prompts == ["What is the mean of 3 and 5, please?"]
    assert outcome.reasons == {"trivial prompt": 2, "trivial trace": 1, "trace over 12000 tokens": 1}


def test_tokens_are_counted_by_the_tokenizer_where_there_is_one(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    assert count_tokens("Two words.") == 3
    assert count_tokens("Two words.", str(tmp_path / "tokenizer")) == 10


def test_duplicates_by_embedding_need_equal_numbers(tmp_path: Path) -> None:
    export(tiny_qwen3().model, byte_tokenizer(), tmp_path / "encoder")
    rows = questions("A long walk of 5 miles along the sea", "a long walk of 5 miles along the sea",
                     "A long walk of 6 miles along the sea", "zzzz!!!! ????")  # fmt: skip
    step = {"piece": "DeduplicateByEmbedding", "model": str(tmp_path / "encoder"), "similarity": 0.8}
    outcome = run(tmp_path, [rows], [step])
    assert [row["id"] for row in outcome.dropped] == ["set0/2"]
    assert outcome.reasons == {"embedding duplicate within the set": 1}
    missing = {**step, "model": str(tmp_path / "nowhere")}
    with pytest.raises(InputError, match="embedding model .*nowhere: there is no such folder"):
        run(tmp_path, [rows], [missing])
    (tmp_path / "run").mkdir()
    (tmp_path / "encoder").rename(tmp_path / "run" / "model")
    with pytest.raises(InputError, match="run: a run; name its model, .*run/model"):
        run(tmp_path, [rows], [{**step, "model": str(tmp_path / "run")}])


def test_a_question_like_a_dropped_one_alone_is_kept(tmp_path: Path) -> None:
    """Of a chain each is like the next; the last is compared with what was kept, and that it is not like."""
    export(tiny_qwen3().model, byte_tokenizer(), tmp_path / "encoder")
    chain = tuple(f"{part} and then a long walk by the sea, as far as it goes" for part in ("a" * 9, "aaabbb", "b" * 9))
    vectors = _Encoder(str(tmp_path / "encoder"), 64)(list(chain))
    near, far = min(vectors[0] @ vectors[1], vectors[1] @ vectors[2]), vectors[0] @ vectors[2]
    assert 0 < far < near
    step = {"piece": "DeduplicateByEmbedding", "model": str(tmp_path / "encoder"), "similarity": float(far + near) / 2}
    outcome = run(tmp_path, [questions(*chain)], [step])
    assert [row["id"] for row in outcome.dropped] == ["set0/2"] and outcome.prompts == [chain[0], chain[2]]
