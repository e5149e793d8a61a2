"""What a run is measured on: benchmarks found, refused and asked as `strop eval` asks them; when each is due."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.evaluation.results import result
from tests.runs import small_config
from tests.watching import Notes

from strop.base.seeds import derive
from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.config.tiny import tiny
from strop.data.loading import build_dataset, load_data
from strop.data.templates import Plain as PlainPrompt
from strop.engines.protocol import Sampling
from strop.evaluation.benchmarks import benchmark
from strop.evaluation.evaluate import ProblemSet, by_problem, gain, metrics
from strop.evaluation.protocols import PLAIN, changed
from strop.evaluation.result import paired_test
from strop.lab.benchmarking import BenchmarkPlan, measure
from strop.model.files import byte_tokenizer
from strop.recipes.resolve import resolve
from strop.run.models import parse_models
from strop.run.questions import validation_sets
from strop.run.run import train
from strop.verifiers.math_verifier import MathVerifier

ROOM = 400


def sets(*changes: str, view: Notes | None = None) -> tuple[ProblemSet, ...]:
    config = small_config(*changes)
    tokenizer = byte_tokenizer()
    return validation_sets(config, load_data(config.data, tokenizer), tokenizer, ROOM, view or Notes())


def write(path: Path, *questions: str) -> Path:
    path.write_text("".join(json.dumps({"problem": text, "answer": "4"}) + "\n" for text in questions))
    return path


def test_each_domain_has_its_pass_rate_and_standard_error() -> None:
    names = ("code", "code", "math", "math")
    problems = [Problem(f"p{place}", "?", "1", domain=name) for place, name in enumerate(names)]
    dataset = build_dataset("made", problems, PlainPrompt(), byte_tokenizer(), 8)
    own = ProblemSet("held_out", dataset, 2, Sampling(max_new_tokens=8), MathVerifier(), 0)
    row = metrics(result([[1, 0], [1, 1], [0, 0], [1, 1]]), own)
    assert (row["evaluation/pass_rate/code"], row["evaluation/pass_rate/math"]) == (0.75, 0.5)
    assert row["evaluation/stderr/code"] == pytest.approx(0.25)  # of .5 and 1
    assert row["evaluation/stderr/math"] == pytest.approx(0.5)  # of 0 and 1


def test_a_run_has_its_held_out_problems_and_the_benchmarks_it_names(tmp_path: Path) -> None:
    exam = write(tmp_path / "exam.jsonl", "2+2=", "3+1=", "x" * ROOM)
    write(tmp_path / "aime24.jsonl", "1+3=")
    view = Notes()
    named = f"evaluation.benchmarks=[{{name='{exam}', every=3, samples_per_problem=1, limit=3}}, 'aime24']"
    others = f"evaluation.benchmark_data={tmp_path}", "evaluation.top_p=0.7"
    own, first, second = sets(named, *others, "seed=7", view=view)
    assert (own.name, own.every, own.samples, len(own.dataset)) == ("held_out", 2, 2, 8)
    assert (first.name, first.every, first.samples, len(first.dataset)) == ("exam", 3, 1, 2)
    assert (second.name, second.every, second.samples, len(second.dataset)) == ("aime24", 2, 2, 1)
    assert isinstance(first.verifier, MathVerifier) and own.verifier == small_config().verifier
    assert own.sampling == first.sampling and first.seed == derive(7, "benchmark", "exam")
    prompt = byte_tokenizer().decode(first.dataset[0].prompt_ids)
    assert prompt.startswith("2+2=") and "\\boxed{}" in prompt
    assert view.lines == [
        "exam: 2 problems, measured every 3 steps, at temperature 1, top-p 0.7, up to 12 tokens",
        "exam: 1 problem left out, the model has no room for their prompts",
        "aime24: 1 problem, measured every 2 steps, at temperature 1, top-p 0.7, up to 12 tokens",
    ]
    assert [step for step in range(9) if first.due(step, 8)] == [0, 3, 6, 8]


def test_a_run_that_was_trained_on_plain_prompts_is_asked_a_benchmark_so(tmp_path: Path) -> None:
    """As `strop eval` asks it, whatever the file's columns are called; a box was asked for while it trained."""
    exam, named = tmp_path / "exam.jsonl", "evaluation.benchmark_columns={prompt='task', answer='key'}"
    exam.write_text('{"task": "2+2=", "key": "4", "note": "Two and two, which is even."}\n')
    with pytest.raises(InputError, match=r"exam\.jsonl:1: no column .*evaluation\.benchmark_columns"):
        sets(f"evaluation.benchmarks=['{exam}']")
    _, first = sets(f"evaluation.benchmarks=['{exam}']", "data.template=Plain", named)
    assert byte_tokenizer().decode(first.dataset[0].prompt_ids) == "2+2="
    config = small_config("data.template=Plain", "steps=1", "evaluation.every=none")
    train(config, tmp_path / "run", SilentView())
    models, quick = parse_models([f"run={tmp_path / 'run'}"]), changed(PLAIN, samples=1)
    short = ("sampling.max_new_tokens=4", named)
    measure(BenchmarkPlan(models, (benchmark(str(exam)),), quick, tmp_path / "out", sets=short), SilentView())
    kept = json.loads((tmp_path / "out" / "run" / "exam" / "settings.json").read_text())
    assert kept["prompts"] == first.dataset.fingerprint


