"""`strop report` from runs to page: what is in it, what is said to be missing, that nothing of a run acts in it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.report.cases import Parsed, group
from tests.runs import small_config

from strop.base.types import InputError
from strop.cli.run_commands import report_run
from strop.model.files import byte_tokenizer
from strop.report.build import write_report
from strop.run.folder import RunFolder

HOSTILE = "</pre></svg><script>alert(1)</script><img src=x onerror=alert(2)>\" onclick='alert(3)' \u202e\x00"


@pytest.fixture(scope="module")
def page(written: dict[str, Any]) -> Parsed:
    return Parsed(Path(written["report"]).read_text(encoding="utf-8"))


def light_copy(run: Path, target: Path, *without: str) -> Path:
    """A copy of a run with few metrics, of which a report is quickly drawn, and less the folders `without`."""
    shutil.copytree(run, target, ignore=shutil.ignore_patterns(*without))
    lines = [{"step": step, "time": 0.0, "pass_rate": step / 10, "version": step} for step in range(1, 5)]
    (target / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return target


def hostile_run(folder: Path) -> Path:
    """A run whose every text tries to become markup."""
    config = json.loads(small_config().model_dump_json())
    run = RunFolder.create(folder / "<img src=x onerror=alert(0)>", config | {"recipe": HOSTILE})
    for step in (1, 2):
        run.append_metrics(
            step,
            {"pass_rate": step / 4, "evaluation/pass_rate": step / 3, f"evaluation/pass_rate/{HOSTILE}": 0.5,
             "evaluation/pass_rate/$": 0.1, "version": float(step)},
        )  # fmt: skip
        run.write_rollouts(step, [group(HOSTILE, HOSTILE, step)])
    byte_tokenizer().save_pretrained(run.model)
    return run.path


def assert_harmless(page: Parsed) -> None:
    assert "img" not in page.names() and len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_has_every_section(written: dict[str, Any], page: Parsed) -> None:
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == [
        "summary", "evaluations", "learning", "exploration", "completions", "stability", "time-and-compute", "samples",
        "left-out",
    ]  # fmt: skip
    assert set(page.values("id")) >= {"held-out-pass-rate", "entropy", "time-shares", "values", "seconds"}


def test_the_page_needs_nothing_but_itself(page: Parsed) -> None:
    assert not page.values("src")
    links = page.values("href") + page.values("xlink:href")
    assert all(link.startswith("#") or link == "data:," for link in links)
    targets = {link[1:] for link in links if link.startswith("#")}
    assert targets <= set(page.values("id"))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    policy = next(value for value in page.values("content") if "default-src" in value)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_samples_can_be_coloured_by_what_was_recorded(page: Parsed) -> None:
    assert page.text.count("Step 1:") == 1 and page.text.count("Step 4:") == 1
    choices = [attributes["id"] for tag, attributes in page.tags if tag == "input"]
    assert choices == ["r0-entropy", "r0-flow", "r0-surprise"]
    tokens = [attributes for tag, attributes in page.tags if tag == "i"]
    assert tokens and all("--e:" in (each["style"] or "") and "entropy" in (each["title"] or "") for each in tokens)
    assert any("hi" in (each.get("class") or "").split() for each in tokens)


def test_nothing_of_a_run_becomes_markup(tmp_path: Path) -> None:
    path = hostile_run(tmp_path)
    done = write_report([path], tmp_path / "out")
    page = Parsed(done.page.read_text(encoding="utf-8"))
    assert_harmless(page)
    # It is all there as text, what turns it around written out.
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>\" onclick='alert(3)' ⟨U+202E⟩␀" in page.text
    assert "step 1" in page.text.lower() and "step 2" in page.text.lower()


def test_a_run_of_another_engine_is_shown_without_entropies(real_run: Path, tmp_path: Path) -> None:
    run = light_copy(real_run, tmp_path / "run")
    for path in (run / "rollouts").iterdir():
        table = pq.read_table(path)
        place = table.schema.get_field_index("entropies")
        field = table.schema.field(place)
        pq.write_table(table.set_column(place, field, pa.nulls(table.num_rows, field.type)), path)
    done = write_report([run], tmp_path / "bare.html", samples=4)
    page = Parsed(done.page.read_text())
    assert done.page == tmp_path / "bare.html"
    assert [attributes["id"] for tag, attributes in page.tags if tag == "input"] == ["r0-surprise"]


def test_a_report_without_rollouts_lists_what_is_missing(real_run: Path, tmp_path: Path) -> None:
    run = light_copy(real_run, tmp_path / "run", "model", "checkpoints", "critic", "rollouts")
    done = write_report([run], samples=2)
    assert done.page == run / "report" / "report.html"
    assert any(line.startswith("run: samples") for line in done.left_out)


def test_several_runs_are_laid_over_one_another(real_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    RunFolder.create(other, json.loads(small_config("seed=3").model_dump_json())).append_metrics(1, {"pass_rate": 0.5})
    small = light_copy(real_run, tmp_path / "small", "rollouts")
    done = write_report([small, other], tmp_path / "both", samples=0)
    page = Parsed(done.page.read_text())
    assert "2 runs compared" in page.text
    headings = [text for text in page.texts if text in ("small", "other")]
    assert {"small", "other"} <= set(headings)
    assert any(line.startswith("other: it was not evaluated") for line in done.left_out)
    assert "samples" not in [attributes.get("id") for tag, attributes in page.tags if tag == "section"]


def test_what_was_measured_in_training_is_shown_with_its_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(tmp_path / "run", json.loads(small_config().model_dump_json()))
    run.append_metrics(1, {"pass_rate": 0.5, "evaluation/pass_rate": 0.25, "evaluation/stderr": 0.1})
    gained = {"evaluation/gain": 0.45, "evaluation/gain_low": 0.25, "evaluation/gain_high": 0.625}
    measured = {"evaluation/pass_rate": 0.75, "evaluation/interval_low": 0.625, "evaluation/interval_high": 0.875}
    run.append_metrics(2, {"pass_rate": 0.5, **measured, **gained})
    exam = {
        "evaluation/my exam/pass_rate": 0.75, "evaluation/my exam/stderr": 0.1,
        "evaluation/my exam/interval_low": 0.5, "evaluation/my exam/interval_high": 0.875,
    }  # fmt: skip
    run.append_metrics(1, exam | {"compute/evaluator_seconds": 12.0})
    done = write_report([run.path], None, samples=0)
    page = Parsed(done.page.read_text())
    assert "benchmarks" in page.values("id")
    assert {"my exam (95 %)", "75.0% (50.0 to 87.5)", "device-seconds of evaluations, apart"} <= set(page.texts)
    assert {"+45.0 (+25.0 to +62.5)"} <= set(page.texts)
    assert "25.0%, step 1" in page.texts
    capsys.readouterr()
    report_run(run.path)
    said = " ".join(capsys.readouterr().out.split())
    assert "held-out pass rate, step 1 25.0%" in said and "step 2 75.0%, 95 % interval 62.5 to 87.5" in said
    assert "+45.0 points" in said and "+25.0 to +62.5" in said


def test_a_fine_tuning_run_has_a_report_too(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "sft", {"demonstrations": "worked.jsonl", "seed": 0})
    run.append_metrics(1, {"loss": 2.0})
    run.append_metrics(2, {"loss": 1.5})
    done = write_report([run.path])
    assert "fine-tuning" in done.page.read_text() and "loss" in Parsed(done.page.read_text()).values("id")


def test_a_folder_that_cannot_be_reported_is_an_error(real_run: Path, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "empty", {})
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for run in ("empty", "nowhere"):
        with pytest.raises(InputError, match=run):
            write_report([tmp_path / run])
    for out in ("file", "folder.html"):
        with pytest.raises(InputError, match="--out"):
            write_report([real_run], tmp_path / out)
