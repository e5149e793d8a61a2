"""What is called held out was never trained on, whatever becomes of limits, data files and splits afterwards."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.test_run import StopsAfter
from tests.runs import small_config
from tests.watching import Notes

from strop.base.imports import allow_module
from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.data.generators import ChainSum, Mixture
from strop.data.loading import ProblemRecord, load_data
from strop.data.rows import JsonLines
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.source import question_digest
from strop.evaluation.benchmarks import benchmark
from strop.evaluation.protocols import PLAIN, changed
from strop.lab import benchmarking
from strop.lab.benchmarking import BenchmarkPlan, measure
from strop.model.files import byte_tokenizer
from strop.run import fine_tuning, sft_config
from strop.run.folder import RunFolder, questions_of, trained_before
from strop.run.measuring import evaluate_model, problems_of
from strop.run.models import (
    ModelSetup,
    NamedModel,
    configure,
    export_checkpoint,
    parse_model,
    parse_models,
    refuse_without_problems,
)
from strop.run.run import Interrupted, resume, train

TOKENIZER = byte_tokenizer()


def write(file: Path, numbers: range) -> None:
    lines = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in numbers]
    file.write_text("\n".join(lines) + "\n")


def from_file(file: Path, *sets: str) -> tuple[str, ...]:
    named = f"data.source={json.dumps(str(file))}"
    return (named, "data.held_out={count=8}", "steps=2", "model.fresh.max_positions=256", *sets)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on forty problems of a file, eight of them held out; the file has grown and changed its order since."""
    folder = tmp_path_factory.mktemp("held-out")
    write(folder / "problems.jsonl", range(40))
    train(small_config(*from_file(folder / "problems.jsonl")), folder / "run", SilentView())
    lines = (folder / "problems.jsonl").read_text().splitlines()
    grown = [json.dumps({"prompt": f"{n}+2=", "answer": str(n + 2)}) for n in range(100, 130)]
    (folder / "problems.jsonl").write_text("\n".join([*grown, *reversed(lines)]) + "\n")
    return folder / "run"


def record_of(run: Path) -> ProblemRecord:
    return ProblemRecord.from_json(json.loads((run / "problems.json").read_text()))


def fails_below_9(problem: Problem, text: str) -> float:
    if int(str(problem.reference)) < 9:
        raise ValueError("too small to judge")
    return float(len(text) % 2)


def fails(problem: Problem, text: str) -> float:
    raise ValueError("never judges")


def judged_by(function: str, folder: Path) -> tuple[str, ...]:
    allow_module(__name__)
    write(folder / "train.jsonl", range(20, 40))
    write(folder / "held_out.jsonl", range(16))
    held_out = json.dumps(str(folder / "held_out.jsonl"))
    verifier = f'verifier={{piece="PythonFunction", function="{__name__}:{function}", isolation="none"}}'
    return from_file(folder / "train.jsonl", f"data.held_out={{count=16, source={held_out}}}", verifier)


def test_samples_that_could_not_be_judged_are_said(tmp_path: Path) -> None:
    view = Notes()
    train(small_config(*judged_by("fails_below_9", tmp_path)), tmp_path / "run", view)
    said = [line for line in view.lines if line.startswith("evaluation of step")]
    assert [line.split(":")[0] for line in said] == ["evaluation of step 0", "evaluation of step 2"]
    assert all("samples of held_out" in line and "too small to judge" in line for line in said)
    assert len(json.loads((tmp_path / "run" / "untrained.json").read_text())["pass_rates"]) == 8
    evaluate_model(configure(str(tmp_path / "run")), 2, view)
    (line,) = [line for line in view.lines if line.startswith("the verifier failed on")]
    assert "16 of 32 samples" in line and "8 of 16 problems" in line


def test_an_evaluation_of_which_nothing_was_judged_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="never judges"):
        train(small_config(*judged_by("fails", tmp_path)), tmp_path / "run", Notes())


