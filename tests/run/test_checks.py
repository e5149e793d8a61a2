"""The list of checks: each finding where its cause is and nowhere else, the same from every command."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.environments.players import QWEN_LIKE
from tests.runs import SMALL, small_config
from tests.tiny import byte_tokenizer, tiny_qwen3
from tests.watching import Notes
from typer.testing import CliRunner

from strop import recipes
from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.cli import app
from strop.data.loading import load_data
from strop.data.rows import JsonLines
from strop.engines.protocol import Sampling
from strop.evaluation.evaluate import ProblemSet
from strop.evaluation.result import EvaluationResult
from strop.model.files import export
from strop.model.settings import ModelSettings
from strop.prepare import parse_config, prepare
from strop.recipes.resolve import resolve
from strop.run import resuming
from strop.run.checks import ModelFacts, contradictions, findings, of_model, of_settings
from strop.run.doctor import review
from strop.run.finding import Finding, refuse
from strop.run.folder import RunFolder
from strop.run.measuring import evaluate_model, measure_open
from strop.run.models import configure
from strop.run.questions import preview
from strop.run.run import train
from strop.verifiers.answer import Answer
from strop.verifiers.combined import ByDomain
from strop.verifiers.math_verifier import MathVerifier

Rows = list[dict[str, object]]
SUMS: Rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(90)]
MANY: Rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(160)]
ASKS = 'data.template={piece="ChatTemplate", instruction="Put your final answer within \\\\boxed{}."}'
PLAIN = 'data.template={piece="ChatTemplate", instruction="Answer briefly."}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 512 positions, whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("models") / "model"
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    export(tiny_qwen3().model, tokenizer, folder)
    return folder


def problems(folder: Path, rows: Sequence[Mapping[str, object]]) -> str:
    file = folder / "problems.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return f"data.source={file}"


def found(model: Path, *sets: str) -> dict[str, Finding]:
    """The findings by their codes."""
    common = [f"model.path={model}", "sampling.max_new_tokens=64", "evaluation.every=5", "optim.lr=1e-4"]
    all_of_them = review("grpo", [*common, *sets], False, 0, SilentView())
    return {one.code: one for one in all_of_them if one.level != "ok"}


def test_a_good_one_has_no_finding_but_that_it_was_not_asked(model: Path, tmp_path: Path) -> None:
    assert set(found(model, problems(tmp_path, MANY), ASKS)) == {"pass-rate-unknown"}


@pytest.mark.parametrize(
    ("sets", "code", "key"),
    [
        ((PLAIN,), "prompt-without-form", "boxed"),
        ((ASKS, "verifier.extract=answer_tag"), "prompt-without-form", "<answer>"),
        (("data.template=Plain",), "chat-template-unused", "data.template=Auto"),
        ((ASKS, "optim.lr=1e-6"), "low-learning-rate", "optim.lr=1e-06"),
        ((ASKS, "data.held_out=none", "evaluation.every=none"), "nothing-held-out", "data.held_out.count"),
        ((ASKS, "evaluation.every=none"), "held-out-unmeasured", "evaluation.every"),
        ((ASKS, "data.held_out.count=4"), "few-held-out", "±50 points"),  # 2 · 0.5 / √4
        ((ASKS, "batch.prompts_per_step=500"), "few-problems", "batch.prompts_per_step"),
        ((ASKS, "data.held_out.count=100"), "most-held-out", "data.held_out.count=32"),
        ((ASKS, "batch.samples_per_prompt=1"), "no-baseline", "batch.samples_per_prompt"),
        ((ASKS, "optim.warmup_steps=200"), "endless-warm-up", "to 5e-05 of optim.lr=0.0001"),
        ((ASKS, "model.lora.rank=4"), "large-adapters", "model.lora.alpha=8"),
        ((ASKS, "data.max_prompt_tokens=150"), "most-prompts-left-out", "data.max_prompt_tokens"),
        ((ASKS, "sampling.max_new_tokens=500"), "budgets", "sampling.max_new_tokens="),
    ],
)  # fmt: skip
def test_a_cause_and_its_finding(sets: tuple[str, ...], code: str, key: str, model: Path, tmp_path: Path) -> None:
    long: Rows = [{"prompt": "x" * 300 + str(n), "answer": "1"} for n in range(99)]
    rows = [*MANY[:90], *long] if code == "most-prompts-left-out" else MANY
    findings = found(model, problems(tmp_path, rows), *sets)
    assert code in findings, set(findings)
    assert key in findings[code].line


@pytest.mark.parametrize(
    ("parameters", "batch", "updates", "lr", "lora", "high"),
    [
        (7.6e9, (32, 8), 8, 1e-6, False, False),  # OPEFO's baselines
        (7.6e9, (32, 8), 1, 2.83e-6, False, False),
        (8e9, (48, 16), 1, 5e-7, False, False),  # ScaleRL
        (671e9, (32, 16), 1, 3e-6, False, False),  # DeepSeek-R1
        (2.7e8, (12, 8), 1, 4e-6, False, False),  # Gemma 3 270M: rises; the next: lost everything in seven steps
        (2.7e8, (8, 8), 1, 1e-5, False, True),
        (2.7e8, (8, 8), 1, 1e-5, True, False),
        (7e9, (16, 8), 1, 1e-5, False, True),
    ],
)
def test_a_learning_rate_is_high_for_a_size_and_a_batch(
    parameters: float, batch: tuple[int, int], updates: int, lr: float, lora: bool, high: bool
) -> None:
    sets = [f"batch.prompts_per_step={batch[0]}", f"batch.samples_per_prompt={batch[1]}", f"optim.lr={lr}",
            f"batch.updates_per_step={updates}", *(["model.lora.rank=8"] * lora)]  # fmt: skip
    facts = ModelFacts(byte_tokenizer(), int(parameters))
    assert high is ("high-learning-rate" in {one.code for one in of_model(resolve("grpo", sets), facts, None)})


def test_a_chat_template_whose_end_is_no_token_is_found(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = QWEN_LIKE
    export(tiny_qwen3().model, tokenizer, tmp_path / "model")
    asked = (problems(tmp_path, MANY), ASKS)
    assert 'sampling.stop=["<|im_end|>"]' in found(tmp_path / "model", *asked)["turn-never-ends"].way_out
    assert "turn-never-ends" not in found(tmp_path / "model", *asked, 'sampling.stop=["<|im_end|>"]')


def test_a_prompt_that_asks_for_two_forms(model: Path, tmp_path: Path) -> None:
    """As verl's GSM8K does, whose questions end with such a sentence, while the verifier needs a box."""
    rows: Rows = [{**row, "prompt": f'{row["prompt"]} Output the final answer after "####".'} for row in MANY]
    finding = found(model, problems(tmp_path, rows))["prompt-asks-for-both"]
    assert "####" in finding.found and "verifier.extract" in finding.way_out
    assert "prompt-asks-for-both" not in found(model, problems(tmp_path, rows), "verifier.extract=last_number")


