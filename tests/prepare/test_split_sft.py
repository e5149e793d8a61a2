"""The held-out split, SFT data, and duplicates by embedding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.prepare.working import questions, run
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.types import InputError
from strop.model.files import export
from strop.prepare.deduplicate import TextEncoder
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


def test_what_is_dropped_beside_a_held_out_question_names_it(tmp_path: Path) -> None:
    texts = [f"Take 1.5 and {n}, or 2.5?" for n in range(9)]
    rows = questions(*texts, *(text.upper().replace(",", "") for text in texts))
    outcome = run(tmp_path, [rows], [{"piece": "Split", "count": 3}])
    held = {problem.id for problem in outcome.held_out}
    assert {row["duplicate_of"] for row in outcome.dropped} == held
    assert all(row["detail"] == f"of {row['duplicate_of']}" for row in outcome.dropped)
    assert (len(outcome.kept), len(outcome.dropped)) == (12, 3)


@pytest.mark.parametrize(
    "texts",
    [
        [f"Compute the value of {n} {sign} 7 as an integer." for n in range(10, 14) for sign in "+-*/"],
        [f"A jug holds {n} litres. How many millilitres is that?" for n in (1.5, 15, 2.4, 24, 3.6, 36, 4.5, 45)],
        [f"Find x such that {left} = {n}." for n in (7, 8, 9) for left in ("x + 1", "x - 1", "-x + 1", "-(x + 1)")],
    ],
)
def test_other_questions_than_the_held_out_ones_stay(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"prompt": text, "answer": str(place)} for place, text in enumerate(texts)]
    outcome = run(tmp_path, [rows], ["Deduplicate", {"piece": "Split", "count": 4}])
    assert (len(outcome.held_out), len(outcome.kept)) == (4, len(texts) - 4)


def test_what_is_held_out_follows_from_the_seed(tmp_path: Path) -> None:
    rows = questions(*(f"Question number {n}?" for n in range(50)))
    found = []
    for place, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(place)
        folder.mkdir()
        found.append([p.question for p in run(folder, [rows], [{"piece": "Split", "count": 10}], seed=seed).held_out])
    assert found[0] == found[1] != found[2]


def test_a_split_that_would_take_everything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Split.count="):
        run(tmp_path, [questions("one 1", "two 2", "TWO 2")], [{"piece": "Split", "count": 2}])


def test_sft_data_loses_trivial_prompts_and_long_traces(tmp_path: Path) -> None:
    trace = "First we add the numbers, then we halve the sum, and so the answer is 4."
    rows = [
        {"prompt": "Hello!", "completion": trace},
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


def test_a_question_is_dropped_for_its_likeness_to_a_kept_one_alone(tmp_path: Path) -> None:
    export(tiny_qwen3().model, byte_tokenizer(), tmp_path / "encoder")
    texts = ["a" * 12, "a" * 6 + "z" * 6, "z" * 12, "a" * 5 + "z" * 7]
    vectors = TextEncoder(str(tmp_path / "encoder"), 64)(texts)
    alike = vectors @ vectors.T
    near = min(alike[0, 1], alike[1, 2], alike[2, 3])
    assert alike[0, 2] < near, "the middle is nearer to both ends than they are to each other"
    step = {"piece": "DeduplicateByEmbedding", "model": str(tmp_path / "encoder"),
            "similarity": float(near + alike[0, 2]) / 2}  # fmt: skip
    outcome = run(tmp_path, [questions(*texts)], [step])
    assert outcome.prompts == [texts[0], texts[2]], "like a dropped question is not like a kept one"
    place = {text: number for number, text in enumerate(texts)}
    for pair in outcome.pairs:
        similarity = alike[place[pair["prompt"]], place[pair["duplicate_text"]]]
        assert pair["detail"].endswith(f"overlap {similarity:.2f}")


def test_a_model_that_cannot_embed_is_named_with_the_way_out(tmp_path: Path) -> None:
    run_folder = tmp_path / "runs" / "quickstart"
    export(tiny_qwen3().model, byte_tokenizer(), run_folder / "model")
    (run_folder / "run.json").write_text("{}")
    lacking = tmp_path / "lacking"
    export(tiny_qwen3().model, byte_tokenizer(), lacking)
    weights = load_file(lacking / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, lacking / "model.safetensors", {"format": "pt"})
    for model, said in {
        tmp_path / "nowhere": "nowhere: no such folder; name a folder with config.json, or a hub model",
        run_folder: f"quickstart: this is a run; its model is {run_folder / 'model'}",
        tmp_path: "holds no config.json; name the folder of a Hugging Face model",
        lacking: "lacking: 1 weights are missing, such as norm.weight",
    }.items():
        with pytest.raises(InputError, match=f"embedding model .*{re.escape(said)}"):
            run(tmp_path, [questions("one", "two")], [{"piece": "DeduplicateByEmbedding", "model": str(model)}])