@pytest.mark.parametrize("limit", [None, 3, 100])
def test_a_run_is_measured_on_what_it_held_out(run: Path, limit: int | None) -> None:
    record = record_of(run)
    asked = configure(str(run), limit=limit)
    dataset, trained_on = problems_of(asked, TOKENIZER, SilentView())
    assert [question_digest(problem) for problem in dataset.problems] == list(record.held_out[:limit])
    assert trained_on == 0


def test_other_problems_are_never_called_held_out(run: Path) -> None:
    notes = Notes()
    asked = configure(str(run), source=str(run.parent / "problems.jsonl"))
    dataset, trained_on = problems_of(asked, TOKENIZER, notes)
    assert (len(dataset), trained_on) == (70, 32)
    assert any("32 of these 70 problems were among the training problems" in line for line in notes.lines)
    assert f"70 problems of {run.parent / 'problems.jsonl'}" in notes.lines
    assert "held-out problems" not in " ".join(notes.lines)
    assert evaluate_model(asked, 1, SilentView())["trained_on"] == 32


def test_a_run_is_asked_other_problems_whatever_it_measured_while_it_trained(tmp_path: Path) -> None:
    """A finished run can be measured although its benchmarks name no steps."""
    write(tmp_path / "exam.jsonl", range(3))
    exam, place = str(tmp_path / "exam.jsonl"), str(tmp_path / "run")
    config = small_config(*from_file(Path(exam), "data.held_out={count=1}", f'evaluation.benchmarks=["{exam}"]'))
    RunFolder.create(tmp_path / "run", config.model_dump(mode="json")).close()
    (tmp_path / "run" / "model").mkdir()
    refuse_without_problems(NamedModel(place, place), None, [f"data.source={exam}"])
    assert len(problems_of(configure(place, source=exam), TOKENIZER, SilentView())[0]) == 3
    notes = Notes()
    problems_of(configure(place, sets=["data.held_out=none"]), TOKENIZER, notes)
    assert f"3 problems of {exam}" in notes.lines


def test_problems_that_a_setting_names_are_asked_where_what_is_held_out_has_a_source_of_its_own(run: Path) -> None:
    named = f"data.source={json.dumps(str(run.parent / 'problems.jsonl'))}"
    asked = configure("embedded", "quickstart", [named])  # which holds out sums of another seed
    assert len(problems_of(asked, TOKENIZER, SilentView())[0]) == 70
    other = configure("embedded", "quickstart", ["data.max_prompt_tokens=99"]).config.data.held_out
    assert other is not None and other.source is not None
    assert configure("embedded", "quickstart", [named, "data.held_out={count=8}"]).config.data.held_out is not None
    assert configure("embedded", "grpo", [named]).config.data.held_out is None, "all of the file"


@pytest.mark.parametrize("more", [(), ("data.held_out={count=8}",), ("data.held_out=none", "evaluation.every=none")])
def test_the_limit_is_of_the_problems_that_are_asked(run: Path, more: tuple[str, ...]) -> None:
    """Held out from a separate source, from the training source, or not at all."""
    asked = configure("embedded", "quickstart", [*more], limit=5)
    assert len(problems_of(asked, TOKENIZER, SilentView())[0]) == 5


def test_a_limit_is_of_the_source_that_a_setting_names(run: Path) -> None:
    named = f"data.source={json.dumps(str(run.parent / 'problems.jsonl'))}"
    asked = configure("embedded", "quickstart", [named, "data.limit=9"])
    assert len(problems_of(asked, TOKENIZER, SilentView())[0]) == 9


def test_a_long_prompt_that_lowers_the_budget_of_all_is_named(run: Path, tmp_path: Path) -> None:
    rows = [
        {"id": "short", "prompt": "1+1=", "answer": "2"},
        {"id": "the-long-one", "prompt": "1+" * 100 + "1=", "answer": "101"},
    ]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = Notes()
    sets = ["sampling.max_new_tokens=100", "data.source.columns.id=id"]
    evaluate_model(configure(str(run), None, sets, source=str(tmp_path / "mixed.jsonl")), 1, view)
    (line,) = [line for line in view.lines if line.startswith("completions end at")]
    assert "not 100" in line and "'the-long-one' takes 2" in line