def test_references_that_are_no_right_answers(model: Path, tmp_path: Path) -> None:
    rows: Rows = [row | {"answer": "}" if place % 4 == 3 else row["answer"]} for place, row in enumerate(MANY)]
    finding = found(model, problems(tmp_path, rows), ASKS)["references-not-taken"]
    assert finding.level == "note" and "'}'" in finding.way_out
    worked: Rows = [row | {"answer": rf"Add: \boxed{{{row['answer']}}}"} for row in MANY]
    assert set(found(model, problems(tmp_path, worked), ASKS)) == {"pass-rate-unknown"}
    later: Rows = [*MANY[:-1], MANY[-1] | {"answer": [2, 3]}]  # one that training refuses, wherever it lies
    assert found(model, problems(tmp_path, later), ASKS)["unjudgeable"].level == "error"


def test_what_cannot_begin_is_one_error() -> None:
    (finding,) = review("grpo", ["model.path=/nowhere"], False, 0, SilentView())
    assert finding.level == "error" and "/nowhere" in finding.line
    with pytest.raises(InputError, match="gproo"):
        review("gproo", [], False, 0, SilentView())


def test_questions_with_different_answers(model: Path, tmp_path: Path) -> None:
    def problem(number: int, prompt: str, reference: object) -> Problem:
        return Problem(f"p-{number}", prompt, reference)

    listed = [
        problem(0, "What is 6*7?", "42"),
        problem(1, "What  is 6*7?\n", " 42 "),  # the same answer
        problem(2, "What is 6*7?", "43"),
        problem(3, "What is 6*7?", "44"),  # a question counts once
        problem(4, "And 2+2?", 4),
        problem(5, "And 2+2?", 5),
        problem(6, "Both?", {"b": 1, "a": 2}),
        problem(7, "Both?", {"a": 2, "b": 1}),
    ]
    assert [(one.id, other.id) for one, other in contradictions(listed)] == [("p-0", "p-2"), ("p-4", "p-5")]
    rows: Rows = [*MANY, {"prompt": "What is 3+3?", "answer": "7"}]
    finding = found(model, problems(tmp_path, rows), ASKS)["contradictions"]
    assert "What is 3+3?" in finding.found and "problems-161" in finding.found


def test_recipes_have_no_findings() -> None:
    for info in recipes.catalogue():
        assert not of_settings(resolve(info.name)), info.name
        small = of_settings(resolve(info.name, small=True))
        assert {one.code for one in small} <= {"large-adapters"}, info.name


# ---------------------------------------------------------------------- one list for every command


