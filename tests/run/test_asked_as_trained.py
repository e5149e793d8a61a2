"""A prompt of the user's own is put to a run's model as training put its problems: `strop sample RUN --prompt`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs import keep_prompts, small_config
from tests.watching import Notes
from typer.testing import CliRunner

from strop.base.view import SilentView
from strop.cli import app
from strop.config.parse import edit
from strop.data.templates import BOXED, Auto
from strop.recipes.resolve import resolve
from strop.run.answering import sample_model
from strop.run.folder import RunFolder
from strop.run.measuring import evaluate_model
from strop.run.models import configure
from strop.run.run import train

BOX = ("verifier.extract=boxed", "steps=1", "evaluation.every=none")
FROM_A_FILE = (*BOX, "data.source=rows.jsonl", "data.source.columns.prompt=sum")


@pytest.mark.parametrize(
    ("sets", "before", "behind"),
    [
        (BOX, "", ""),  # sums are the beginning of a text, which training continues as they are
        (FROM_A_FILE, "", f"\n{BOXED.text}\n"),
        ((*FROM_A_FILE, "data.template.instruct=false"), "", ""),  # as runs of strop's own bases store it
        ((*FROM_A_FILE, "data.template=Plain", "data.template.prefix='Q: '"), "Q: ", ""),
        ((*BOX, "data.template=Plain", "data.template.suffix=' = '"), "", " = "),
    ],
)
def test_a_trained_model_is_asked_with_the_template_that_its_run_has_stored(
    sets: tuple[str, ...], before: str, behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"sum": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = keep_prompts(monkeypatch)
    config = small_config(*sets)
    train(config, Path("run"), SilentView())
    trained, prompts[:] = list(prompts), []
    sample_model(configure("run"), ["7+8="], 1, None, 4, 0, SilentView())
    assert prompts == [f"{before}7+8={behind}"]
    notes = Notes()
    assert evaluate_model(configure("run"), 1, notes)["unparsed_rate"] == 1.0
    (line,) = (line for line in notes.lines if "hold no answer" in line)
    assert line.startswith("100.0% of the completions hold no answer that Answer finds") and "few-shot" in line
    assert trained and set(trained) <= {f"{before}{one.question}{behind}" for one in config.data.source.load()}


def test_the_model_of_a_run_is_trained_on_with_the_prompts_that_it_has_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its run asked for no form of the answer, as quickstarts do, a sentence that asks for one ruined it."""
    monkeypatch.chdir(tmp_path)
    rows = [{"sum": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, sets in (("plainly", (*FROM_A_FILE, "data.template.instruct=false")), ("asking", FROM_A_FILE)):
        train(small_config(*sets), Path(name), SilentView())
    later = ["data.source=rows.jsonl", "data.source.columns.prompt=sum", "data.held_out=none"]
    for place, asks in (("plainly/model", False), ("asking/model", None), ("embedded", False), ("elsewhere", None)):
        template = resolve("grpo", [*later, f"model.path={place}"]).data.template
        assert isinstance(template, Auto) and template.instruct is asks, place
    template = resolve("grpo", [*later, "model.path=plainly/model", "data.template.instruct=true"]).data.template
    assert isinstance(template, Auto) and template.instruct is True
    # Also where a configuration comes from Python, and over the runs that follow.
    config = edit(small_config(*FROM_A_FILE), ["model.fresh=none", "model.path=plainly/model"])
    train(config, Path("second"), SilentView())
    assert RunFolder.open("second").read_json("config.json")["data"]["template"]["instruct"] is False
    for name, said in (("plainly", True), ("asking", False)):
        done = CliRunner().invoke(app, ["export", name, "--out", f"{name}-copy"])
        assert done.exit_code == 0 and ("data.template.instruct=false" in done.stderr) is said
    Path("plainly/config.json").write_text("{")
    template = resolve("grpo", [*later, "model.path=plainly/model"]).data.template
    assert isinstance(template, Auto) and template.instruct is None
