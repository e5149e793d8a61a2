"""`strop eval` on benchmarks and `strop compare`, with a real run and its checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runs import small_config
from tests.watching import Notes
from typer.testing import CliRunner

from strop.base.types import InputError, StropError
from strop.base.view import SilentView
from strop.cli import app
from strop.config.schema import evaluation_sampling
from strop.data.generators import ChainSum
from strop.data.loading import load_data
from strop.data.templates import Auto
from strop.evaluation.benchmarks import benchmark
from strop.evaluation.grid import Grid
from strop.evaluation.protocols import PLAIN, Protocol, changed, protocol
from strop.lab.benchmarking import BenchmarkPlan, benchmark_sampling, folder_name, held_out_of, measure, shared_template
from strop.model.files import byte_tokenizer
from strop.run.models import NamedModel, configure, parse_model, parse_models
from strop.run.run import train


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, each with its checkpoint, and two benchmarks."""
    folder = tmp_path_factory.mktemp("eval")
    config = small_config("steps=2", "evaluation.every=none", "model.fresh.max_positions=1024")
    train(config, folder / "run", SilentView())
    for name, seed in (("math500", 5), ("aime24", 6)):
        problems = ChainSum(count=4, terms=2, seed=seed).problems()
        rows = [{"problem": each.prompt, "answer": each.reference} for each in problems]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def invoke(*arguments: object) -> Any:
    """What the command wrote, as JSON."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def plan(place: Path, out: Path, *sets: str, **changes: Any) -> BenchmarkPlan:
    return BenchmarkPlan(
        models=parse_models([f"run={place / 'run'}"]),
        benchmarks=(benchmark("math500"), benchmark("aime24")),
        protocol=changed(PLAIN, samples=2),
        out=out,
        sets=(*there(place), *sets),
        **changes,
    )


def there(place: Path, budget: int = 6) -> tuple[str, ...]:
    """The settings of a short evaluation with the benchmarks of `place`."""
    return f"evaluation.benchmark_data={place}", f"sampling.max_new_tokens={budget}"


def test_models_by_benchmarks(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    value = invoke(
        "eval", f"steps={place / 'run'}@all", f"end={place / 'run'}", "--benchmark", "math500,aime24", "--set",
        f"evaluation.benchmark_data={place}", "--out", out, "--samples", "2", "--set",
        "sampling.max_new_tokens=6", "--json", "--plain",
    )  # fmt: skip
    assert list(value["models"]) == ["steps@1", "steps@2", "end"]
    summary = value["models"]["steps@2"]
    assert (summary["math500"]["samples_per_problem"], summary["aime24"]["samples_per_problem"]) == (2, 2)
    assert summary["math500"]["problems"] == 4 and summary["math500"]["mean_length"] <= 6
    for name, found in value["models"]["end"].items():  # the run's model is that of its last checkpoint
        apart = {"seconds": 0.0, "weight_version": 0}
        assert {**found, **apart} == {**summary[name], **apart}
        assert (found["weight_version"], summary[name]["weight_version"]) == (0, 2)  # the checkpoint's step
    assert list(value["averages"]) == list(value["models"]) and len(value["comparisons"]) == 6
    again = invoke("compare", out, "--json", "--baseline", "end")
    assert again["models"] == value["models"]
    assert {row["before"] for row in again["comparisons"]} == {"end"}


def test_a_protocol_judges_with_what_its_recipe_says(place: Path, tmp_path: Path) -> None:
    archer = changed(protocol("archer"), samples=1)
    asked = plan(place, tmp_path / "kept")
    measure(replace(asked, protocol=archer, benchmarks=(benchmark("math500"),)), SilentView())
    settings = json.loads((tmp_path / "kept" / "run" / "math500" / "settings.json").read_text())
    assert settings["verifier"]["piece"] == "AnyOf"
    assert [member["piece"] for member in settings["verifier"]["members"]] == ["Answer", "MathVerifier"]


class Counting(SilentView):
    """Remembers how many samples were asked for."""

    def __init__(self) -> None:
        self.sampled: list[int] = []

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        self.sampled += [] if total is None else [total]


class Impatient(Counting):
    """Presses Ctrl-C after five samples of the second benchmark."""

    def advance(self, step: int, metrics: object) -> None:
        if len(self.sampled) == 2 and step == 5:
            raise KeyboardInterrupt


def test_an_interruption_keeps_what_was_done(place: Path, tmp_path: Path) -> None:
    """A Ctrl-C within the second benchmark; the same call ends with what an uninterrupted one measures."""
    whole = measure(plan(place, tmp_path / "whole"), SilentView())

    with pytest.raises(KeyboardInterrupt):
        measure(plan(place, tmp_path / "cut"), Impatient())
    kept = tmp_path / "cut" / "run"
    assert (kept / "math500" / "summary.json").exists()
    assert not (kept / "aime24" / "summary.json").exists() and list((kept / "aime24").glob("samples-*.parquet"))
    second, third = Counting(), Counting()
    found = measure(plan(place, tmp_path / "cut"), second)
    assert len(second.sampled) == 1 and 0 < second.sampled[0] < 8  # the rest of aime24 alone, two samples a problem
    assert rates(found) == rates(whole)
    measure(plan(place, tmp_path / "cut"), third)
    assert third.sampled == []


def rates(found: Grid) -> dict[tuple[str, str], list[list[bool]]]:
    return {key: result.correct.tolist() for key, result in found.results.items()}


def test_samples_of_another_seed_budget_or_model_are_not_mixed(place: Path, tmp_path: Path) -> None:
    measure(plan(place, tmp_path, limit=2), SilentView())
    with pytest.raises(InputError, match="seed"):
        measure(plan(place, tmp_path, limit=2, seed=3), SilentView())
    other = BenchmarkPlan(
        models=parse_models([f"run={place / 'run'}@1"]), benchmarks=(benchmark("aime24"),),
        protocol=changed(PLAIN, samples=2), out=tmp_path, sets=there(place), limit=2,
    )  # fmt: skip
    with pytest.raises(InputError, match="--out"):
        measure(other, SilentView())


def settings(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "run" / "aime24" / "settings.json").read_text())
    return loaded


def test_what_prompts_and_judges(place: Path, tmp_path: Path) -> None:
    """A run keeps the template it was trained with; a protocol's or an explicit one wins."""
    one = (benchmark("aime24"),)

    def measured(name: str, **changes: Any) -> dict[str, Any]:
        wanted = {"models": parse_models([f"run={place / 'run'}"]), "benchmarks": one, "limit": 1}
        changes["sets"] = (*there(place, 4), *changes.get("sets", ()))
        measure(BenchmarkPlan(out=tmp_path / name, **{**wanted, **changes}), SilentView())
        return settings(tmp_path / name)

    quick = changed(PLAIN, samples=1)
    own = measured("own", protocol=quick)
    assert own["template"] == {"piece": "Auto", "instruct": None, "system": None, "arguments": {}}  # which asks
    assert own["verifier"]["extract"] == "any"
    orz = measured("orz", protocol=changed(protocol("orz"), samples=1))
    assert orz["template"]["piece"] == "OpenReasonerZero" and orz["verifier"]["extract"] == "answer_tag"
    assert "</answer>" in orz["sampling"]["stop"]
    sets = ("data.template=Plain", "data.template.suffix=!", "verifier.extract=last_number")
    changed_by_set = measured("set", protocol=quick, sets=sets)
    assert changed_by_set["template"]["suffix"] == "!" and changed_by_set["verifier"]["extract"] == "last_number"
    with pytest.raises(InputError, match="aime24.*127"):
        train(small_config("steps=1", "evaluation.every=none"), place / "small", SilentView())
        measured("small", protocol=protocol("orz"), models=parse_models([f"small={place / 'small'}"]))
    foreign = measured("folder", protocol=quick, models=parse_models([f"run={place / 'run' / 'model'}"]))
    assert foreign["template"] == own["template"]  # one prompt for a run and for a model without one


