"""A real pretrained model through the commands: fine-tune, train, resume, export, sample, serve, report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SMALL = (
    "--set", "data.source=problems.jsonl", "--set", "data.held_out.source=held.jsonl", "--set", "data.template=Plain",
    "--set", "verifier.extract=last_number", "--set", "sampling.stop=[]", "--set", "sampling.max_new_tokens=8",
    "--set", "batch.prompts_per_step=2", "--set", "batch.samples_per_prompt=4", "--set", "checkpoint.every=1",
    "--set", "evaluation.samples_per_problem=1", "--set", "optim.lr=1e-6",
    "--set", "algorithm.selection.zero_variance=keep", "--set", "algorithm.selection.refill=false",
    "--set", 'algorithm.regularizers=[{piece="EntropyBonus"}]',  # teaches where every answer is wrong too
)  # fmt: skip
QUESTIONS = ("Ein Kind hat {} Äpfel\nund kauft {}. Wie viele?", "小明有{}个苹果, 又买了{}个。", "🦜 {} + {} = ?")


def strop(folder: Path, *arguments: str) -> str:
    """What a command prints; it must end well."""
    command = [sys.executable, "-m", "strop", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def work(gemma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with problems and a run of two steps, of which the second was resumed, from a fine-tuned model."""
    folder = tmp_path_factory.mktemp("work")
    rows = [(QUESTIONS[i % 3].format(i, i + 1), str(2 * i + 1)) for i in range(24)]
    shown = [{"prompt": question, "completion": f" {answer}"} for question, answer in rows[:8]]
    asked = [{"prompt": question, "answer": answer} for question, answer in rows[8:]]
    for name, lines in (("shown", shown), ("problems", asked[:12]), ("held", asked[12:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tuning = ("--set", "training.steps=1", "--set", "training.tokens_per_batch=200")
    strop(folder, "sft", str(gemma), "--data", "shown.jsonl", "--plain", "--out", "tuned", *tuning)
    strop(
        folder,
        "train",
        "grpo",
        "--plain",
        "--set",
        "model.path=tuned/model",
        "--out",
        "run",
        *SMALL,
        "--set",
        "steps=1",
    )
    strop(folder, "train", "--plain", "--resume", "run", "--set", "steps=2")
    return folder


def test_every_step_moved_every_kind_of_weight(work: Path, gemma: Path) -> None:
    before, tuned = (load_file(path / "model.safetensors") for path in (gemma, work / "tuned/model"))
    assert tuned.keys() == before.keys()
    assert any(not torch.equal(tuned[name], before[name]) for name in before)
    steps = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if "loss" in row] == [1, 2]
    assert all(row["grad_norm"] > 0 for row in steps if "loss" in row)


def test_an_export_loads_and_answers_the_same(work: Path) -> None:
    strop(work, "export", "run", "--out", "exported")
    tokenizer = AutoTokenizer.from_pretrained(work / "exported")
    model = AutoModelForCausalLM.from_pretrained(work / "exported", dtype=torch.float32)
    ids = tokenizer("3 + 4 =", return_tensors="pt")
    wanted = tokenizer.decode(model.generate(**ids, do_sample=False, max_new_tokens=8)[0, ids["input_ids"].shape[1] :])
    # In float32, as the reference: bfloat16 may decide otherwise between two tokens that are nearly as likely.
    precision = ("--set", "model.dtype=float32")
    arguments = ("--prompt", "3 + 4 =", "--temperature", "0", "--max-new-tokens", "8", "--json", *precision)
    told = json.loads(strop(work, "sample", "exported", *arguments))
    assert told[0]["completion"] == wanted


def test_it_is_served(work: Path) -> None:
    command = [sys.executable, "-m", "strop", "serve", "run", "--port", "0", "--json", "--max-new-tokens", "8"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            asked = {"model": facts["model"], "prompt": "3 + 4 =", "max_tokens": 8, "temperature": 0}
            answer = httpx.post(f"{facts['url']}/completions", json=asked, trust_env=False, timeout=120)
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium")
def test_the_report_shows_its_tokens(work: Path, tmp_path: Path) -> None:
    strop(work, "report", "run", "--out", "report")
    (page,) = (work / "report").glob("*.html")
    assert BROWSER is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", f"--user-data-dir={tmp_path}")
    command = [BROWSER, *flags, "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "CONSOLE" not in done.stderr
    assert (
        any(word in done.stdout for word in ("Äpfel", "小明有", "🦜"))
        and "\N{REPLACEMENT CHARACTER}" not in done.stdout
    )
