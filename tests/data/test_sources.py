"""Sources: what they read, and how a bad file is refused in one line that names the place."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from strop.base.types import InputError, Message, Problem
from strop.data.columns import Columns
from strop.data.generators import ChainSum, ReasoningGym, signed_terms, solve
from strop.data.rows import HubDataset, JsonLines, ParquetFile
from strop.data.source import ProblemSource, parse_source

ALL_SUMS_OF_TWO = {
    f"{a}{sign}{b}=" for a in range(1, 10) for b in range(1, 10) for sign in "+-" if sign == "+" or b <= a
}
ROWS: list[dict[str, Any]] = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": 4}]


def write_lines(path: Path, lines: Sequence[object]) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_json_lines(tmp_path: Path) -> None:
    problems = JsonLines(path=write_lines(tmp_path / "sums.jsonl", [ROWS[0], "", ROWS[1]])).load()
    assert [(p.id, p.prompt, p.reference, p.source) for p in problems] == [
        ("sums-1", "1+1=", "2", "sums"),
        ("sums-3", "2+2=", 4, "sums"),  # ids follow the lines of the file, blank ones counted
    ]


def test_answers_written_as_json(tmp_path: Path) -> None:
    rows = [{"prompt": str(n), "answer": answer} for n, answer in enumerate(['["42"]', '["1", "2"]', '"x"', "7"])]
    columns = Columns(answer_json=True)
    problems = JsonLines(path=write_lines(tmp_path / "a.jsonl", rows), columns=columns).load()
    assert [p.reference for p in problems] == ["42", ["1", "2"], "x", 7]
    broken = write_lines(tmp_path / "b.jsonl", [{"prompt": "1+1", "answer": "[42"}])
    with pytest.raises(InputError, match="b.jsonl:1: "):
        JsonLines(path=broken, columns=columns).load()


def test_json_lines_gzipped_with_byte_order_mark_and_limit(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + "\n".join(map(json.dumps, ROWS)).encode()))
    assert [p.id for p in JsonLines(path=str(path)).load(limit=1)] == ["sums-1"]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1+1", "reward_model": {"ground_truth": "2"}},
        {"prompt": "1+1", "ground_truth": "2", "solution": "long"},
        {"question": "1+1", "answer": "One and one are <<1+1=2>>2.\n#### 2"},
        {"problem": "1+1", "answer": None, "expected_answer": "2"},
        {"problem": "1+1", "solution": r"It is \boxed{2}."},
    ],
    ids=["verl", "trl", "gsm8k", "null", "open-r1"],
)
def test_usual_columns_are_recognised(tmp_path: Path, row: dict[str, object]) -> None:
    """The first row decides for all; a worked solution that the answer is taken from is kept."""
    path = write_lines(tmp_path / "a.jsonl", [row, row])
    assert [(found.prompt, found.reference) for found in JsonLines(path=path).load()] == [("1+1", "2")] * 2
    solution = next((str(text) for text in row.values() if "####" in str(text) or "boxed" in str(text)), None)
    assert JsonLines(path=path).load()[0].extra == ({"solution": solution} if solution else {})
    other = write_lines(tmp_path / "b.jsonl", [row, {"input": "1+1", "target": "2"}])
    with pytest.raises(InputError, match=r"b\.jsonl:2: "):
        JsonLines(path=other).load()


def test_a_solution_without_a_box_among_others_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    rows = [{"problem": "1+1", "solution": r"$1 + \boxed{2} - 0$"}, {"problem": "2+2", "solution": "Surely four."}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        JsonLines(path=path).load()
    named = JsonLines(path=path, columns=Columns(answer="solution")).load()
    assert [problem.reference for problem in named] == [row["solution"] for row in rows]


GSM8K = "She has 1,000 + 250 = <<1000+250=1250>>1,250.\n#### 1,250"


@pytest.mark.parametrize(
    ("answer", "domain", "reference"),
    [
        (GSM8K, "math", "1250"), ("so #### -3.5 \r\n", "math", "-3.5"), (r"#### \frac{1}{2}", "math", r"\frac{1}{2}"),
        ("# Notes\n#### Part 2\nthe end", "math", None), ("#### 7\nis a number", "math", None),
        ("# Notes\n#### Conclusion", "math", None), ("##### 2", "math", None), ("so\n####", "math", None),
        (["#### 2"], "math", None), ("assert f() == 2\n#### 2", "code", None),
    ],
)  # fmt: skip
def test_the_result_of_a_worked_solution_is_the_reference_whether_its_column_is_named_or_not(
    tmp_path: Path, answer: object, domain: str, reference: str | None
) -> None:
    """What GSM8K writes before it is kept; texts with headings, lists and what programs are judged by stay whole."""
    path = write_lines(tmp_path / "a.jsonl", [{"question": "1+1", "prompt": "other", "answer": answer}])
    for columns in (Columns(prompt="question"), Columns(prompt="question", answer="answer")):
        (problem,) = JsonLines(path=path, columns=columns, domain=domain).load()
        assert (problem.prompt, problem.reference) == ("1+1", answer if reference is None else reference)
        assert problem.extra == ({} if reference is None else {"solution": answer})


@pytest.mark.parametrize("row", [{"problem": "1+1", "solution": "2"}, {"text": "1+1", "answer": "2"}])
def test_a_column_that_is_not_recognised_is_to_be_named(tmp_path: Path, row: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"a\.jsonl:1: .*data\.source\.columns"):
        JsonLines(path=write_lines(tmp_path / "a.jsonl", [row])).load()


def test_columns(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "1+1="}]
    row = {"chat": chat, "reward_model": {"ground_truth": "2"}, "uid": 7, "level": "easy"}
    columns = Columns(prompt="chat", answer="reward_model.ground_truth", id="uid", extra=("level",))
    path = write_lines(tmp_path / "verl.jsonl", [row])
    expected = Problem("7", "1+1=", "2", domain="sums", source="verl", extra={"level": "easy"})
    assert JsonLines(path=path, columns=columns, domain="sums").load() == (expected,)


def test_turns_may_be_written_as_sharegpt_writes_them(tmp_path: Path) -> None:
    """As the sets of Open-Reasoner-Zero and Skywork are."""
    turns = [("system", "Be brief."), ("human", "1+1="), ("gpt", "2"), ("user", "2+1=")]
    row = {"prompt": [{"from": speaker, "value": text} for speaker, text in turns], "answer": "3"}
    (problem,) = JsonLines(path=write_lines(tmp_path / "a.jsonl", [row])).load()
    roles = ("system", "user", "assistant", "user")
    texts = [text for _, text in turns]
    assert problem.prompt == tuple(Message(role=role, content=text) for role, text in zip(roles, texts, strict=True))


def test_a_chat_may_be_written_as_json(tmp_path: Path) -> None:
    """As tables of texts have it; a text that merely begins so stays a text."""
    chat = [{"role": "user", "content": "1+1="}]
    rows = [{"prompt": text, "answer": "2"} for text in (json.dumps(chat, indent=1), '[{"role": is JSON', '[{"x": 1}]')]
    first, *others = JsonLines(path=write_lines(tmp_path / "a.jsonl", rows)).load()
    assert first.prompt == "1+1="
    assert [problem.prompt for problem in others] == [row["prompt"] for row in rows[1:]]


@pytest.mark.parametrize(
    ("row", "taken", "beside"),
    [
        ({"prompt": "1+1=", "system": "Be brief."}, "prompt", "system"),
        ({"question": "Which?", "choices": ["1", "2"]}, "question", "choices"),
        ({"question": "Who?", "context": "It was Ada."}, "question", "context"),
        ({"instruction": "Add.", "input": "1+1"}, "input", "instruction"),
    ],
)
def test_a_question_whose_parts_stand_in_two_columns_is_not_taken_for_one_of_them(
    tmp_path: Path, row: dict[str, object], taken: str, beside: str
) -> None:
    rows = [{**row, beside: None, "answer": "2"}, {**row, "answer": "2"}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(InputError, match=f"a.jsonl:2: .*'{taken}'.*'{beside}'.*columns.prompt={taken}"):
        JsonLines(path=path).load()
    assert len(JsonLines(path=path, columns=Columns(prompt=taken)).load()) == 2


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "1+1=", "answer": 2',
        '["1+1=", 2]',
        {"promt": "1+1=", "answer": 2},
        {"prompt": "1+1=", "answer": None},
        {"prompt": "1+1=", "answer": float("nan")},
        {"prompt": "  ", "answer": 2},
        {"prompt": 7, "answer": 2},
        {"prompt": [], "answer": 2},
        {"prompt": [{"role": "user"}], "answer": 2},
        {"prompt": [{"role": "robot", "content": "x"}], "answer": 2},
        {"prompt": [{"role": "user", "content": 1}], "answer": 2},
        {"prompt": [{"role": "assistant", "content": "x"}], "answer": 2},
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: object) -> None:
    path = write_lines(tmp_path / "bad.jsonl", [ROWS[0], line])
    with pytest.raises(InputError, match=r"bad\.jsonl:2: ") as caught:
        JsonLines(path=path).load()
    assert "\n" not in str(caught.value)


def test_values_keep_their_types_whatever_other_rows_hold(tmp_path: Path) -> None:
    """Libraries that give a column one type make text or floats of these."""
    answers: list[Any] = ["2", 4, [1, 2], 10**29 + 1, {"k": 1}, "007"]
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": f"{n}?", "answer": it} for n, it in enumerate(answers)])
    assert [problem.reference for problem in JsonLines(path=path).load()] == answers
    (tmp_path / "a.csv").write_text("prompt,answer\nq?,007\np?,2.50\n")
    assert [problem.reference for problem in parse_source(str(tmp_path / "a.csv")).load()] == ["007", "2.50"]


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(json.dumps(ROWS[0]).encode() + b'\n{"prompt": "\xff"}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl:2: "):
        JsonLines(path=str(path)).load()


def test_a_broken_line_after_the_limit_is_not_read(tmp_path: Path) -> None:
    assert len(JsonLines(path=write_lines(tmp_path / "bad.jsonl", [*ROWS, "{"])).load(limit=2)) == 2


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.parquet", "."])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    source: ProblemSource = (ParquetFile if name.endswith("parquet") else JsonLines)(path=str(tmp_path / name))
    with pytest.raises(InputError, match=re.escape(name)):
        source.load()


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty.jsonl"):
        JsonLines(path=write_lines(tmp_path / "empty.jsonl", [""])).load()


def test_ids_must_be_unique(tmp_path: Path) -> None:
    rows = [{**row, "id": "a"} for row in ROWS]
    with pytest.raises(InputError, match="'a'"):
        JsonLines(path=write_lines(tmp_path / "twice.jsonl", rows), columns=Columns(id="id")).load()


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "sums.parquet"
    chats = [[{"role": "user", "content": row["prompt"]}] for row in ROWS]
    parquet.write_table(pyarrow.table({"prompt": chats, "answer": ["2", "4"]}), path)
    problems = ParquetFile(path=str(path)).load()
    assert [(p.id, p.question, p.reference) for p in problems] == [("sums-1", "1+1=", "2"), ("sums-2", "2+2=", "4")]
    path.write_text("no table")
    with pytest.raises(InputError, match="sums.parquet"):
        ParquetFile(path=str(path)).load()


def test_a_pattern_names_the_shards_of_a_set(tmp_path: Path) -> None:
    for number in range(3):
        rows = [{"question": f"{number}+{other}=", "answer": str(number + other)} for other in range(2)]
        name = f"train-0000{number}-of-00003"
        write_lines(tmp_path / f"{name}.jsonl", rows)
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([{"question": "9+9=", "answer": "18"}]), tmp_path / "test.parquet")
    for source in (JsonLines(path=f"{tmp_path}/train-*.jsonl"), ParquetFile(path=f"{tmp_path}/train-*.parquet")):
        found = source.load()
        assert [problem.id for problem in found] == [f"train-{number}" for number in range(1, 7)]
        assert [problem.prompt for problem in found] == ["0+0=", "0+1=", "1+0=", "1+1=", "2+0=", "2+1="]
    with pytest.raises(InputError, match="validation"):
        ParquetFile(path=f"{tmp_path}/validation-*.parquet").load()
    with pytest.raises(InputError, match=r"test\.parquet"):
        ParquetFile(path=str(tmp_path)).load()


def test_a_broken_line_of_a_shard_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "a0.jsonl", [{"prompt": "1+1=", "answer": "2"}])
    (tmp_path / "a1.jsonl").write_text("{]\n")
    with pytest.raises(InputError, match=r"a1\.jsonl:1: "):
        JsonLines(path=f"{tmp_path}/a*.jsonl").load()


def test_tabs_part_the_cells_of_a_tsv_file(tmp_path: Path) -> None:
    path = tmp_path / "sums.tsv"
    path.write_text("question\tanswer\nWhat is 1,000+1?\t1001\n")
    (problem,) = parse_source(str(path)).load()
    assert (problem.prompt, problem.reference) == ("What is 1,000+1?", "1001")


def test_a_json_file_is_a_list(tmp_path: Path) -> None:
    path, rows = tmp_path / "sums.json", [{"question": "1+1=", "answer": "2"}]
    path.write_text(json.dumps(rows))
    assert parse_source(str(path)).load()[0].reference == "2"
    path.write_text(json.dumps({"data": rows}))
    with pytest.raises(InputError, match=r"sums\.json: .*keep only its list 'data'"):
        parse_source(str(path)).load()
    lines = path.with_suffix(".jsonl")
    for indent in (None, 2):
        lines.write_text(json.dumps(rows, indent=indent))
        with pytest.raises(InputError, match=r"sums\.jsonl:1: .*a (?:file that is one )?list (?:called )?\.json"):
            parse_source(str(lines)).load()


def test_gsm8k(tmp_path: Path) -> None:
    solution = "She has 1,000 + 250 = <<1000+250=1250>>1,250.\n#### 1,250"
    path = write_lines(tmp_path / "train.jsonl", [{"question": "How many?", "answer": solution}])
    (problem,) = parse_source(path).load()
    assert (problem.id, problem.reference, problem.extra) == ("train-1", "1250", {"solution": solution})
    assert parse_source("gsm8k") == HubDataset(dataset="openai/gsm8k", subset="main")


@given(terms=st.integers(2, 6), digits=st.integers(1, 3), signs=st.sampled_from(["+", "+-"]), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_chain_sums(terms: int, digits: int, signs: Any, seed: int) -> None:
    source = ChainSum(count=20, terms=terms, digits=digits, signs=signs, seed=seed)
    problems = source.load()
    assert problems == source.load()
    assert len({p.prompt for p in problems}) == 20
    for problem in problems:
        assert isinstance(problem.prompt, str) and problem.prompt.endswith("=")
        parts = [int(term) for term in signed_terms(problem.prompt)]
        assert len(parts) == terms and all(len(str(abs(term))) == digits for term in parts)
        assert all(sum(parts[:end]) >= 0 for end in range(1, terms + 1))
        assert problem.reference == str(eval(problem.prompt.rstrip("=")))


def test_chain_sums_stay_the_same() -> None:
    """A run is repeated from its seed for years: these texts may not change."""
    assert [p.prompt for p in ChainSum(count=3, seed=7).load()] == ["6-3+1+9-2=", "1+9+4-2+7=", "4-2+1+4-1="]
    assert solve("3+5-2+7+1=") == 14


def test_the_parts_of_chain_sums_are_disjoint_whatever_the_seed() -> None:
    train = {p.question for seed in range(3) for p in ChainSum(count=60, terms=2, part="train", seed=seed).load()}
    held_out = {p.question for seed in range(3) for p in ChainSum(count=10, terms=2, part="held_out", seed=seed).load()}
    assert not train & held_out
    assert {p.question for p in ChainSum(count=126, terms=2).load()} == ALL_SUMS_OF_TWO
    assert train | held_out <= ALL_SUMS_OF_TWO


def test_too_many_chain_sums() -> None:
    with pytest.raises(InputError, match="count is 10"):
        ChainSum(count=10, terms=1).load()


def test_reasoning_gym() -> None:
    pytest.importorskip("reasoning_gym", reason="extra gym")
    source = ReasoningGym(task="chain_sum", size=3, seed=5, parameters={"max_terms": 2})
    problems = source.load()
    assert problems == source.load() and len(problems) == 3
    assert json.loads(json.dumps(problems[1].extra)) == {
        "task": "chain_sum",
        "size": 3,
        "seed": 5,
        "parameters": {"max_terms": 2},
        "index": 1,
    }


def test_reasoning_gym_refusals() -> None:
    pytest.importorskip("reasoning_gym", reason="extra gym")
    with pytest.raises(InputError, match="'chain_sum'"):
        ReasoningGym(task="chain_sums").load()
    with pytest.raises(InputError, match="trems"):
        ReasoningGym(task="chain_sum", parameters={"trems": 3}).load()


@pytest.mark.parametrize(
    ("source", "package", "extra"),
    [
        (HubDataset(dataset="openai/gsm8k"), "datasets", "hub"),
        (ReasoningGym(task="basic_arithmetic"), "reasoning_gym", "gym"),
    ],
)
def test_an_absent_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, source: ProblemSource, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{package}.*strop\[{extra}\]"):
        source.load()


def test_hub_dataset_reads_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="extra hub")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "sums"
    folder.mkdir()
    write_lines(folder / "train.jsonl", [{**row, "answer": str(row["answer"])} for row in ROWS])
    source = HubDataset(dataset=str(folder))
    assert [(p.id, p.reference) for p in source.load()] == [("sums-1", "2"), ("sums-2", "4")]
    with pytest.raises(InputError, match="sums"):
        HubDataset(dataset=str(folder), split="nothing").load()


@pytest.mark.parametrize("column", ["prompt", "answer"])
def test_half_a_character_is_refused_where_it_stands(column: str, tmp_path: Path) -> None:
    row = {"prompt": "q", "answer": "1"}
    path = write_lines(tmp_path / "a.jsonl", [row, row | {"prompt": "p", column: "\ud800"}])
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        JsonLines(path=path).load()
