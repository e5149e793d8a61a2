"""Benchmarks by name: small files in the shapes in which the real ones are published, on the hub and beside it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.base.types import InputError, Problem
from strop.data.rows import HubDataset, JsonLines
from strop.data.templates import ChatTemplate, OpenReasonerZero, Plain
from strop.evaluation.benchmarks import (
    CATALOGUE,
    GYM_SEED,
    benchmark,
    default_verifier,
    load_problems,
    with_instruction,
)
from strop.verifiers.answer import MultipleChoice, ReasoningGymScorer
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.math_verifier import MathVerifier


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows in the format that the file's name asks for."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(json.dumps(list(rows)) if path.suffix == ".json" else lines)
    return path


def only(name: str, data: Path) -> Problem:
    (problem,) = load_problems(benchmark(name), data)
    return problem


ASKED = "What is $1+1$?"
SKYWORK = {
    "prompt": [
        {"role": "user", "content": f"{ASKED} Let's think step by step and output the final answer within \\boxed{{}}."}
    ],
    "reward_model": {"ground_truth": "2", "style": "rule"},
}
ORZ = {"prompt": [{"from": "user", "value": ASKED}], "final_answer": "2"}


@pytest.mark.parametrize(
    ("name", "file", "row"),
    [
        ("aime24", "aime24.parquet", SKYWORK),
        ("aime24", "aime24.json", ORZ),
        ("aime24", "aime24.jsonl", {"id": 60, "problem": ASKED, "solution": "…", "answer": "2", "url": "", "year": 1}),
        ("aime25", "aime25.jsonl", {"problem": ASKED, "answer": "2", "id": "0"}),
        ("amc23", "amc23.jsonl", {"id": 0, "problem": ASKED, "answer": 2.0, "url": "", "question": ASKED}),
        ("math500", "math500.json", ORZ),
        ("math500", "math500.parquet", {"problem": ASKED, "solution": "…", "answer": "2", "unique_id": "a/b.json"}),
        ("minerva", "minerva.jsonl", {"problem": ASKED, "solution": "So \\boxed{1} + 1 is \\boxed{2}.", "idx": 0}),
        ("minerva", "minerva.jsonl", {"question": ASKED, "answer": "2"}),
        ("olympiadbench", "olympiadbench.jsonl", {"question": ASKED, "context": None, "final_answer": ["$2$"]}),
        ("gsm8k", "gsm8k.jsonl", {"question": ASKED, "answer": "It is <<1+1=2>>2.\n#### 2"}),
    ],
)
def test_mathematics_in_every_published_shape(tmp_path: Path, name: str, file: str, row: dict[str, Any]) -> None:
    write(tmp_path / file, [row])
    problem = only(name, tmp_path)
    assert (problem.prompt, problem.reference, problem.domain, problem.source) == (ASKED, "2", "math", name)
    assert problem.id == f"{name}-1"


def test_a_file_of_gsm8ks_solutions_is_asked_for_their_results(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [{"question": ASKED, "answer": "It is <<1+1=2>>2.\n#### 1,002"}])
    (problem,) = load_problems(benchmark(str(file)))
    assert problem.reference == "1002"


def test_several_answers_and_a_context(tmp_path: Path) -> None:
    row = {"question": ASKED, "context": "Let $x=1$.", "final_answer": ["$x=1$", "$x=2$"]}
    problem = only("olympiadbench", write(tmp_path / "olympiadbench.jsonl", [row]))
    assert (problem.prompt, problem.reference) == (f"Let $x=1$.\n{ASKED}", "x=1, x=2")


MMLU = {"question": "Which?", "choices": ["w", "x", "y", "z"], "answer": 2, "subject": "s"}
PRO = {"question": "Which?", "options": list("pqrstuvwxy"), "answer": "J", "answer_index": 9, "question_id": 70}


@pytest.mark.parametrize(
    ("name", "row", "letter", "last"), [("mmlu", MMLU, "C", "D) z"), ("mmlu_pro", PRO, "J", "J) y")]
)
def test_options_are_lettered(tmp_path: Path, name: str, row: dict[str, Any], letter: str, last: str) -> None:
    problem = only(name, write(tmp_path / f"{name}.parquet", [row]))
    assert problem.reference == letter
    assert str(problem.prompt).startswith("Which?\n\nA) ") and str(problem.prompt).endswith(last)


def test_gpqa_options_are_shuffled_the_same_way_every_time(tmp_path: Path) -> None:
    rows = [
        {"Question": f"Q{index}", "Correct Answer": "right", "Record ID": f"rec{index}",
         **{f"Incorrect Answer {place}": f"wrong {place}" for place in (1, 2, 3)}}
        for index in range(40)
    ]  # fmt: skip
    file = write(tmp_path / "gpqa_diamond.jsonl", rows)
    problems = load_problems(benchmark("gpqa_diamond"), file)
    assert problems == load_problems(benchmark("gpqa_diamond"), file)
    assert {problem.reference for problem in problems} == set("ABCD")
    for problem in problems:
        assert f"{problem.reference}) right" in str(problem.prompt)


@pytest.mark.parametrize(
    "row", [{**MMLU, "answer": 4}, {**MMLU, "answer": "x"}, {**MMLU, "choices": ["w"], "answer": 0}]
)
def test_an_answer_that_is_no_option_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"mmlu\.jsonl:1: .*option"):
        load_problems(benchmark("mmlu"), write(tmp_path / "mmlu.jsonl", [row]))


def contest(identity: str, date: str) -> dict[str, Any]:
    tests = json.dumps([{"input": "1\n", "output": "1\n", "testtype": "stdin"}])
    return {
        "question_id": identity, "question_content": "Echo.", "contest_date": date, "starter_code": "",
        "public_test_cases": tests, "private_test_cases": "[]", "metadata": "{}",
    }  # fmt: skip


def test_livecodebench_by_window_from_the_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "livecodebench"
    folder.mkdir()
    write(folder / "test.jsonl", [contest("a", "2024-05-01T00:00:00"), contest("b", "2024-09-01T00:00:00")])
    write(folder / "test2.jsonl", [contest("c", "2025-03-01T00:00:00")])

    def ids(name: str) -> list[str]:
        return [problem.id.removeprefix("livecodebench-") for problem in load_problems(benchmark(name), tmp_path)]

    assert ids("livecodebench") == ["a", "b", "c"]
    assert ids("livecodebench:v5") == ["b"]
    assert ids("livecodebench:v6") == ["c"]
    assert ids("livecodebench:2024-01-01..2024-12-31") == ["a", "b"]
    with pytest.raises(InputError, match=r"2023-01-01\.\.2023-02-01"):
        ids("livecodebench:2023-01..2023-02")


def test_reasoning_gym_tasks_have_seeds_of_their_own() -> None:
    pytest.importorskip("reasoning_gym", reason='needs the extra gym: pip install "strop[gym]"')
    found = benchmark("reasoning-gym:chain_sum")
    problems = load_problems(found, limit=3)
    assert len(problems) == 3 and all(problem.extra["seed"] == GYM_SEED for problem in problems)
    assert default_verifier(found.kind) == ReasoningGymScorer(extract="any")


def test_a_file_of_the_users_own_is_a_benchmark(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [{"question": "1+1=", "answer": 2}])
    assert benchmark(str(file)).name == "mine"
    assert load_problems(benchmark(str(file)))[0].reference == 2


def test_the_hub_is_read_by_the_same_columns(tmp_path: Path) -> None:
    """A folder stands for the hub: `datasets` reads both alike."""
    pytest.importorskip("datasets", reason='needs the extra hub: pip install "strop[hub]"')
    (tmp_path / "repo").mkdir()
    write(tmp_path / "repo" / "test.parquet", [{"problem": ASKED, "answer": "2", "unique_id": "x"}])
    found = benchmark("math500").model_copy(update={"hub": HubDataset(dataset=str(tmp_path / "repo"), split="test")})
    (problem,) = load_problems(found)
    assert (problem.prompt, problem.reference) == (ASKED, "2")


def test_the_catalogue_names_hub_data_sets() -> None:
    known = {name: found.hub for name, found in CATALOGUE.items() if found.hub is not None}
    hubs = {name: (hub.dataset, hub.subset, hub.split) for name, hub in known.items()}
    assert hubs["gpqa_diamond"] == ("Idavidrein/gpqa", "gpqa_diamond", "train")
    assert hubs["mmlu"] == ("cais/mmlu", "all", "test")
    assert hubs["livecodebench"] == ("lighteval/code_generation_lite", "release_v6", "test")
    assert hubs.keys() == CATALOGUE.keys()


def test_what_was_looked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"evaluation\.benchmark_data=.* aime24\.jsonl"):
        load_problems(benchmark("aime24"), tmp_path)
    with pytest.raises(InputError, match="nowhere"):
        load_problems(benchmark("aime24"), tmp_path / "nowhere")
    with pytest.raises(InputError, match="amie24"):
        benchmark("amie24")
    with pytest.raises(InputError, match="held_out"):
        load_problems(benchmark("held_out"))


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ([{"problem": "x", "answer": "1"}, {"problem": "x"}], ":2: .*'answer'"),
        ([{"text": "x", "answer": "1"}], ":1: .*'prompt'"),
        ([{"problem": 3, "answer": "1"}], ":1: "),
        ([{"problem": "x", "answer": None, "solution": "no box"}], ":1: .*answer"),
        ([{"problem": "x", "answer": True}], ":1: True"),
        ([{"problem": " ", "answer": "1"}], ":1: "),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, rows: list[dict[str, Any]], place: str) -> None:
    with pytest.raises(InputError, match=rf"math500\.jsonl{place}"):
        load_problems(benchmark("math500"), write(tmp_path / "math500.jsonl", rows))


CHAT = [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Remember x = 1."},
    {"role": "assistant", "content": "I do."}, {"role": "user", "content": ASKED},
]  # fmt: skip


@pytest.mark.parametrize("chat", [CHAT, CHAT[:1] + CHAT[3:], CHAT[1:], CHAT[3:]])
@pytest.mark.parametrize("style", ["messages", "sharegpt"])
def test_a_file_of_chats_asks_what_training_on_it_asks(chat: list[dict[str, str]], style: str, tmp_path: Path) -> None:
    """Only the user's turns were asked, in one: without the system message, and unlike what had been trained on."""
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    turns: list[dict[str, Any]] = [{"from": names[turn["role"]], "value": turn["content"]} for turn in chat]
    row = {"messages": chat if style == "messages" else turns, "answer": "2"}
    file = write(tmp_path / "chats.jsonl", [row])
    (trained,) = JsonLines(path=str(file)).load()
    (problem,) = load_problems(benchmark(str(file)))
    assert (problem.question, problem.prompt) == (trained.question, trained.prompt)