def test_the_first_prompt_of_each_benchmark_is_shown_once_for_models_that_are_asked_alike(
    place: Path, tmp_path: Path
) -> None:
    view = Notes()
    models = parse_models([f"first={place / 'run'}@1", f"end={place / 'run'}"])
    measure(replace(plan(place, tmp_path), models=models), view)
    shown = [line for line in view.lines if "is asked first" in line]
    problems = [next(iter(ChainSum(count=4, terms=2, seed=seed).problems())).prompt for seed in (5, 6)]
    for line, name, problem in zip(shown, ("math500", "aime24"), problems, strict=True):
        assert line.startswith(f"{name}: first is asked first: '{problem}") and "boxed" in line


FEW_SHOT = """
recipe = "grpo"
sampling.max_new_tokens = 5
sampling.stop = ["\\n"]
evaluation.temperature = 0.5
verifier.extract = "last_number"
data.template = {piece = "Plain", prefix = "Q: 1+1=\\nA: 2\\nQ: ", suffix = "\\nA:"}
"""


@pytest.mark.parametrize("way", ["--recipe", "--set"])
def test_a_file_gives_template_sampling_and_verifier(place: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "few.toml").write_text(FEW_SHOT)
    model, out = f"run={place / 'run' / 'model'}", tmp_path / "out"
    exam = ("--benchmark", "aime24", "--set", f"evaluation.benchmark_data={place}", "--samples", "1", "--plain")
    file = f"{tmp_path / 'few.toml'}" if way == "--recipe" else f"@{tmp_path / 'few.toml'}"
    more = (way, file, "--set", "sampling.top_p=0.9", "--protocol", "skywork", "--out", out, "--json")
    invoke("eval", model, *exam, *more)
    kept = settings(out)
    assert (kept["template"]["piece"], kept["template"]["suffix"]) == ("Plain", "\nA:")
    drawn = {name: kept["sampling"][name] for name in ("temperature", "top_p", "max_new_tokens", "stop")}
    assert drawn == {"temperature": 0.5, "top_p": 0.9, "max_new_tokens": 5, "stop": ["\n"]}
    assert (kept["verifier"]["piece"], kept["verifier"]["extract"]) == ("Answer", "last_number")