def test_a_runs_model_is_known_by_its_folder(run: Path) -> None:
    asked = configure(str(run / "model"), source=str(run.parent / "problems.jsonl"))
    assert problems_of(asked, TOKENIZER, SilentView())[1] == 32


BRIEF = ("sampling.max_new_tokens=4",)
TWICE = '{piece="JsonLines", path="FILE"}'


@pytest.mark.parametrize(
    "sets",
    [
        (f"data.source={TWICE}", "data.held_out={count=8}"),
        (f'data.source={{piece="Mixture", sources=[{TWICE}], repeats=[2]}}', "data.held_out={count=8}"),
        ("data.source={piece='ChainSum', count=9}", f"data.held_out={{source={TWICE}}}"),
    ],
)
def test_a_question_that_the_source_has_twice_is_the_one_that_the_run_was_measured_on(
    sets: tuple[str, ...], tmp_path: Path
) -> None:
    """The last of them was asked, with another answer, and another id from which its samples are drawn."""
    lines = [{"prompt": f"{n}+1=", "answer": str(n + 1 + off)} for off in (0, 100) for n in range(9)]
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = small_config(*(text.replace("FILE", str(tmp_path / "twice.jsonl")) for text in sets))
    data = load_data(config.data, TOKENIZER)
    folder = RunFolder.create(tmp_path / "run", config.model_dump(mode="json"))
    folder.write_json("problems.json", ProblemRecord.of(data).to_json())
    folder.close()
    dataset, _ = problems_of(ModelSetup(config, tmp_path / "run", own=True), TOKENIZER, SilentView())
    assert data.held_out is not None and dataset.fingerprint == data.held_out.fingerprint


def test_what_was_held_out_and_is_gone_is_refused(run: Path, tmp_path: Path) -> None:
    record = ProblemRecord(frozenset(), ("0" * 16,), frozenset())
    with pytest.raises(InputError, match="1 of the 1"):
        record.held_out_of([Problem("a", "1+1=", "2")], "problems.jsonl")


def test_a_run_does_not_go_on_with_other_held_out_problems(tmp_path: Path) -> None:
    file, held_out = tmp_path / "problems.jsonl", tmp_path / "held_out.jsonl"
    write(file, range(40))
    write(held_out, range(50, 58))
    sets = from_file(file, f"data.held_out={{source={json.dumps(str(held_out))}}}", "steps=4")
    with pytest.raises(Interrupted):
        train(small_config(*sets), tmp_path / "run", StopsAfter(2, signal.SIGINT))
    write(held_out, range(51, 59))
    with pytest.raises(InputError, match="held-out"):
        resume(tmp_path / "run", SilentView())


def test_base_and_run_are_asked_the_same(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "exam.jsonl", range(36, 44))
    notes = Notes()
    quick = changed(PLAIN, samples=1)
    models = parse_models([f"base={run / 'model'}", f"run={run}"])
    exam = (benchmark(str(tmp_path / "exam.jsonl")),)
    grid = measure(BenchmarkPlan(models, exam, quick, tmp_path / "out", sets=BRIEF), notes)
    kept = [json.loads((tmp_path / "out" / name / "exam" / "settings.json").read_text()) for name in ("base", "run")]
    assert kept[0]["prompts"] == kept[1]["prompts"] and kept[0]["template"] == kept[1]["template"]
    trained = record_of(run).trained
    count = sum(question_digest(Problem("", f"{n}+1=", "")) in trained for n in range(36, 44))
    assert f"run had {count} of the 8 problems of exam among its training problems" in notes.lines
    assert [line for line in grid.notes() if "was trained on" in line] == [
        f"exam: {name} was trained on {count} of the 8 problems"
        for name in ("base", "run")
    ]


