"""A prompt of the user's own is put to a run's model as training put its problems: `strop sample RUN --prompt`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs import small_config

from strop.base.view import SilentView
from strop.data.templates import BOXED
from strop.engines.protocol import Request
from strop.engines.torch import TorchEngine
from strop.model.byte_tokenizer import byte_tokenizer
from strop.run import tasks
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
    prompts: list[str] = []
    submit = TorchEngine.submit

    def seen(engine: TorchEngine, request: Request) -> None:
        prompts.append(byte_tokenizer().decode(request.prompt_ids.tolist()))
        submit(engine, request)

    monkeypatch.setattr(TorchEngine, "submit", seen)
    config = small_config(*sets)
    train(config, Path("run"), SilentView())
    trained, prompts[:] = list(prompts), []
    tasks.sample_model(tasks.configure("run"), ["7+8="], 1, None, 4, 0, SilentView())
    assert prompts == [f"{before}7+8={behind}"]
    assert trained and set(trained) <= {f"{before}{one.question}{behind}" for one in config.data.source.load()}
