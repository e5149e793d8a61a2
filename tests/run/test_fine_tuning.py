"""Fine-tuning as a run, and what is then done with its model: sample, eval, export."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from tests.environments.players import QWEN_LIKE, chat_tokenizer
from tests.forks import forking
from tests.runs import keep_prompts
from tests.watching import Notes
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.cli import app
from strop.data.dataset import make_example
from strop.data.templates import BOXED, Auto
from strop.model.files import EXPORTED, byte_tokenizer
from strop.recipes.resolve import resolve
from strop.run import fine_tuning, sft_config
from strop.run.answering import sample_model
from strop.run.fine_tuning import as_demonstrations
from strop.run.folder import RunFolder
from strop.run.measuring import evaluate_model
from strop.run.models import configure, export_checkpoint, parse_models
from strop.run.run import Interrupted
from strop.training import checkpoint
from strop.training.settings import Cosine
from strop.verifiers.answer import Answer

SMALL = [
    "model.fresh.hidden_size=32", "model.fresh.layers=1", "model.fresh.heads=2", "model.fresh.kv_heads=1",
    "model.fresh.head_dim=16", "model.fresh.intermediate_size=48", "model.fresh.max_positions=256",
    "training.epochs=none", "training.steps=6", "training.tokens_per_batch=128", "training.optimizer.lr=1e-2",
]  # fmt: skip


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "worked.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "completion": f"\\boxed{{{a + b}}}"} for a in range(1, 6) for b in range(1, 6)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def run(demonstrations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sft"
    fine_tuning.train(sft_config.configure("fresh", demonstrations, SMALL), folder, SilentView())
    return folder


def weights(model: Path) -> Mapping[str, torch.Tensor]:
    state: Mapping[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(model).state_dict()
    return state


def test_the_loss_falls_and_the_model_loads(run: Path) -> None:
    rows = RunFolder.open(run).read_metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    first, last = rows[0]["loss"], rows[-1]["loss"]
    assert first is not None and last is not None and last < first
    assert weights(run / "model")


class StopAfter(SilentView):
    """Presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def advance(self, step: int, metrics: Mapping[str, float | None]) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_loses_nothing(run: Path, demonstrations: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        fine_tuning.train(sft_config.configure("fresh", demonstrations, SMALL), folder, StopAfter(3))
    assert checkpoint.latest(folder / "checkpoints") == 3
    fine_tuning.resume(folder, SilentView())
    assert json.loads((folder / "status.json").read_text())["notes"] == []
    assert [row["step"] for row in RunFolder.open(folder).read_metrics()] == [1, 2, 3, 4, 5, 6]
    straight, resumed = weights(run / "model"), weights(folder / "model")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_a_dry_run_shows_what_would_be_learned_and_learns_nothing(
    run: Path, demonstrations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["sft", *arguments, "--dry-run"])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    monkeypatch.chdir(tmp_path)
    sets = [part for text in SMALL for part in ("--set", text)]
    begin = ["fresh", "--data", str(demonstrations), *sets]
    said = shown(*begin, "--set", "training.max_length=86")
    assert "25 demonstrations of " in said and "first prompt, 76 tokens: '1+1=" in said
    assert "its completion: " in said and "boxed{2}" in said and "6 updates of up to 128 tokens" in said
    assert "memory: " in said and "1 of 25 demonstrations are longer than 86 tokens" in said
    assert not list(tmp_path.iterdir())
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "6 updates of up to 128 tokens" in shown("--resume", str(run))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    monkeypatch.setattr("strop.run.memory.room_of", lambda device: 1024)
    assert "on this machine this run needs about" in shown(*begin)


def test_wrong_settings_are_named(demonstrations: Path) -> None:
    with pytest.raises(InputError, match="trainig"):
        sft_config.configure("fresh", demonstrations, ["trainig.steps=3"])
    with pytest.raises(InputError, match="training"):
        sft_config.configure("fresh", demonstrations, ["training={epochs=2, steps=3}"])
    assert sft_config.configure("fresh", demonstrations, ["training.steps=3"]).training.epochs is None


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"prompt": "1+1=", "completion": "2"}\n{"prompt": "1+2="\n')
    with pytest.raises(InputError, match=r"broken.jsonl:2"):
        fine_tuning.train(sft_config.configure("fresh", file, SMALL), tmp_path / "run", SilentView())


def test_sample_answers_in_order_and_judges_what_has_a_reference(run: Path) -> None:
    config = configure(str(run))
    asked = sample_model(config, ["2+3="], 2, 0.0, 8, 0, SilentView())
    assert len(asked) == 2 and asked[0] == asked[1] and asked[0]["status"] is None
    config = configure(str(run), source="chain_sum", limit=3)
    answers = sample_model(config, None, 2, 1.0, 8, 0, SilentView())
    assert len(answers) == 6 and answers[0]["prompt"] == answers[1]["prompt"] != answers[2]["prompt"]
    assert all(answer["status"] in ("correct", "wrong", "unparsed") for answer in answers)


def test_eval_reports_rates_with_an_interval(run: Path) -> None:
    config = configure(str(run), sets=["sampling.max_new_tokens=8"], source="chain_sum", limit=5)
    report = evaluate_model(config, samples=2, view=SilentView())
    low, high = report["interval"]
    assert report["problems"] == 5 and 0 <= low <= report["pass_rate"] <= high <= 1
    json.dumps(report, allow_nan=False)


def test_export_writes_the_checkpoints_weights_and_never_over_something_else(run: Path, tmp_path: Path) -> None:
    out = export_checkpoint(run, tmp_path / "model")
    exported, own = weights(out), weights(run / "model")
    assert all(torch.equal(exported[name], own[name]) for name in own)
    with pytest.raises(InputError, match="--out"):
        export_checkpoint(run, tmp_path)


def test_an_export_has_the_type_that_is_asked_for(run: Path, tmp_path: Path) -> None:
    own = weights(run / "model")
    for name, dtype in EXPORTED.items():
        out = export_checkpoint(run, tmp_path / name, dtype=name)
        assert all(torch.equal(each, own[key].to(dtype)) for key, each in weights(out).items())
        assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == dtype
    with pytest.raises(InputError, match="adapters keep"):
        export_checkpoint(run, tmp_path / "half", adapter=True, dtype="bfloat16")


def test_a_run_without_a_model_says_how_to_get_one(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {}).close()
    with pytest.raises(InputError, match=f"strop train --resume {tmp_path}"):
        parse_models([str(tmp_path)])


RANKS = ["training.optimizer.schedule=Cosine", "training.optimizer.warmup_steps=2", "training.optimizer.eps=1e-4",
         "training.tokens_per_microbatch=64", "training.optimizer.max_grad_norm=none"]  # fmt: skip


def same_course(ours: Sequence[Mapping[str, float | None]], theirs: Sequence[Mapping[str, float | None]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in ("loss", "nll", "grad_norm", "lr", "tokens", "trained_tokens", "entropy"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


def test_two_ranks_come_to_what_one_process_does_and_go_on_where_they_stopped(
    demonstrations: Path, tmp_path: Path
) -> None:
    """The learning rate warmed up and annealed; the checkpoint that two ranks wrote is exported by one process."""
    sets = [*SMALL, *RANKS]
    one, two, parts = (tmp_path / name for name in ("one", "two", "parts"))
    fine_tuning.train(sft_config.configure("fresh", demonstrations, sets), one, SilentView())
    config = sft_config.configure("fresh", demonstrations, [*sets, "trainers=2"])
    with forking():
        fine_tuning.train(config, two, SilentView())
        with pytest.raises(Interrupted):
            fine_tuning.train(config, parts, StopAfter(3))
        fine_tuning.resume(parts, SilentView())
    alone, together, resumed = (RunFolder.open(folder).read_metrics() for folder in (one, two, parts))
    expected = [1e-2 * factor for factor in (0.5, 1.0, *(Cosine()(step, 4) for step in range(4)))]
    assert [row["lr"] for row in together] == pytest.approx(expected)
    same_course(together, alone)
    assert [row["loss"] for row in resumed] == [row["loss"] for row in together]
    whole, sharded, again = (weights(folder / "model") for folder in (one, two, parts))
    for name, weight in whole.items():
        torch.testing.assert_close(sharded[name], weight, atol=2e-4, rtol=1e-3)
        assert torch.equal(again[name], sharded[name])
    out = export_checkpoint(two, tmp_path / "exported")
    assert all(torch.equal(value, sharded[name]) for name, value in weights(out).items())


def test_adapters_of_experts_over_two_ranks_go_on_in_one(demonstrations: Path, tmp_path: Path) -> None:
    adapted = ["model.lora.rank=4", "model.lora.alpha=8", "model.fresh.experts=2", "training.steps=3"]
    sets = [*SMALL, *RANKS, *adapted, "checkpoint_every=2"]
    one, two = tmp_path / "one", tmp_path / "two"
    fine_tuning.train(sft_config.configure("fresh", demonstrations, sets), one, SilentView())
    with forking(), pytest.raises(Interrupted):
        fine_tuning.train(sft_config.configure("fresh", demonstrations, [*sets, "trainers=2"]), two, StopAfter(2))
    folder = RunFolder.open(two)
    folder.write_json("config.json", {**folder.read_json("config.json"), "trainers": 1})
    fine_tuning.resume(two, SilentView())
    same_course(folder.read_metrics(), RunFolder.open(one).read_metrics())
    whole, other = weights(one / "model"), weights(two / "model")
    for name, weight in whole.items():
        torch.testing.assert_close(other[name], weight, atol=2e-4, rtol=1e-3)


def test_a_fine_tuned_model_is_asked_as_it_was_taught(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain prompt with the sentence that stood in its demonstrations, or without one where they have none."""
    hello = tmp_path / "hello.jsonl"
    hello.write_text('{"prompt": "Say hello.", "completion": "Hello!"}\n')
    other = tmp_path / "other"
    fine_tuning.train(sft_config.configure("fresh", hello, SMALL), other, SilentView())
    prompts = keep_prompts(monkeypatch)
    for folder in (run, other):
        sample_model(configure(str(folder)), ["1+2="], 1, None, 4, 0, SilentView())
    assert prompts == [f"1+2=\n{BOXED.text}\n", "1+2="]
    # And so is what is trained from it.
    for folder, asks in ((run, None), (other, False)):
        template = resolve("grpo", [f"model.path={folder / 'model'}"]).data.template
        assert isinstance(template, Auto) and template.instruct is asks


def test_a_chat_model_is_asked_for_the_box_that_its_completions_have() -> None:
    """So that training, which asks for it, meets the prompt that was taught."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    config = sft_config.configure("fresh", Path("worked.jsonl"), SMALL)
    rows = [Problem("1", "1+2=", "\\boxed{3}"), Problem("2", "Say hello.", "Hello!")]
    asked = [tokenizer.decode(one.prompt_ids.tolist()) for one in as_demonstrations(rows, config, tokenizer)]
    trained = make_example(Problem("1", "1+2=", "3"), Auto(), tokenizer, Answer().instruction(rows[0]))
    assert asked[0] == tokenizer.decode(trained.prompt_ids.tolist()) and "\\boxed" in asked[0]
    assert asked[1] == "user: Say hello.\nassistant: "


CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
QUESTION, ANSWER = {"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3"}


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"prompt": "1+2=", "completion": "3"}, "user: 1+2=\nassistant: "),
        ({"prompt": [QUESTION], "completion": [ANSWER]}, "user: 1+2=\nassistant: "),
        ({"prompt": [QUESTION], "completion": "3"}, "user: 1+2=\nassistant: "),
        ({"messages": [QUESTION, ANSWER]}, "user: 1+2=\nassistant: "),
        ({"prompt": "1+2=", "prompt_id": "7", "messages": [QUESTION, ANSWER]}, "user: 1+2=\nassistant: "),
        ({"messages": [QUESTION, ANSWER], "completion": None}, "user: 1+2=\nassistant: "),
        (
            {"messages": [{"role": "system", "content": "Reckon."}, QUESTION, ANSWER, QUESTION, ANSWER]},
            "system: Reckon.\nuser: 1+2=\nassistant: 3\nuser: 1+2=\nassistant: ",
        ),
    ],
)
def test_rows_of_trl_train_their_last_answer_behind_the_models_template(
    row: Mapping[str, object], asked: str, tmp_path: Path
) -> None:
    """The prompt up to where the assistant begins, then the answer and the end; only these two are trained."""
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT
    config = sft_config.configure("fresh", file, SMALL)
    (found,) = as_demonstrations(config.source.load(), config, tokenizer)
    assert tokenizer.decode(found.prompt_ids.tolist()) == asked
    assert found.completion_ids.tolist() == [*tokenizer.encode("3", add_special_tokens=False), tokenizer.eos_token_id]


def test_a_demonstration_beyond_the_models_positions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "1+1=", "completion": "2" * 600}))
    sets = [text for text in SMALL if not text.startswith("training.max_length")]
    config = sft_config.configure("fresh", file, [*sets, "model.fresh.max_positions=512"])
    with pytest.raises(InputError, match=r"the longest has 60\d tokens, and the model 512 positions; .*max_length=512"):
        fine_tuning.train(config, tmp_path / "run", SilentView())


