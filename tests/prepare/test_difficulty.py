"""Difficulty by a real tiny model: pass rates, ranges, two screens, and going on after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.working import questions, run
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.imports import allow_module
from strop.base.seeds import derive
from strop.base.types import InputError, Problem, StropError, Verdict
from strop.data.templates import Auto
from strop.model.files import export
from strop.model.location import asked_with
from strop.prepare import Difficulty
from strop.recipes.resolve import resolve
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status

allow_module(__name__)


class ByWord(Verifier):
    """Judges by the question: `never` is never right, `always` always, else by the completion's hash."""

    die_after: int | None = None

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        if self.die_after is not None and int(problem.question.split()[-1]) >= self.die_after:
            raise StropError("killed")
        if "broken" in problem.question:
            return Verdict(0.0, Status.ERROR, "no sandbox")
        right = "always" in problem.question or ("never" not in problem.question and derive(0, text) % 2 == 0)
        return Verdict(float(right), Status.CORRECT if right else Status.WRONG)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    export(tiny_qwen3().model, byte_tokenizer(), folder)
    return str(folder)


def step(model: str, **more: Any) -> dict[str, Any]:
    piece = f"{__name__}:ByWord"
    return {"piece": "Difficulty", "model": {"path": model}, "name": "tiny", "samples": 8, "verifier": {"piece": piece},
            "sampling": {"max_new_tokens": 6}, "device": "cpu", "engine": {"slots": 16}, **more}  # fmt: skip


ROWS = questions("never 0", "always 1", "sometimes 2", "sometimes 3", "broken 4")


def test_problems_that_teach_something_are_kept_with_their_pass_rates(tmp_path: Path, model: str) -> None:
    outcome = run(tmp_path, [ROWS], [step(model, seed=1)])
    assert outcome.prompts == ["sometimes 2", "sometimes 3"]
    assert outcome.reasons == {"too hard for tiny": 1, "too easy for tiny": 1, "the verifier failed on every sample": 1}
    for problem in outcome.kept:
        rate = problem.extra["pass_rates"]["tiny"]
        assert rate["samples"] == 8 and 1 <= rate["correct"] <= 7
    lines = [json.loads(line) for line in (outcome.folder / "pass_rates.jsonl").read_text().splitlines()]
    assert {line["id"]: line["tally"][:2] for line in lines}["set0/2"] == [8, 8]
    histogram = outcome.step("difficulty")["counts"]["problems_by_correct_samples"]
    assert (histogram[0], histogram[8], sum(histogram)) == (1, 1, 4)


@pytest.mark.parametrize("path", ["embedded", "embedded-moe", "org/model"])
def test_a_model_is_asked_as_training_asks_it(path: str, tmp_path: Path) -> None:
    """Without the sentence about the answer where the model is one of ours, which was never taught to read it."""
    step = Difficulty.model_validate({"model": {"path": path}})
    trained = resolve("grpo", [f"model.path={path}"]).data.template
    assert asked_with(step.template, step.model) == trained == Auto(instruct=None if path == "org/model" else False)
    said = resolve("grpo", [f"model.path={path}", "data.template.instruct=true"])
    assert said.data.template == Auto(instruct=True)
    stored = tmp_path / "config.json"
    stored.write_text(said.model_dump_json())
    assert resolve(str(stored)) == said, "what a file says stands, so that a resumed run asks as before"


def test_two_screens_in_a_row(tmp_path: Path, model: str) -> None:
    strong = step(model, name="strong", max_correct=8, samples=8)
    policy = step(model, name="policy", samples=4, seed=5)
    outcome = run(tmp_path, [ROWS[:4]], [strong, policy])
    first, second = (entry for entry in outcome.report["steps"] if entry["step"] == "difficulty")
    assert first["reasons"] == {"too hard for strong": 1} and first["out"] == 3
    assert second["reasons"]["too easy for policy"] >= 1
    assert all(set(problem.extra["pass_rates"]) == {"strong", "policy"} for problem in outcome.kept)
    assert (outcome.folder / "steps" / "01-difficulty").is_dir() and (
        outcome.folder / "steps" / "02-difficulty"
    ).is_dir()


def test_a_killed_estimation_goes_on_with_the_same_samples(tmp_path: Path, model: str) -> None:
    rows = questions(*(f"sometimes {number}" for number in range(12)))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = run(tmp_path / "whole", [rows], [step(model)])
    journal = tmp_path / "killed" / "out" / "steps" / "01-difficulty.partial" / "samples.jsonl"
    run(tmp_path / "killed", [rows], [step(model, max_correct=8, min_correct=0)])
    done = (tmp_path / "killed" / "out" / "pass_rates.jsonl").read_text().splitlines(keepends=True)
    key = (tmp_path / "killed" / "out" / "steps" / "01-difficulty" / "key").read_text()
    (tmp_path / "killed" / "out" / "steps" / "01-difficulty").rename(journal.parent)
    (journal.parent / "key").write_text(key)
    journal.write_text("".join(done[:5]) + done[5][:20])  # as a kill leaves it: the last line torn
    again = run(tmp_path / "killed", [{"path": str(tmp_path / "killed" / "set0.jsonl")}],
                [step(model, max_correct=8, min_correct=0)])  # fmt: skip
    rates = {problem.id: problem.extra["pass_rates"] for problem in again.kept}
    assert len(rates) == 12
    assert all(rates[problem.id] == problem.extra["pass_rates"] for problem in whole.kept)
    assert len((again.folder / "pass_rates.jsonl").read_text().splitlines()) == 12


def test_a_prompt_that_is_too_long_is_dropped(tmp_path: Path, model: str) -> None:
    outcome = run(tmp_path, [questions("sometimes 1", "sometimes " * 10 + "2")], [step(model, max_prompt_tokens=50)])
    assert outcome.reasons["prompt over 50 tokens"] == 1
    narrow = step(model, sampling={"max_new_tokens": 462})  # of the model's 512
    outcome = run(tmp_path, [questions("sometimes 1", "sometimes " * 10 + "2")], [narrow])
    assert [count for reason, count in outcome.reasons.items() if "sampling.max_new_tokens=462" in reason] == [1]
    with pytest.raises(InputError, match="sampling.max_new_tokens"):
        run(tmp_path, [questions("sometimes 1")], [step(model, sampling={"max_new_tokens": 512})])


def test_a_range_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="min_correct"):
        Difficulty.model_validate({"model": {"path": "x"}, "samples": 4, "min_correct": 4})