def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path: Path) -> None:
    exam = write(tmp_path / "exam.jsonl", "2+2=")
    (tmp_path / "other").mkdir()
    twin = write(tmp_path / "other" / "exam.jsonl", "2+2=")
    long = write(tmp_path / "long.jsonl", "x" * ROOM)
    for named, said in (
        (f"['{tmp_path}/absent.jsonl']", "there is no such file"),
        ("['aime23']", "'aime23'.*'aime2[45]'"),
        ("['aime25']", rf"aime25.*evaluation\.benchmark_data={tmp_path}"),
        (f"['{exam}', '{twin}']", "'exam'"),
        (f"['{long}']", "long.*388"),
        ("['held_out']", "'held_out'"),
    ):
        with pytest.raises(InputError, match=f"evaluation.benchmarks: .*{said}") as caught:
            sets(f"evaluation.benchmarks={named}", f"evaluation.benchmark_data={tmp_path}")
        assert "\n" not in str(caught.value)


def test_a_recipes_benchmarks_that_cannot_be_had_are_left_out_with_a_line_each(tmp_path: Path) -> None:
    write(tmp_path / "aime24.jsonl", "2+2=")
    write(tmp_path / "math500.jsonl", "x" * ROOM)
    names = ("aime25", "aime24", "math500")
    optional = ", ".join(f"{{name='{name}', samples_per_problem=3, optional=true}}" for name in names)
    named, view = (f"evaluation.benchmarks=[{optional}]", f"evaluation.benchmark_data={tmp_path}"), Notes()
    _, only = sets(*named, view=view)
    assert (only.name, only.samples, only.every) == ("aime24", 3, 2)
    absent, found, long = view.lines
    assert re.fullmatch(r"aime25: not measured, .*holds neither aime25\.jsonl .*", absent)
    assert found.startswith("aime24: 1 problem, measured every 2 steps") and long.startswith("math500: not measured, ")
    assert sets(*named, "evaluation.every=none") == ()


def test_recipes_carry_the_papers_benchmarks() -> None:
    def of(name: str) -> dict[str, int | None]:
        return {one.name: one.samples_per_problem for one in resolve(name).evaluation.benchmarks}

    assert of("skywork_or1.7b") == {"aime24": 8, "aime25": 8, "livecodebench:v5": 4}
    assert of("archer.code") == {"livecodebench:v5": 8} and of("archer.math.released") == {}
    assert of("clip_cov")["olympiadbench"] == 1 and of("clip_cov")["amc23"] == 32
    assert of("open_reasoner_zero.32b") == {"aime24": 16, "aime25": 16, "math500": 16, "gpqa_diamond": 16}
    assert of("scalerl.math_code") == {"aime24": 16, "livecodebench:2025-01-01..2025-06-30": 16}
    for name in ("skywork_or1.7b", "archer.code", "clip_cov", "scalerl"):
        assert all(one.optional and benchmark(one.name) for one in resolve(name).evaluation.benchmarks)
        assert tiny(resolve(name)).evaluation.benchmarks == ()


def test_the_gain_is_the_paired_test_of_both_evaluations() -> None:
    before, after = result([[0, 0], [1, 0], [1, 1], [0, 1]]), result([[1, 0], [1, 1], [1, 1], [1, 1]])
    tested = paired_test(before, after)
    found = gain(by_problem(before), after)
    assert found == {
        "evaluation/gain": tested.gain, "evaluation/gain_low": tested.interval.low,
        "evaluation/gain_high": tested.interval.high,
    }  # fmt: skip
    assert gain({"elsewhere": 1.0}, after) == {}