def test_a_demonstration_ends_as_the_chat_template_ends_a_turn() -> None:
    tokenizer = chat_tokenizer(QWEN_LIKE)
    rows = [Problem("1", "1+2=", "3")]
    for template, end in (("Auto", "<|im_end|>"), ("Plain", "<eos>")):
        config = sft_config.configure("fresh", Path("worked.jsonl"), [*SMALL, f"template={template}"])
        (found,) = as_demonstrations(rows, config, tokenizer)
        assert tokenizer.decode(found.completion_ids.tolist()) == "3" + end


def test_a_thought_that_the_template_opens_is_not_opened_again() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT + "{{ '<think>\\n' }}"
    config = sft_config.configure("fresh", Path("worked.jsonl"), SMALL)
    rows = [Problem("1", "1+2=", "<think>\nWell.</think>3"), Problem("2", "1+2=", "Well.</think>3")]
    for found in as_demonstrations(rows, config, tokenizer):
        assert tokenizer.decode([*found.prompt_ids, *found.completion_ids[:-1]]) == (
            "user: 1+2=\nassistant: <think>\nWell.</think>3"
        )


def test_chats_train_and_the_run_says_that_earlier_answers_are_not_learned(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    chats = [[QUESTION, ANSWER], [QUESTION, ANSWER, QUESTION, ANSWER]]
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    view = Notes()
    fine_tuning.train(sft_config.configure("fresh", file, SMALL), tmp_path / "run", view)
    config = sft_config.configure("fresh", file, SMALL)
    assert "several-turns" in {one.code for one in fine_tuning.preview(config, SilentView())}
    assert weights(tmp_path / "run" / "model")


def test_epochs_that_are_a_few_updates_are_said_to_teach_little(demonstrations: Path, tmp_path: Path) -> None:
    def told(name: str, *sets: str) -> list[str]:
        notes = Notes()
        fine_tuning.train(sft_config.configure("fresh", demonstrations, [*SMALL, *sets]), tmp_path / name, notes)
        return [line for line in notes.lines if "training.tokens_per_batch" in line]

    epochs = ("training.steps=none", "training.epochs=4")
    (line,) = told("few", *epochs, "training.tokens_per_batch=65536")
    assert "4 epochs" in line and "1 update" in line
    assert told("many", *epochs, "training.tokens_per_batch=32") == told("steps") == []


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"text": "1+2=3"}, "columns.answer"),
        ({"prompt": "1+2=", "response": "3"}, "columns.answer"),
        ({"conversations": [{"from": "human", "value": "1+2="}]}, "columns.answer"),
        ({"ask": "1+2=", "completion": "3"}, "columns.prompt"),
        ({"question": "Who?", "context": "Ann.", "completion": "Ann"}, "columns.prompt=question"),
        ({"prompt": "1+2=", "completion": " "}, "'completion'"),
        ({"prompt": "1+2=", "completion": None}, "'completion'"),
        ({"prompt": "1+2=", "completion": 3}, "'completion'"),
        ({"prompt": [QUESTION], "completion": [ANSWER, QUESTION, ANSWER]}, "'completion'"),
        ({"messages": [QUESTION]}, "'messages'"),
        ({"messages": [ANSWER]}, "'messages'"),
        ({"messages": [QUESTION, {"from": "gpt"}]}, "'messages'"),
        ({"messages": []}, "columns.answer"),
        ({"messages": json.dumps([QUESTION, ANSWER])}, "columns.answer"),
        ({"messages": [QUESTION, CALL]}, "'tool_calls'"),
        ({"prompt": [{"role": "tool", "content": "3"}], "completion": "3"}, "'tool'"),
        ({"prompt": "", "completion": "3"}, "'prompt'"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_demonstration_is_named_with_its_column_or_setting(
    row: Mapping[str, object], named: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1+1=", "completion": "2"}\n' + json.dumps(row) + "\n")
    with pytest.raises(InputError) as refused:
        sft_config.configure("fresh", file, SMALL).source.load()
    said = str(refused.value)
    assert said.startswith(f"{file}:2: ") and named in said and "\n" not in said, said


def test_the_way_out_leads_somewhere(tmp_path: Path) -> None:
    """The settings that the refusals name, set."""
    file = tmp_path / "rows.jsonl"
    for row, setting in (
        ({"prompt": "1+2=", "response": "3"}, "columns.answer=response"),
        ({"prompt": "1+2=", "chosen": [ANSWER]}, "columns.answer=chosen"),
        ({"ask": "1+2=", "completion": "3"}, "columns.prompt=ask"),
        ({"chat": [QUESTION, ANSWER], "prompt": "other"}, "columns.prompt=chat"),
    ):
        file.write_text(json.dumps(row) + "\n")
        (found,) = sft_config.configure("fresh", file, [*SMALL, setting]).source.load()
        assert (found.question, found.reference) == ("1+2=", "3")
