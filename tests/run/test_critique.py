"""strop doctor RUN|CONFIG: what speaks against a configuration, each finding where its cause is and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.runs import SMALL, small_config
from tests.tiny import byte_tokenizer, tiny_qwen3
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from strop import recipes
from strop.base.types import InputError
from strop.base.view import SilentView
from strop.cli import app
from strop.data.dataset import load_data
from strop.engines.protocol import Sampling
from strop.evaluation.evaluate import ProblemSet
from strop.evaluation.result import EvaluationResult
from strop.model.files import export
from strop.model.policy import load_policy
from strop.model.settings import ModelSettings
from strop.recipes.resolve import resolve
from strop.run import critique, engine_trial
from strop.run.accelerators import SIZE, Finding, products_a_second
from strop.run.cautions import cautions
from strop.run.critique import criticise
from strop.run.measuring import measure_open
from strop.run.questions import preview
from strop.run.run import train


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
    common = [f"model.path={model}", "sampling.max_new_tokens=64", "evaluation.every=5", "optim.lr=1e-4"]
    return {finding.topic: finding for finding in criticise("grpo", [*common, *sets])}


Rows = list[dict[str, object]]
SUMS: Rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(90)]
ASKS = 'data.template={piece="ChatTemplate", instruction="Put your final answer within \\\\boxed{}."}'


def test_nothing_speaks_against_a_good_one(model: Path, tmp_path: Path) -> None:
    rows: Rows = [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(160)]
    levels = {topic: finding.level for topic, finding in found(model, problems(tmp_path, rows)).items()}
    assert levels.pop("pass rate") == "note"  # nothing was trained yet
    assert set(levels.values()) == {"ok"}, levels
    assert {"model", "memory", "prompt", "verifier", "budgets", "data", "held out", "time"} == set(levels)


def test_a_prompt_that_does_not_ask_for_what_the_verifier_reads(model: Path, tmp_path: Path) -> None:
    source = problems(tmp_path, SUMS)
    plain = 'data.template={piece="ChatTemplate", instruction="Answer briefly."}'
    finding = found(model, source, plain)["verifier"]
    assert finding.level == "problem" and "\\boxed" in finding.advice and "written \\boxed{…}" in finding.found
    assert found(model, source, plain, "verifier.extract=last_number")["verifier"].level == "ok"
    assert found(model, source, ASKS, "verifier.extract=answer_tag")["verifier"].level == "problem"
    assert "chat template of its own" in found(model, source, "data.template=Plain")["prompt"].advice


def test_a_prompt_that_asks_for_two_forms(model: Path, tmp_path: Path) -> None:
    """As verl's GSM8K does, whose questions end with such a sentence, beside the box that the verifier needs."""
    rows: Rows = [{**row, "prompt": f'{row["prompt"]} Output the final answer after "####".'} for row in SUMS]
    finding = found(model, problems(tmp_path, rows))["verifier"]
    assert finding.level == "note" and finding.found.endswith("and the prompt also asks for ####")
    assert "answers as #### … are judged wrong" in finding.advice and "verifier.extract" in finding.advice
    read = found(model, problems(tmp_path, rows), "verifier.extract=last_number")["verifier"]
    assert read.level == "ok"


def test_references_that_are_no_right_answers(model: Path, tmp_path: Path) -> None:
    rows: Rows = [row | {"answer": "}" if place % 4 == 3 else row["answer"]} for place, row in enumerate(SUMS)]
    finding = found(model, problems(tmp_path, rows), ASKS)["verifier"]
    assert finding.level == "note" and "for right answers" in finding.found and "'}'" in finding.advice
    worked: Rows = [row | {"answer": rf"Add: \boxed{{{row['answer']}}}"} for row in SUMS]
    finding = found(model, problems(tmp_path, worked), ASKS)["verifier"]
    assert finding.level == "ok" and finding.found.endswith("written \\boxed{…}")
    assert found(model, problems(tmp_path, worked), "data.template=Plain")["verifier"].level == "problem"
    lists: Rows = [{"prompt": "Name primes.", "answer": [2, 3]}, {"prompt": "Others?", "answer": [5]}]
    finding = found(model, problems(tmp_path, lists), ASKS, "data.held_out.count=1")["verifier"]
    assert finding.level == "problem" and "choose another verifier" in finding.advice
    later: Rows = [*SUMS[:-1], SUMS[-1] | {"answer": [2, 3]}]  # one that training refuses, wherever it lies
    assert found(model, problems(tmp_path, later), ASKS)["verifier"].level == "problem"
    with pytest.raises(InputError, match="choose another verifier"):
        preview(resolve("grpo", [f"model.path={model}", problems(tmp_path, later), ASKS]), SilentView())