@pytest.mark.parametrize("name", ["choices", "options", "passage", "system"])
def test_a_file_whose_question_stands_in_two_columns_is_refused(name: str, tmp_path: Path) -> None:
    """Multiple-choice questions were asked without their options, and measured at nothing."""
    file = write(tmp_path / "exam.jsonl", [{"question": "Which?", name: ["p", "q"], "answer": "B"}])
    with pytest.raises(InputError, match=f"exam.jsonl:1: .*'question'.*'{name}'"):
        load_problems(benchmark(str(file)))


def test_a_file_with_other_columns_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "frage.jsonl", [{"frage": "1+1", "loesung": "2"}])
    with pytest.raises(InputError, match=r"frage\.jsonl:1: .*'answer'.*data\.source\.columns"):
        load_problems(benchmark(str(file)))


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[3]"])
def test_a_broken_json_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "math500.json").write_text(content)
    with pytest.raises(InputError, match=r"math500\.json"):
        load_problems(benchmark("math500"), tmp_path)


def test_templates_are_made_to_ask_for_the_form_of_the_answer_only_where_they_say_nothing() -> None:
    assert "\\boxed" in str(with_instruction(ChatTemplate(), "math").model_dump()["instruction"])
    assert "letter" in str(with_instruction(Plain(), "choice").model_dump()["suffix"])
    for own in (ChatTemplate(instruction="Answer."), Plain(suffix="\nA:"), OpenReasonerZero()):
        assert with_instruction(own, "math") == own


def test_who_judges() -> None:
    assert default_verifier("math", "answer_tag") == MathVerifier(extract="answer_tag")
    assert default_verifier("choice") == MultipleChoice(extract="any")
    assert default_verifier("code") == CodeVerifier()