def test_every_command_reports_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, a dry run, a resume, the doctor and eval: one configuration with findings of several kinds."""
    fractions = source(tmp_path, *(f"{n}/7" for n in range(1, 13)))
    sets = [fractions, "batch.samples_per_prompt=1", "optim.warmup_steps=50", "steps=1", "data.held_out.count=4"]
    config = small_config(*sets)
    dry = preview(config, SilentView()).findings
    codes = {one.code for one in dry}
    assert {"memory", "no-baseline", "endless-warm-up", "few-held-out", "random-weights", "references-as-text"} <= codes
    started = Notes()
    train(config, tmp_path / "run", started)
    folder = RunFolder.open(tmp_path / "run")
    again = resuming.preview(folder, None, (), SilentView())
    asked = review(str(tmp_path / "run"), (), False, 0, SilentView())
    asked = [one for one in asked if one.subject not in ("pass rate", "completions")]
    assert [one.code for one in again] == [one.code for one in asked] == [one.code for one in dry]
    noted = [f"{one.subject}: {one.line}" for one in dry]
    assert [line for line in started.lines if line in noted] == noted
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "run"), "--json"])
    assert codes <= {row["code"] for row in json.loads(result.stdout)}
    measured: list[Finding] = []
    with monkeypatch.context() as patched:
        patched.setattr("strop.run.measuring.note", lambda found, view: measured.extend(found))
        evaluate_model(configure(str(tmp_path / "run")), 1, SilentView())
    of_training = {"no-baseline", "endless-warm-up", "few-held-out", "few-problems", "random-weights"}
    assert {one.code for one in measured} == codes - of_training


def test_eval_refuses_by_the_same_codes_as_a_start(tmp_path: Path) -> None:
    config = small_config("steps=1")
    data = config.data.model_copy(update={"source": JsonLines(path=str(tmp_path / "none.jsonl"))})
    broken = config.model_copy(update={"data": data, "model": ModelSettings(path=str(tmp_path / "nowhere"))})
    refused = [[one.code for one in findings(broken, trains=trains)] for trains in (True, False)]
    assert set(refused[1]) == {"model", "source"} <= set(refused[0])


FORMULAS = ("\\frac{1}{2}", "3x^2", "x_{1}", "1/2", "(1, 2)", "[0, 3)", "\\boxed{2\\sqrt{3}}", "some work #### 3/4")
OTHERS = ("72", "1,250", "-3.5", "$5", "\\$5", "3{,}000", "north_east", "a/b", "yes (or no)", "\\(1\\) #### 18", "C++")


@pytest.mark.parametrize("reference", [*FORMULAS, *OTHERS, 7, 0.5, ["1"]])
def test_answer_compares_formulas_as_texts(reference: object) -> None:
    problem = Problem("p", "q", reference)
    assert (Answer().caution(problem) is not None) == (reference in FORMULAS)
    assert MathVerifier().caution(problem) is None
    mixed = ByDomain(members={"math": Answer(), "code": MathVerifier()})
    assert mixed.caution(problem) == Answer().caution(problem)
    assert all(mixed.caution(Problem("p", "q", reference, domain)) is None for domain in ("code", "unknown"))


def source(folder: Path, *answers: object) -> str:
    file = folder / "rows.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": answer} for n, answer in enumerate(answers)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.source={file}"


def test_how_many_references_are_formulas(tmp_path: Path) -> None:
    sets = (source(tmp_path, *FORMULAS, *"1234"), "data.held_out=none", "evaluation.every=none", "steps=1")
    findings = preview(small_config(*sets), SilentView()).findings
    (finding,) = (one for one in findings if one.code == "references-as-text")
    assert finding.found.startswith("8 of 12 references, such as \\frac{1}{2}, ") and "MathVerifier" in finding.found


STEP = '{ piece = "Verifiable", verifier = "Answer" }'


def test_references_are_counted_where_others_are_refused(tmp_path: Path) -> None:
    sets = (source(tmp_path, *FORMULAS, ["2", "3"]), "data.held_out=none", "evaluation.every=none")
    found = {one.code: one.found for one in preview(small_config(*sets), SilentView()).findings}
    assert "8 of 9 references" in found["references-as-text"] and "1 of 9" in found["unjudgeable"]


@pytest.mark.parametrize("part", ["data.source", "data.held_out.source"])
def test_a_start_and_a_dry_run_refuse_what_can_never_be_judged(part: str, tmp_path: Path) -> None:
    named = source(tmp_path, "1", ["2", "3"]).replace("data.source", part)
    sets = (named, *(("data.held_out=none", "evaluation.every=none") if part == "data.source" else ()))
    message = f"1 of 2 .* 'rows-2': .*{re.escape(STEP)}"
    with pytest.raises(InputError, match=message):
        refuse(preview(small_config(*sets), SilentView()).findings)
    with pytest.raises(InputError, match=message):
        train(small_config(*sets), tmp_path / "run", SilentView())


def test_what_is_refused_is_counted_over_both_parts_of_a_source(tmp_path: Path) -> None:
    """The way out of the message works, unless the verifier can judge nothing of the source."""
    lists = [["2", "3"], ["4", "5"], ["6", "7"]]
    every = ("data.held_out=none", "evaluation.every=none")
    sets = (source(tmp_path, "1", "2", "3", *lists), "data.held_out.count=3", "evaluation.every=none")
    with pytest.raises(InputError, match=f"rows.jsonl: .*3 of 6 .*{re.escape(STEP)}"):
        refuse(preview(small_config(*sets), SilentView()).findings)
    files = {"sources": [{"path": str(tmp_path / "rows.jsonl")}], "out": str(tmp_path / "out")}
    prepare(parse_config(files | tomllib.loads(f"steps = [{STEP}]")), SilentView())
    mended = preview(small_config(f"data.source={tmp_path / 'out' / 'train.parquet'}", *every), SilentView())
    assert mended.data is not None and len(mended.data.train) == 3
    with pytest.raises(InputError, match="3 of 3"):
        refuse(preview(small_config(source(tmp_path, *lists), *every), SilentView()).findings)


def test_benchmarks_that_training_refuses_are_found_before(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    twice = json.dumps([{"name": str(tmp_path / "mine.jsonl")}] * 2)
    findings = found(model, problems(tmp_path, MANY), ASKS, f"evaluation.benchmarks={twice}")
    assert "evaluation.benchmarks" in findings["budgets"].line and findings["budgets"].level == "error"


# ---------------------------------------------------------------------- how the model begins


def test_a_run_says_how_it_began(tmp_path: Path) -> None:
    train(small_config("steps=2", "verifier.extract=boxed"), tmp_path / "run", SilentView())
    findings = {one.code: one for one in review(str(tmp_path / "run"), (), False, 0, SilentView())}
    assert findings["extreme-pass-rate"].level == "warning" and findings["extreme-pass-rate"].found.startswith("0.0%")
    assert all(way in findings["extreme-pass-rate"].way_out for way in ("few-shot", "strop sft", "docs/train.md"))
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "run")])
    assert result.exit_code == 0 and "WARNING" in result.stdout


def test_the_model_is_asked_how_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked training problems from all over the source, sampled as the first stage samples."""
    asked: list[tuple[list[str], Sampling]] = []

    def noted(config: Any, policy: Any, tokenizer: Any, problems: ProblemSet, view: Any) -> EvaluationResult:
        asked.append(([problem.id for problem in problems.dataset.problems], problems.sampling))
        return measure_open(config, policy, tokenizer, problems, view)

    monkeypatch.setattr("strop.run.measuring.measure_open", noted)
    stages = 'stages=[{"steps": 2, "set": {"sampling.max_new_tokens": 11}}, {}]'
    sets = ["data.held_out.count=5", "evaluation.temperature=0", stages]
    findings = {one.code: one for one in review("grpo", sets, True, 16, SilentView())}
    rate = findings.get("pass-rate") or findings["extreme-pass-rate"]
    assert "16 problems, 8 answers each" in rate.found
    config = resolve("grpo", sets, small=True)
    train_part = load_data(config.data, byte_tokenizer(), config.instruction).train
    places = [[problem.id for problem in train_part.problems].index(name) for name in asked[0][0]]
    assert places == list(range(0, len(train_part), len(train_part) // 16))[:16]
    assert asked[0][1] == config.sampling.model_copy(update={"max_new_tokens": 11})


def test_completions_that_are_cut_off(model: Path, tmp_path: Path) -> None:
    findings = {one.code: one for one in review("grpo", ["sampling.max_new_tokens=9"], True, 4, SilentView())}
    assert "9 tokens" in findings["cut-off"].found and "sampling.max_new_tokens" in findings["cut-off"].way_out
    rows: Rows = [{"prompt": "x" * 320 + str(n), "answer": "1"} for n in range(80)]
    sets = [f"model.path={model}", problems(tmp_path, rows), ASKS]
    findings = {one.code: one for one in review("grpo", sets, False, 2, SilentView())}
    left = re.search(r"completions end at (\d+) tokens", findings["budget-lowered"].found)
    assert left is not None and f"cut off at {left[1]} tokens" in findings["cut-off"].found
    assert "sampling.max_new_tokens" not in findings["cut-off"].way_out


def test_settings_of_the_command_line(model: Path) -> None:
    arguments = ["doctor", "grpo", *(part for text in (*SMALL[6:], f"model.path={model}") for part in ("--set", text))]
    result = CliRunner().invoke(app, arguments)
    assert "chain sums of 2 terms" in " ".join(result.output.split()), result.output