def test_the_strings_that_end_a_completion_go_with_the_template_of_the_run(place: Path, tmp_path: Path) -> None:
    run, plain = tmp_path / "few", f"base={place / 'run' / 'model'}"
    shutil.copytree(place / "run", run)
    config = json.loads((run / "config.json").read_text())
    config["data"]["template"] = {"piece": "Plain", "prefix": "Q: ", "suffix": "\nA:"}
    config["sampling"]["stop"] = ["\n"]
    (run / "config.json").write_text(json.dumps(config))

    def stop(*models: str, sets: tuple[str, ...] = (), terms: Protocol = PLAIN) -> tuple[str, ...]:
        named = parse_models(list(models))
        wanted = BenchmarkPlan(named, (benchmark("aime24"),), terms, tmp_path, sets=sets)
        configs = {one.label: configure(one, sets=sets).config for one in named}
        return benchmark_sampling(wanted, configs, shared_template(wanted, configs)).stop

    assert stop(str(run)) == stop(plain, str(run)) == ("\n",)
    assert stop(plain) == stop(str(run), sets=("data.template=Auto", "sampling.stop=[]")) == ()
    assert stop(str(run), sets=('sampling.stop=["x"]',)) == ("x",)
    assert stop(str(run), terms=protocol("orz")) == protocol("orz").stop


def test_a_base_of_strops_own_is_asked_without_the_form_of_the_answer_unless_beside_others(tmp_path: Path) -> None:
    def asked(*models: str, sets: tuple[str, ...] = ()) -> bool | None:
        named = parse_models(list(models))
        wanted = BenchmarkPlan(named, (benchmark("aime24"),), PLAIN, tmp_path, sets=sets)
        template = shared_template(wanted, {one.label: configure(one.place, sets=sets).config for one in named})
        assert isinstance(template, Auto)
        return template.instruct

    assert asked("embedded") is False
    assert asked("embedded", "owner/name") is None  # which asks
    assert asked("embedded", sets=("data.template.instruct=true",)) is True


def test_all_models_are_measured_on_what_a_run_held_out(place: Path, tmp_path: Path) -> None:
    run = place / "run"
    wanted = BenchmarkPlan(
        models=parse_models([f"first={run}@1", f"end={run}"]), benchmarks=(benchmark("held_out"),),
        protocol=changed(PLAIN, samples=2), out=tmp_path,
    )  # fmt: skip
    found = measure(wanted, SilentView())
    for model in ("first", "end"):
        facts = json.loads((tmp_path / model / "held_out" / "settings.json").read_text())
        assert facts["verifier"]["extract"] == "last_number"  # the run's own
        own = evaluation_sampling(small_config())
        assert facts["sampling"] == own.model_dump(mode="json") and own.max_new_tokens == 12
    held_out = load_data(small_config().data, byte_tokenizer()).held_out
    assert held_out is not None
    for model in ("first", "end"):
        assert found.results[model, "held_out"].problem_ids == tuple(problem.id for problem in held_out.problems)
    assert facts["prompts"] == held_out.fingerprint
    asked = replace(wanted, sets=("sampling.answer_tokens=5", "evaluation.temperature=0.5"))
    assert held_out_of(asked).sampling == own.model_copy(update={"answer_tokens": 5, "temperature": 0.5})
    foreign = BenchmarkPlan(
        models=parse_models([str(run / "model")]), benchmarks=wanted.benchmarks, protocol=PLAIN, out=tmp_path / "other"
    )  # fmt: skip
    with pytest.raises(InputError, match="held_out"):
        measure(foreign, SilentView())