def test_runs_with_different_prompts_are_not_compared(run: Path, tmp_path: Path) -> None:
    train(small_config("steps=1", "evaluation.every=none", "data.template=OpenReasonerZero",
                       "data.max_prompt_tokens=2000", "model.fresh.max_positions=2048"),
          tmp_path / "other", SilentView())  # fmt: skip
    write(tmp_path / "exam.jsonl", range(3))
    models = parse_models([f"one={run}", f"other={tmp_path / 'other'}"])
    plan = BenchmarkPlan(
        models, (benchmark(str(tmp_path / "exam.jsonl")),), changed(PLAIN, samples=1), tmp_path / "out"
    )
    with pytest.raises(InputError, match=r"data\.template"):
        measure(plan, SilentView())


SOURCES = st.builds(ChainSum, count=st.integers(12, 60), terms=st.just(2), seed=st.integers(0, 5))
SPLITS = st.one_of(
    st.builds(HeldOutSettings, count=st.integers(1, 8), seed=st.integers(0, 9)),
    st.builds(lambda source: HeldOutSettings(source=source, count=9), SOURCES),
)


@given(st.one_of(SOURCES, st.builds(lambda *s: Mixture(sources=s), SOURCES)), SPLITS, st.integers(10, 70), st.data())
def test_held_out_is_never_trained_on(
    source: ChainSum | Mixture, held_out: HeldOutSettings, limit: int, data: st.DataObject
) -> None:
    settings = DataSettings(source=source, held_out=held_out, limit=limit)
    try:
        record = ProblemRecord.of(load_data(settings, TOKENIZER))
    except InputError:  # nothing is left to train on
        return
    assert not record.trained & set(record.held_out)
    assert ProblemRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    # Later the source has more problems than the run read, in another order.
    origin = source if held_out.source is None else held_out.source
    later = data.draw(st.permutations([*origin.load(), Problem("new", "9+9+9=", "27")]))
    again = record.held_out_of(later, "later")
    assert [question_digest(problem) for problem in again] == list(record.held_out)
    assert record.trained_on(again) == 0


def test_a_whole_file_of_appended_lines_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    write(file, range(30))
    settings = DataSettings(source=JsonLines(path=str(file)), held_out=HeldOutSettings(count=5))
    record = ProblemRecord.of(load_data(settings, TOKENIZER))
    write(file, range(60))
    found = record.held_out_of(JsonLines(path=str(file)).load(), "problems.jsonl")
    assert record.trained_on(found) == 0 and len(found) == 5


