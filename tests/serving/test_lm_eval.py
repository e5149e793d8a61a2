"""EleutherAI's lm-evaluation-harness drives a served model: its numbers are those of the model itself.

Needs the command of its package in an environment of its own, named by STROP_LM_EVAL (or `lm_eval` on the path):

    python -m venv lm && lm/bin/pip install "lm_eval[api]" transformers
    STROP_LM_EVAL=lm/bin/lm_eval make test-all ARGS="-k lm_eval"
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.serving.running import Running, directly, endpoint
from tests.tiny import byte_tokenizer

COMMAND = os.environ.get("STROP_LM_EVAL") or shutil.which("lm_eval")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMMAND is None, reason='needs lm-evaluation-harness, pip install "lm_eval[api]" transformers'),
]

ROWS = [
    {"question": f"{a}+{b}=", "answer": str(a + b)}
    for a, b in ((1, 2), (7, 5), (30, 4))
]
COMMON = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
"""
GENERATE = """
task: sums_generate
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def harness(folder: Path, running: Running, model: str, path: str, tasks: str, *more: str) -> dict[str, Any]:
    """Samples by task."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "generate.yaml").write_text(GENERATE + COMMON.format(data=data))
    byte_tokenizer(chat=True).save_pretrained(folder / "tokenizer")
    out = folder / f"out-{model}"
    assert COMMAND is not None
    command = [
        COMMAND, "run", "--model", model, "--model_args",
        f"model=tiny,base_url={running.url}{path},max_length=512,num_concurrent=3,tokenizer={folder / 'tokenizer'}",
        "--tasks", tasks,
        "--include_path", str(folder), "--output_path", str(out), "--log_samples", *more,
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = {}
    for file in out.rglob("samples_*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found[file.name.split("_2")[0].removeprefix("samples_")] = sorted(lines, key=lambda line: int(line["doc_id"]))
    return found


def test_generation_through_completions(tmp_path: Path) -> None:
    with endpoint() as running:
        found = harness(tmp_path, running, "local-completions", "/completions", "sums_generate")
    for row, sample in zip(ROWS, found["sums_generate"], strict=True):
        wanted = directly(str(row["question"]), 1234, temperature=0, max_new_tokens=12, stop=("\n",))[0].text
        assert sample["resps"][0][0] == wanted.split("\n")[0]


def test_generation_through_chats(tmp_path: Path) -> None:
    with endpoint() as running:
        found = harness(
            tmp_path, running, "local-chat-completions", "/chat/completions", "sums_generate", "--apply_chat_template"
        )
    for row, sample in zip(ROWS, found["sums_generate"], strict=True):
        prompt = f"user: {row['question']}\nassistant: "
        wanted = directly(prompt, 1234, temperature=0, max_new_tokens=12, stop=("\n",))[0].text
        assert sample["resps"][0][0] == wanted.split("\n")[0]
