"""Demonstrations in the shapes of TRL and of conversations are the same as prompt and completion in text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.bring import tokenizer

from strop.run.fine_tuning import as_demonstrations
from strop.run.sft_config import SftConfig, configure

ASKED = {"role": "user", "content": "What is 3+5?"}
SAID = {"role": "assistant", "content": "It is 8."}
MORE = {"role": "user", "content": "And one more?"}


def config(tmp_path: Path, *rows: Any, sets: tuple[str, ...] = ()) -> SftConfig:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return configure("fresh", file, sets)


@pytest.mark.parametrize(
    ("row", "sets"),
    [
        ({"prompt": [ASKED], "completion": "It is 8."}, ()),
        ({"prompt": [ASKED], "completion": [SAID]}, ()),
        ({"prompt": "What is 3+5?", "completion": [SAID]}, ()),
        ({"messages": [ASKED, SAID]}, ()),
        ({"question": "What is 3+5?", "response": [SAID]}, ("columns.answer=response",)),
        ({"instruction": "What is 3+5?", "input": "", "output": "It is 8."}, ()),
        ({"instruction": "What is 3+5?", "response": "It is 8."}, ("columns.answer=response",)),
    ],
)
def test_every_shape_is_the_same_demonstration(tmp_path: Path, row: Any, sets: tuple[str, ...]) -> None:
    words = tokenizer("qwen3")
    found = config(tmp_path, row, sets=sets)
    (one,) = as_demonstrations(found.source.load(), found, words)
    asked = words.apply_chat_template([ASKED], tokenize=False, add_generation_prompt=True)
    assert words.decode(one.prompt_ids.tolist()) == asked
    assert words.decode(one.completion_ids.tolist()) == "It is 8.<|im_end|>"


def test_demonstrations_may_be_a_list_or_a_table(tmp_path: Path) -> None:
    rows, table = tmp_path / "rows.json", tmp_path / "rows.parquet"
    rows.write_text(json.dumps([{"instruction": "Add.", "input": "3, 5", "output": "8"}]))
    pq.write_table(pa.table({"messages": [[ASKED, SAID]]}), table)
    found = [configure("fresh", file).source.load()[0] for file in (rows, table)]
    assert [(one.prompt, one.reference) for one in found] == [("Add.\n\n3, 5", "8"), ("What is 3+5?", "It is 8.")]


@pytest.mark.parametrize("sets", [(), ("columns.answer=output",)])
def test_an_instruction_is_asked_with_its_input(tmp_path: Path, sets: tuple[str, ...]) -> None:
    row = {"instruction": "Add the numbers.", "input": "3, 5", "output": "8", "text": "of all"}
    (problem,) = config(tmp_path, row, sets=sets).source.load()
    assert (problem.prompt, problem.reference) == ("Add the numbers.\n\n3, 5", "8")
    alone = config(tmp_path, row, sets=(*sets, "columns.prompt=input"))
    assert alone.source.load()[0].prompt == "3, 5"  # where the user says so


def test_of_a_conversation_the_last_turn_is_learned(tmp_path: Path) -> None:
    words = tokenizer("qwen3")
    found = config(tmp_path, {"messages": [ASKED, SAID, MORE, {"role": "assistant", "content": "9"}]})
    (one,) = as_demonstrations(found.source.load(), found, words)
    asked = words.apply_chat_template([ASKED, SAID, MORE], tokenize=False, add_generation_prompt=True)
    assert words.decode(one.prompt_ids.tolist()) == asked
    assert words.decode(one.completion_ids.tolist()) == "9<|im_end|>"