def test_models_are_named_once_and_checkpoints_exist(place: Path) -> None:
    run = place / "run"
    assert [(each.label, each.step) for each in parse_models([f"r={run}@2", str(run)])] == [("r", 2), (str(run), None)]
    assert parse_models(["owner/name"])[0].place == "owner/name"
    with pytest.raises(InputError, match="7.*1, 2"):
        parse_models([f"{run}@7"])
    with pytest.raises(InputError, match=re.escape(str(run))):
        parse_models([str(run), str(run)])


def test_a_checkpoint_is_measured_and_asked_without_benchmarks_too(place: Path, tmp_path: Path) -> None:
    last = invoke("eval", f"{place / 'run'}@2", "--samples", 2, "--json")
    assert last["weight_version"] == 2
    assert last["pass_rate"] == invoke("eval", f"ours={place / 'run'}", "--samples", 2, "--json")["pass_rate"]
    bare = tmp_path / "bare"
    shutil.copytree(place / "run", bare, ignore=shutil.ignore_patterns("model"))  # a checkpoint needs no export
    (answer,) = invoke("sample", f"{bare}@1", "--prompt", "3+5=", "--max-new-tokens", 4, "--json")
    assert answer["tokens"] <= 4
    with pytest.raises(InputError, match="one model is used at a time"):
        parse_model(f"{bare}@all")


def test_a_run_without_a_model_is_its_newest_checkpoint(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bare, told = tmp_path / "bare", "has no model yet; its checkpoint of step 2 is taken"
    shutil.copytree(place / "run", bare, ignore=shutil.ignore_patterns("model"))
    assert parse_models([str(bare), f"ours={bare}"]) == (
        NamedModel(f"{bare}@2", str(bare), 2), NamedModel("ours", str(bare), 2)
    )  # fmt: skip
    last = invoke("eval", place / "run", "--samples", 2, "--json")
    done = CliRunner().invoke(app, ["eval", str(bare), "--samples", "2", "--json"])
    apart = {"seconds": 0, "weight_version": 2}
    assert json.loads(done.stdout) | {"seconds": 0} == last | apart and told in done.stderr
    short = ("--set", "sampling.max_new_tokens=4", "--json")
    for arguments in (("sample", "--prompt", "3+5="), ("eval", "--out", "kept", *short)):
        done = CliRunner().invoke(app, [arguments[0], str(bare), *arguments[1:]], catch_exceptions=False)
        assert done.exit_code == 0 and told in done.stderr
    assert f"{bare}@2" in done.stdout


@pytest.mark.parametrize(("label", "name"), [("../runs/x", "__--runs--x"), ("a b@3", "a-b@3"), (".x", "_x")])
def test_no_folder_of_samples_is_hidden(label: str, name: str) -> None:
    assert folder_name(label) == name


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("eval", "a", "b", "--set", "data.source=x.jsonl"), "--benchmark"),
        (("eval", "a", "--benchmark", "amie24"), "aime24"),
        (("eval", "a", "--protocol", "archr"), "archer"),
        (("eval", "a", "--benchmark", "aime24", "--metric", "mean"), "--metric mean"),
        (("eval", "a", "--benchmark", "aime24", "--metric", "avg,pass@4", "--samples", "2"), "raise --samples to 4"),
        (("eval", "embedded", "--benchmark", "aime24", "--set", "sampling.top_p=0"), "top_p"),
        (("eval", "embedded", "--benchmark", "aime24", "--set", "data.template=x"), "data.template"),
        (("compare", "nowhere"), "nowhere"),
    ],
)
def test_refusals(arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, StropError) and told in str(done.exception)


def test_the_list_names_every_benchmark_and_protocol() -> None:
    value = invoke("eval", "--list", "--json")
    assert {"aime24", "livecodebench", "mmlu_pro"} <= {each["name"] for each in value["benchmarks"]}
    protocols = {"skywork", "archer", "opefo", "opefo_pass", "orz", "scalerl"}
    assert {each["name"] for each in value["protocols"]} == protocols
    plain = CliRunner().invoke(app, ["eval", "--list"]).stdout
    assert "--protocol archer" in plain and "livecodebench:v6 16" in plain