# Settings that a user may add to a run with a plain source, by a name.
WAYS = {
    "stages": (
        'stages=[{steps=1}, {steps=1, problems={piece="HardOnly", below=1.0}}, {set={batch={samples_per_prompt=2}}}]',
    ),
    "limit": ("data.limit=20",),
    "mixture": (
        'data.source={piece="Mixture", sources=[{piece="JsonLines", path="FILE"}, {piece="ChainSum", count=9}]}',
        "data.held_out={count=8}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_no_rollout_is_of_a_held_out_problem(
    way: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problems that were really trained on, of runs that are interrupted and go on."""
    monkeypatch.chdir(tmp_path)
    write(Path("problems.jsonl"), range(30))
    sets = tuple(text.replace("FILE", "problems.jsonl") for text in WAYS[way])
    config = small_config(*from_file(Path("problems.jsonl"), "steps=5", "evaluation.every=none", *sets))
    with pytest.raises(Interrupted):
        train(config, Path("runs/mine"), StopsAfter(2, signal.SIGINT))
    resume(Path("runs/mine"), SilentView())
    asked = asked_in(Path("runs/mine"))
    record = record_of(Path("runs/mine"))
    assert len(asked) > 5 and asked <= record.trained and not asked & set(record.held_out)


def asked_in(run: Path) -> set[str]:
    """Digests of the questions of every rollout of a run."""
    folder = RunFolder.open(run)
    rows = [row for step in folder.rollout_steps() for row in folder.read_rollouts(step)]
    return {question_digest(Problem("", row["prompt"], None)) for row in rows}


def test_a_run_does_not_go_on_with_a_file_that_has_grown(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    write(file, range(40))
    with pytest.raises(Interrupted):
        train(small_config(*from_file(file, "steps=4")), tmp_path / "run", StopsAfter(2, signal.SIGINT))
    write(file, range(60))
    with pytest.raises(InputError, match="strop train"):
        resume(tmp_path / "run", SilentView())


def test_a_run_that_begins_with_the_model_of_another_holds_out_what_neither_trained_on(run: Path) -> None:
    """Also where the file has grown in between, and over two such runs."""
    before = record_of(run)
    sets = [f"data.source={run.parent / 'problems.jsonl'}", f"model.path={run / 'model'}", "data.held_out={count=20}"]
    config = edit(small_config("steps=1", "evaluation.every=none"), sets)
    train(config, run.parent / "second", SilentView())
    second = record_of(run.parent / "second")
    assert len(second.held_out) == 20 and not before.trained & set(second.held_out)
    seen = trained_before(str(run.parent / "second" / "model"))
    lines = (run.parent / "problems.jsonl").read_text().splitlines()
    numbers = [Problem("", json.loads(line)["prompt"], None) for line in lines]
    trained = before.trained | second.trained
    assert [seen(problem) for problem in numbers] == [question_digest(problem) in trained for problem in numbers]
    with pytest.raises(InputError, match=r"data\.held_out\.count"):
        train(edit(config, ["data.held_out.count=39"]), run.parent / "third", SilentView())
    model = run.parent / "second" / "model"
    exported = export_checkpoint(run.parent / "second", run.parent / "exported")
    copied = Path(shutil.copytree(model, run.parent / "copied"))
    run.rename(run.parent / "renamed")
    for one in (run.parent / "second", model, exported, copied):
        assert questions_of(str(one)) == trained, "wherever the model and those before it lie by now"
    (run.parent / "renamed").rename(run)
    assert questions_of(str(run.parent)) is None and questions_of("embedded") is None
    old = run.parent / "old.jsonl"
    old.write_text("".join(lines[number] + "\n" for number, one in enumerate(numbers) if seen(one)))
    with pytest.raises(InputError, match=r"data\.held_out\.source"):
        changes = [f"data.source={old}", "data.held_out.count=3", f"model.path={run.parent / 'second' / 'model'}"]
        train(edit(config, changes), run.parent / "fourth", SilentView())


def test_fine_tuning_counts_as_training(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "worked.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}+1=", "completion": "x"}) + "\n" for n in range(30)))
    tuned = sft_config.configure(str(run / "model"), file, ["training.epochs=none", "training.steps=1"])
    fine_tuning.train(tuned, tmp_path / "sft", SilentView())
    seen = trained_before(str(tmp_path / "sft" / "model"))
    assert all(seen(Problem("", f"{n}+1=", "")) for n in range(30))
    assert not seen(Problem("", "100+1=", ""))
    write(tmp_path / "problems.jsonl", range(20, 40))
    later = DataSettings(source=JsonLines(path=str(tmp_path / "problems.jsonl")), held_out=HeldOutSettings(count=2))
    held_out = load_data(later, TOKENIZER, seen=seen).held_out
    assert held_out is not None and not any(map(seen, held_out.problems))


def test_a_run_that_begins_with_a_fine_tuned_model_was_trained_on_its_demonstrations(run: Path, tmp_path: Path) -> None:
    """Whoever measured such a run said that it had seen none of them."""
    worked, exam = tmp_path / "worked.jsonl", tmp_path / "exam.jsonl"
    worked.write_text("".join(json.dumps({"prompt": f"{n}+1=", "completion": "x"}) + "\n" for n in range(50, 60)))
    write(exam, range(55, 65))
    tuned = sft_config.configure(str(run / "model"), worked, ["training.epochs=none", "training.steps=1"])
    fine_tuning.train(tuned, tmp_path / "sft", SilentView())
    notes = Notes()
    sets = ["data.source.count=20", "model.fresh=none", f"model.path={tmp_path / 'sft' / 'model'}"]
    sets += ["evaluation.every=none", f"evaluation.benchmarks=[{{name='{exam}', every=1}}]", "steps=1"]
    train(edit(small_config(), [*sets, "data.held_out=none"]), tmp_path / "run", notes)
    assert [re.findall(r"\d+ of the \d+ problems of \w+", line) for line in notes.lines if "no measure" in line] == [
        ["5 of the 10 problems of exam"]
    ]
    models = parse_models([str(tmp_path / "run"), f"sft={tmp_path / 'sft'}", f"{tmp_path / 'run'}@1"])
    quick = changed(PLAIN, samples=1)
    grid = measure(BenchmarkPlan(models, (benchmark(str(exam)),), quick, tmp_path / "out", sets=BRIEF), SilentView())
    assert list(grid.trained_on.values()) == [5, 5, 5]
    for place, step in (("run", None), ("run", 1), ("run/model", None), ("sft", None), ("sft", 1)):
        asked = configure(NamedModel("m", str(tmp_path / place), step), source=str(exam))
        assert problems_of(asked, TOKENIZER, SilentView())[1] == 5, place


def test_a_benchmark_that_is_trained_on_is_told(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    write(file, range(24))
    notes = Notes()
    sets = from_file(file, f'evaluation.benchmarks=[{{name="{file}"}}]')
    train(small_config(*sets), tmp_path / "run", notes)
    assert any("the run trains on 16 of the 24 problems of sums" in line for line in notes.lines)


def test_a_model_without_a_training_run_is_asked_only_what_is_named(run: Path, tmp_path: Path) -> None:
    """It was measured on the problems of the recipe that stood in for its run's: strop's own sums."""
    file = tmp_path / "worked.jsonl"
    file.write_text(json.dumps({"prompt": "1+1=", "completion": "2"}) + "\n")
    tuned = sft_config.configure(str(run / "model"), file, ["training.epochs=none", "training.steps=1"])
    fine_tuning.train(tuned, tmp_path / "sft", SilentView())
    for place in (str(tmp_path / "sft"), f"ours={tmp_path / 'sft'}", f"{tmp_path / 'sft'}@1", str(run / "model")):
        with pytest.raises(InputError, match=r"data\.source") as refused:
            refuse_without_problems(parse_model(place), None, ())
        assert str(refused.value).endswith(f"strop eval {run}") == (place == str(run / "model"))
        refuse_without_problems(parse_model(place), "grpo", ())
        refuse_without_problems(parse_model(place), None, ["data.source=chain_sum"])
    refuse_without_problems(parse_model(str(run)), None, ())
    refuse_without_problems(parse_model("embedded"), None, ())  # which learned the recipe's sums


def test_a_run_without_a_record_says_so(run: Path) -> None:
    (run / "problems.json").rename(run / "hidden")
    notes = Notes()
    try:
        dataset, trained_on = problems_of(ModelSetup(configure(str(run)).config, run, own=True), TOKENIZER, notes)
    finally:
        (run / "hidden").rename(run / "problems.json")
    assert trained_on is None and any("kept no record" in line for line in notes.lines)


def test_a_base_of_strops_own_is_that_of_the_run_beside_it(tmp_path: Path) -> None:
    """Each seed has a separate base; a run is compared with the base of its seed, not with that of seed 0."""
    config = edit(small_config("seed=5"), ["model.fresh=none", "model.path=embedded"])
    RunFolder.create(tmp_path / "run", config.model_dump(mode="json")).close()
    (tmp_path / "run" / "model").mkdir()
    for sets, seed in (((), 5), (("seed=7",), 7)):
        plan = BenchmarkPlan(
            parse_models(["base=embedded", str(tmp_path / "run")]), (), PLAIN, tmp_path / "out", sets=sets
        )
        assert [benchmarking._config(plan, model).seed for model in plan.models] == [seed, seed]
    plan = BenchmarkPlan(parse_models(["embedded-moe", str(tmp_path / "run")]), (), PLAIN, tmp_path / "out")
    assert benchmarking._config(plan, plan.models[0]).seed == 0  # which the run did not begin with