def test_budgets_and_data(model: Path, tmp_path: Path) -> None:
    rows: Rows = [*SUMS, {"prompt": "x" * 300, "answer": "1"}, {"prompt": "What is 3+3?", "answer": "7"}]
    source = problems(tmp_path, rows)
    finding = found(model, source, ASKS, "sampling.max_new_tokens=400")["budgets"]
    assert finding.level == "problem" and "set sampling.max_new_tokens=" in finding.advice
    settings = [f"model.path={model}", source, ASKS, "sampling.max_new_tokens=400"]
    with pytest.raises(InputError, match="set sampling.max_new_tokens="):  # a dry run refuses what training would
        preview(resolve("grpo", settings), SilentView())
    cut = found(model, source, ASKS, "data.max_prompt_tokens=100")
    assert cut["budgets"].level == "ok" and cut["prompts"].level == "note"
    all_of_them = found(model, source, ASKS, "data.held_out=none", "evaluation.every=none")
    assert all_of_them["contradictions"].level == "note" and "3+3" in all_of_them["contradictions"].found
    few = found(model, source, ASKS, "data.held_out.count=4", "batch.prompts_per_step=500")
    assert few["held out"].level == "note" and few["data"].level == "note"
    assert "±50 points" in few["held out"].advice  # 2 · 0.5 / √4
    assert "each asked 568.2 times on average in 100 steps" in few["data"].found  # 500 · 100 / (92 − 4)
    seldom = found(model, source, ASKS, "batch.prompts_per_step=1", "steps=9", "data.held_out.count=2")
    assert "10.0% of them asked in 9 steps" in seldom["data"].found


def test_what_cannot_begin_is_one_problem(tmp_path: Path) -> None:
    (finding,) = criticise("grpo", ["model.path=/nowhere"])
    assert finding.level == "problem" and "/nowhere" in finding.advice
    with pytest.raises(InputError, match="no recipe is called"):
        criticise("gproo")


def test_all_parameters_are_counted_tied_ones_once(model: Path, tmp_path: Path) -> None:
    whole = load_policy(ModelSettings(path=str(model)))[0]
    tied = whole.model.get_output_embeddings().weight is whole.model.get_input_embeddings().weight
    count = sum(weight.numel() for weight in whole.model.parameters())
    assert tied and 10_000 < count < 999_000
    source = problems(tmp_path, SUMS)
    for sets in ((), ("model.lora.rank=4",)):
        assert found(model, source, *sets)["model"].found.endswith(f" {count / 1000:.3g} thousand parameters")
    (embedded,) = [finding for finding in criticise("grpo", small=True) if finding.topic == "model"]
    assert embedded.found == "embedded, float32, 805 thousand parameters"  # 804,672


def test_a_step_of_a_small_model_takes_its_tokens_time(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where products take nothing: 16 · 8 sequences of 8 to 32 tokens, drawn, and trained on with a prompt of 14."""
    monkeypatch.setattr("strop.run.step_time.products_a_second", lambda dtype: 1e18)
    monkeypatch.setattr("strop.run.step_time.native", SimpleNamespace(load=lambda: "kernels"))
    common = (problems(tmp_path, SUMS), "data.template=Plain")
    time = found(model, *common, "model.cpu_kernels=false")["time"]
    # 128 · (8 + 8 + 14) · 5e-5 / 2 and 128 · (32 + 32 + 14) · 5e-5 · 2 seconds
    assert time.found.startswith("0.1 s to 1 s a step on this machine, 10 s to 100 s for 100 steps; it depends on ")
    time = found(model, *common)["time"]  # with kernels that compute a prompt once for its eight completions
    # 128 · (8 + 8 + 14 / 8) · 5e-5 / 2 and 128 · (32 + 32 + 14 / 8) · 5e-5 · 2 seconds
    assert time.found.startswith("0.06 s to 0.8 s a step on this machine, 6 s to 84 s for 100 steps; it depends on ")


def test_completions_that_were_asked_take_what_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model's rollout was guessed from its operations where its seconds had just been measured."""

    def slow(*given: Any) -> EvaluationResult:
        return replace(measure_open(*given), seconds=64.0)

    monkeypatch.setattr(critique, "measure_open", slow)
    monkeypatch.setattr("strop.run.step_time.products_a_second", lambda dtype: 1e18)
    times = [
        next(finding.found for finding in criticise("grpo", small=True, asked=asked) if finding.topic == "time")
        for asked in (8, 4)
    ]
    assert times[0].startswith("64 s to 4 min a step")  # 16 · 8 completions of 64 / (8 · 8) s, by 2 either way
    assert "min" not in times[1], "half as many as the engine has slots: together they take longer than in training"


def test_the_speed_that_is_measured_is_that_of_layers() -> None:
    """`a @ a` takes another way than x Wᵀ, which in bfloat16 is many times as slow on some processors."""
    strides = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.mm.default:
                strides.append(args[1].stride())
            return func(*args, **(kwargs or {}))

    with Noted():
        assert products_a_second("bfloat16") > 0
    assert set(strides) == {(1, SIZE)}


@pytest.mark.parametrize("speed", [1.85e11, 0.9e11])
def test_what_a_step_will_take_is_a_range_that_holds_what_was_measured(
    speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quickstart took 0.6 s a step (1.3 in another's hands) where matrix products reached 1.85e11 a second."""
    monkeypatch.setattr("strop.run.step_time.products_a_second", lambda dtype: speed)
    (time,) = [finding for finding in criticise("quickstart") if finding.topic == "time"]
    low, high = map(float, re.findall(r"[\d.]+(?= s)", time.found)[:2])
    slower = 1.85e11 / speed
    assert low <= 0.6 * slower and 1.3 * slower <= high <= 16 * low and "--ask" in time.found, time.found


def test_a_run_says_how_it_began_and_how_long_a_step_takes(tmp_path: Path) -> None:
    train(small_config("steps=2", "verifier.extract=boxed"), tmp_path / "run", SilentView())
    findings = {finding.topic: finding for finding in criticise(str(tmp_path / "run"))}
    assert findings["pass rate"].level == "problem" and findings["pass rate"].found.startswith("0.0%")
    assert findings["model"].level == "problem"  # random weights
    assert "a step" in findings["time"].found and "roughly" not in findings["time"].found
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 1 and {row["topic"] for row in json.loads(result.stdout)} == set(findings)


def test_the_model_is_asked_how_it_begins() -> None:
    findings = {finding.topic: finding for finding in criticise("grpo", small=True, asked=8)}
    assert findings["pass rate"].level == "ok" and "(8 problems, 8 answers each)" in findings["pass rate"].found
    assert "completions" not in findings  # which end by themselves
    sets = ["sampling.max_new_tokens=9"]
    findings = {finding.topic: finding for finding in criticise("grpo", sets, small=True, asked=4)}
    assert "cut off at 9 tokens" in findings["completions"].found
    assert "raise sampling.max_new_tokens" in findings["completions"].advice


def test_it_is_asked_what_it_will_be_trained_on_as_its_first_stage_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the few problems that are held out, nor only the first of a file that may be sorted."""
    asked: list[tuple[list[str], Sampling]] = []

    def noted(config: Any, policy: Any, tokenizer: Any, problems: ProblemSet, view: Any) -> EvaluationResult:
        asked.append(([problem.id for problem in problems.dataset.problems], problems.sampling))
        return measure_open(config, policy, tokenizer, problems, view)

    monkeypatch.setattr(critique, "measure_open", noted)
    stages = 'stages=[{"steps": 2, "set": {"sampling.max_new_tokens": 11}}, {}]'
    sets = ["data.held_out.count=5", "evaluation.temperature=0", stages]
    findings = {finding.topic: finding for finding in criticise("grpo", sets, small=True, asked=16)}
    assert "(16 problems, 8 answers each)" in findings["pass rate"].found
    config = resolve("grpo", sets, small=True)
    train = load_data(config.data, byte_tokenizer(), config.instruction).train
    places = [[problem.id for problem in train.problems].index(name) for name in asked[0][0]]
    assert places == list(range(0, len(train), len(train) // 16))[:16]
    assert asked[0][1] == config.sampling.model_copy(update={"max_new_tokens": 11})


def test_a_run_can_be_asked_too(tmp_path: Path) -> None:
    """Its first steps stood in for what was asked for."""
    train(small_config("steps=1"), tmp_path / "run", SilentView())
    sets = ["sampling.max_new_tokens=4"]
    for asked, measured_over in ((0, "the first step"), (3, "3 problems, 4 answers each")):
        findings = {finding.topic: finding for finding in criticise(str(tmp_path / "run"), sets, asked=asked)}
        assert f"({measured_over})" in findings["pass rate"].found


def test_completions_that_the_context_ends_cannot_be_given_more_tokens(model: Path, tmp_path: Path) -> None:
    rows: Rows = [{"prompt": "x" * 320 + str(n), "answer": "1"} for n in range(80)]
    sets = [f"model.path={model}", problems(tmp_path, rows)]
    findings = {finding.topic: finding for finding in criticise("grpo", [*sets, ASKS], asked=2)}
    left = re.search(r"completions end at (\d+) tokens", findings["budgets"].advice)
    assert left is not None and f"cut off at {left[1]} tokens" in findings["completions"].found
    assert "sampling.max_new_tokens" not in findings["completions"].advice


def test_groups_of_one_have_no_baseline(model: Path, tmp_path: Path) -> None:
    """Also where the run begins, by `--dry-run`, and never where a critic is the baseline."""
    one = [problems(tmp_path, SUMS), ASKS, "batch.samples_per_prompt=1"]
    assert found(model, *one)["groups"].level == "note"
    sets = [f"model.path={model}", "sampling.max_new_tokens=64", *one]
    assert any("its reward itself" in line for line in preview(resolve("grpo", sets), SilentView()).warnings)
    critic = ["algorithm.advantage=Gae", "critic.updates_per_step=1"]
    warned = preview(resolve("grpo", [*sets, *critic]), SilentView()).warnings
    assert not any("reward itself" in line for line in warned)
    with pytest.raises(InputError, match="advantage 0 whatever its reward: algorithm.advantage=GroupRelative compares"):
        resolve("grpo", [*sets, "algorithm.advantage.normalization=batch_std"])


UNREACHED = (
    (("optim.warmup_steps=200",), "warm-up", "through all 100 updates of the run, to 5e-05 of optim.lr=0.0001"),
    (('algorithm.shaping=[{piece="OverlongShaping"}]',), "shaping", "that sampling.max_new_tokens=64 allows"),
    (('algorithm.shaping=[{piece="LengthPenalty"}]',), "shaping", "LengthPenalty adds nothing to completions"),
    (("critic.updates_per_step=1", "algorithm.advantage=Gae", "critic.warmup_steps=100"), "critic", "stays as it is"),
)


@pytest.mark.parametrize(("sets", "topic", "said"), UNREACHED)
def test_settings_that_the_run_never_reaches_are_told_by_a_dry_run_and_the_doctor(
    sets: tuple[str, ...], topic: str, said: str, model: Path, tmp_path: Path
) -> None:
    common = (problems(tmp_path, SUMS), ASKS)
    finding = found(model, *common, *sets)[topic]
    assert finding.level == "note" and said in finding.found
    config = [f"model.path={model}", "sampling.max_new_tokens=64", "optim.lr=1e-4", *common, *sets]
    (told,) = (line for line in preview(resolve("grpo", config), SilentView()).warnings if said in line)
    assert told == f"{finding.found}; {finding.advice}"


def test_a_small_file_of_which_most_is_held_out_is_told(model: Path, tmp_path: Path) -> None:
    """A recipe's own count left one problem to train on, and said so as a number among others."""
    source = problems(tmp_path, SUMS[:65])
    finding = found(model, source, ASKS)["split"]
    assert finding.level == "note" and finding.advice.endswith("data.held_out.count=13")
    assert finding.found.startswith("data.held_out.count=64 leaves 1 of the 65 problems of ")
    warned = preview(resolve("grpo", [f"model.path={model}", source, ASKS]), SilentView()).warnings
    assert any("leaves 1 of the 65" in line for line in warned)
    assert "split" not in found(model, source, ASKS, "data.held_out.count=32")


def test_a_penalty_that_begins_within_the_budget_is_none_of_them() -> None:
    for piece in ("OverlongShaping", "LengthPenalty"):
        shapes = f'algorithm.shaping=[{{piece="{piece}", max_tokens=16500}}]'
        assert not [one for one in cautions(resolve("grpo", [shapes, "sampling.max_new_tokens=16384"]))]


def test_no_recipe_says_so_of_itself() -> None:
    for name in (info.name for info in recipes.catalogue()):
        assert not cautions(resolve(name)), name
        assert not [one for one in cautions(resolve(name, small=True)) if one.topic != "adapters"], name


def test_benchmarks_that_training_refuses_are_found_before(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    twice = json.dumps([{"name": str(tmp_path / "mine.jsonl")}] * 2)
    sets = (problems(tmp_path, SUMS), ASKS, f"evaluation.benchmarks={twice}")
    assert found(model, *sets)["measured on"].level == "problem"
    with pytest.raises(InputError, match="evaluation.benchmarks: two benchmarks are called 'mine'"):
        preview(resolve("grpo", [f"model.path={model}", "evaluation.every=5", *sets]), SilentView())


def test_benchmarks_of_a_hub_that_cannot_be_asked_from_here_are_a_note(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.run.questions.silence", lambda: "no network")
    sets = (problems(tmp_path, SUMS), ASKS, 'evaluation.benchmarks=["aime24"]')
    finding = found(model, *sets)["measured on"]
    assert finding.level == "note" and "aime24 not looked at" in finding.found
    warned = preview(resolve("grpo", [f"model.path={model}", "evaluation.every=5", *sets]), SilentView()).warnings
    assert finding.found in warned


def test_problems_that_are_listed_again_are_one_question(model: Path, tmp_path: Path) -> None:
    source = problems(tmp_path, SUMS).removeprefix("data.source=")
    mixed = f'data.source={{piece="Mixture", repeats=[3], sources=[{{piece="JsonLines", path="{source}"}}]}}'
    findings = found(model, mixed, ASKS, "data.held_out.count=30", "batch.prompts_per_step=64", "steps=30")
    assert "180 problems (60 different ones) of" in findings["data"].found
    assert "each asked 32.0 times on average" in findings["data"].found  # 30 · 64 / 60
    assert findings["data"].level == "note"  # a step takes 64 of 60
    assert findings["held out"].found.startswith("30 problems, none of them trained on (60 training problems asking")


def test_each_engine_is_tried_and_one_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_trial, "SECONDS", 0.5)
    monkeypatch.delenv("STROP_VLLM_PYTHON", raising=False)
    findings = {finding.topic: finding for finding in criticise("grpo", small=True, engines=True)}
    assert float(findings["engine Torch"].found.split()[0].replace(",", "")) > 0
    assert "engine.python" in findings["engine Vllm"].advice and "engine" not in findings


def test_engines_are_tried_with_a_recipe_that_interrupts_its_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_trial, "SECONDS", 0.5)
    findings = {finding.topic: finding for finding in criticise("scalerl", small=True, engines=True)}
    assert findings["engine Torch"].level == "ok", findings["engine Torch"]


def test_prompts_beyond_the_context_are_a_finding_where_the_model_is_asked(model: Path, tmp_path: Path) -> None:
    rows: Rows = [{"prompt": "x" * 600 + str(n), "answer": "1"} for n in range(80)]
    sets = [f"model.path={model}", problems(tmp_path, rows), ASKS]
    findings = {finding.topic: finding for finding in criticise("grpo", sets, asked=4)}
    for topic in ("budgets", "pass rate"):
        assert findings[topic].level == "problem" and "data.max_prompt_tokens" in findings[topic].advice
    assert "max_new_tokens to" not in findings["budgets"].advice  # no budget is small enough


def test_settings_of_the_command_line(model: Path) -> None:
    arguments = ["doctor", "grpo", *(part for text in (*SMALL[6:], f"model.path={model}") for part in ("--set", text))]
    result = CliRunner().invoke(app, arguments)
    assert "chain sums of 2 terms" in " ".join(result.stdout.split()), result.output
