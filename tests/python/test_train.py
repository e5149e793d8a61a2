"""`strop.train` with Python's objects: a run by value, the same by TRL's signature, going on, and clean refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc
import pytest
from tests.runs import metrics, small_config
from typer.testing import CliRunner

import strop
from strop.algorithms.losses import PpoClip
from strop.base import session
from strop.base.types import InputError, Problem, Verdict
from strop.cli import app
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.data.generators import ChainSum
from strop.environments.base import Environment, Session
from strop.python.train import train
from strop.run.folder import RunFolder
from strop.run.loop import NothingToLearn
from strop.run.resuming import resumed_config
from strop.verifiers.answer import Answer
from strop_verify.verdict import Status

PROBLEMS = [{"prompt": sum.prompt, "answer": sum.reference} for sum in ChainSum(terms=2, count=40).load()]
FEW: dict[str, Any] = {"settings": {"evaluation.every": None}, "held_out": 0, "quiet": True}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield
    session.forget()


def vowels(problem: Problem, text: str) -> float:
    """Something that a random model does now and then."""
    return sum(letter in "aeiou0123456789" for letter in text) / 4


def trl_vowels(prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    assert len(prompts) == len(answer) == len(completions)
    return [sum(letter in "aeiou0123456789" for letter in text) / 4 for text in completions]


class Doubled(PpoClip):
    """A loss of the user's own."""


def recipe() -> RunConfig:
    return small_config("steps=2")


def test_a_file_hands_its_columns_to_reward_functions_as_rows_do(tmp_path: Path) -> None:
    """A function with a default was never given what stands in the file, and learned something else in silence."""
    rows = [{**row, "level": n, "seldom": n} for n, row in enumerate(PROBLEMS[:16])]
    del rows[3]["seldom"]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen: dict[str, set[str]] = {}

    for name, problems in (("file", "rows.jsonl"), ("rows", rows), ("named", "rows.jsonl")):

        def level(prompts, completions, level=None, answer=None, seldom=None, name=name, **other):
            seen.setdefault(name, set()).add(f"{level} {answer}")
            return [0.25 * (len(text) % 5) for text in completions]

        columns = {"prompt": "prompt", "answer": "level"} if name == "named" else None
        train(None, problems, reward=level, recipe=recipe, columns=columns, steps=1, out=name, **FEW)
    assert seen["file"] <= {f"[{row['level']}] ['{row['answer']}']" for row in rows}
    assert seen["file"] == seen["rows"] == seen["named"]
    assert RunFolder.open("named").read_json("config.json")["data"]["source"]["columns"]["answer"] == "level"


def test_rewards_of_another_scale_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = train(None, PROBLEMS, reward=lambda problem, text: 2.0 + vowels(problem, text), recipe=recipe,
                settings={"evaluation.every": None}, held_out=0)  # fmt: skip
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("nothing says which answers are right") == 1 and "which is not in [0, 1]" in shown
    assert metrics(run.path)[-1]["pass_rate"] == 0 and metrics(run.path)[-1]["undecided_rate"] == 1


def test_a_run_from_python(tmp_path: Path) -> None:
    """Problems, reward, loss and recipe of Python; curves, rollouts, samples and evaluation back."""
    run = strop.train(
        None, PROBLEMS, reward=vowels, recipe=recipe, loss=Doubled(clip_low=0.3), held_out=8,
        settings={"optim.lr": 2e-3, "sampling.max_new_tokens": 8}, quiet=True,
    )  # fmt: skip
    assert run.path == Path("runs/grpo") and run.config["steps"] == 2 and run.summary["steps"] == 2
    assert run.config["algorithm"]["loss"] == {"piece": f"{__name__}:Doubled", **PpoClip(clip_low=0.3).model_dump()} | {
        "piece": f"{__name__}:Doubled"
    }
    assert run.config["algorithm"]["reward"]["piece"] == "DirectReward"
    rows = run.rollouts()
    assert rows.num_rows == 2 * 6 * 4 and set(rows["step"].to_pylist()) == {1, 2}
    few = run.rollouts(2, ["completion", "reward", "score"]).to_pandas()
    assert list(few["reward"]) == [vowels(Problem("", "", ""), text) for text in few["completion"]]
    assert len(set(few["reward"])) > 1 and all(few["score"] == few["reward"].clip(0, 1))
    assert set(run.pass_rates) == {0, 2} and run.metrics["step"].to_pylist() == [0, 1, 2]
    mean = pc.mean(run.rollouts(1, ["reward"])["reward"]).as_py()
    assert run.metrics["reward/mean"].to_pylist()[1] == pytest.approx(mean)
    assert len(run.sample("1+1=", n=2)) == 2 and run.sample(["1+1=", "2+2="], temperature=0.0)[0]
    measured = run.evaluate(samples=2)
    assert measured["problems"] == 8 and measured["trained_on"] == 0
    others = run.evaluate(PROBLEMS[:3], samples=2)
    assert others["problems"] == 3
    first = run.sample("1+1=", seed=1)
    shutil.rmtree(run.model)  # as where a run was stopped
    assert run.sample("1+1=", seed=1) == first and run.evaluate(samples=2)["pass_rate"] == measured["pass_rate"]
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    assert "2 steps, pass rate" in repr(run)
    assert strop.load(run.path) == run
    with pytest.raises(InputError, match="'rewards'"):
        run.rollouts(1, ["rewards"])
    with pytest.raises(InputError, match="step 9"):
        run.rollouts(9)


def test_trls_signature_trains_the_same(tmp_path: Path) -> None:
    for name, reward in (("own", vowels), ("trl", trl_vowels)):
        train(None, PROBLEMS, reward=reward, recipe=small_config("steps=2"), out=name, **FEW)
    assert metrics(tmp_path / "own") == metrics(tmp_path / "trl")


def test_a_verifier_keeps_the_recipes_rewards() -> None:
    config = small_config("steps=1", "algorithm.reward.wrong=-1")
    run = train(None, PROBLEMS, reward=Answer(extract="last_number"), recipe=config, **FEW)
    assert run.config["algorithm"]["reward"] == {"piece": "BinaryReward", "correct": 1.0, "wrong": -1.0}
    assert set(run.rollouts(1, ["reward"])["reward"].to_pylist()) <= {-1.0, 1.0}
    assert run.pass_rates == {}, "nothing is held out"
    assert "1 step, pass rate in training " in repr(run)


def test_a_verifier_and_a_function_are_weighed() -> None:
    def brief(problem: Problem, text: str) -> float:
        return 0.5

    reward = {Answer(extract="last_number"): 1.0, brief: 3.0}
    run = train(None, PROBLEMS, reward=reward, recipe=small_config("steps=1"), **FEW)
    assert set(run.rollouts(1, ["reward"])["reward"].to_pylist()) <= {0.375, 0.625}


def test_what_is_held_out_follows_the_problems() -> None:
    run = train(None, PROBLEMS, reward=vowels, recipe=small_config("steps=1"), quiet=True)
    assert run.config["data"]["held_out"]["count"] == 8
    few = train(None, PROBLEMS[:4], reward=vowels, recipe=small_config("steps=1"), quiet=True)
    assert few.config["data"]["held_out"] is None and few.config["evaluation"]["every"] is None
    other = train(None, PROBLEMS[:30], held_out=PROBLEMS[30:], recipe=small_config("steps=1"), quiet=True)
    assert other.evaluate(samples=1)["problems"] == 10


def test_going_on_with_the_function_given_again(tmp_path: Path) -> None:
    """A run of three steps is, bit for bit, one of two that is gone on with by a session that defines it anew."""
    whole = train(None, PROBLEMS, reward=lambda problem, text: vowels(problem, text), recipe=recipe, steps=3,
                  out="whole", **FEW)  # fmt: skip

    def begun(steps: int) -> strop.Run:
        reward = lambda problem, text: vowels(problem, text)  # noqa: E731
        return train(None, PROBLEMS, reward=reward, recipe=recipe, steps=steps, out="begun", resume=True, **FEW)

    begun(2)
    session.forget()
    config = RunFolder.open("begun").read_json("config.json")
    assert parse(config, "config.json").verifier.session_functions(), "it can be read without the function"
    with pytest.raises(InputError, match="<lambda>"):
        resumed_config(RunFolder.open("begun"))
    run = begun(3)
    assert metrics(run.path) == metrics(whole.path)
    assert begun(3).summary == run.summary, "a run that is done stays as it is"
    with pytest.raises(InputError, match=r"data\.source\.path"):
        train(None, PROBLEMS[:30], reward=vowels, recipe=recipe, out="begun", resume=True, **FEW)


def brief(problem: Problem, text: str) -> float:
    return 1.0 / (1 + len(text))


def test_going_on_with_another_function_or_weight_is_written_down(tmp_path: Path) -> None:
    def stored() -> Any:
        return RunFolder.open("changed").read_json("config.json")["verifier"]

    def begun(reward: Any, steps: int) -> None:
        train(None, PROBLEMS, reward=reward, recipe=recipe, steps=steps, out="changed", resume=True, **FEW)

    begun({vowels: 1.0}, 1)
    begun({vowels: 0.5}, 2)
    assert stored()["weights"] == [0.5] and stored()["functions"][0].endswith(":vowels")
    begun({brief: 0.5}, 3)
    assert stored()["functions"][0].endswith(":brief")
    begun(Answer(extract="last_number"), 4)
    assert stored()["piece"] == "Answer"


SCRIPT = """
import sys
import strop
from strop.algorithms.losses import PpoClip
from tests.runs import small_config

class MyLoss(PpoClip):
    pass

def brief(problem, text):
    return len(set(text)) / 20

problems = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(6) for b in range(6)]
run = strop.train(None, problems, reward=brief, recipe=lambda: small_config("steps=1"), steps=int(sys.argv[1]),
                  loss=MyLoss(), held_out=0, out="mine", resume=True, quiet=True)
print(len(run.rollouts()), run.config["algorithm"]["loss"]["piece"])
"""


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{Path(strop.__file__).parents[1]}:{root}"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_a_script_trains_with_what_it_defines_and_the_command_line_says_who_can_go_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert _python(str(script), "1").stdout.split() == ["24", "__main__:MyLoss"]
    refused = CliRunner().invoke(app, ["train", "--resume", "mine"])
    assert isinstance(refused.exception, InputError) and "MyLoss" in str(refused.exception)
    shutil.rmtree(tmp_path / "mine" / "model")
    step = RunFolder.open("mine").checkpoint_steps()[-1]
    exported = CliRunner().invoke(app, ["export", f"mine@{step}"])  # for which no loss is needed
    assert exported.stdout == "mine/model\n"
    assert (tmp_path / "mine" / "model" / "model.safetensors").is_file()
    assert _python(str(script), "2").stdout.split() == ["48", "__main__:MyLoss"]


NOTHING = """
import strop
from tests.runs import small_config

problems = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(6) for b in range(6)]
def train(**selection):
    settings = {f"algorithm.selection.{key}": value for key, value in selection.items()}
    return strop.train(None, problems, reward=lambda problem, text: 0.0, recipe=lambda: small_config("steps=1"),
                       held_out=0, quiet=True, settings=settings | {"batch.prompts_per_step": 1})
"""


def test_a_notebook_shows_one_line_too(tmp_path: Path) -> None:
    """In IPython, which runs the cells of notebooks."""
    pytest.importorskip("IPython", reason="needs ipykernel")
    (tmp_path / "script.py").write_text(f"{NOTHING}\nstrop.train(None, [])\n")
    done = _python("-m", "IPython", "--colors=NoColor", "--no-banner", "-c", "%run script.py")
    assert done.stdout == "InputError: problems: there is none\n", done


def test_what_is_advised_where_nothing_can_be_learned_can_be_set() -> None:
    """Dropped groups are not replaced where none is dropped."""
    begin: dict[str, Any] = {"algorithm.selection.zero_variance": "drop", "algorithm.selection.refill": True}
    end: dict[str, Any] = {"algorithm.selection.refill": False, "algorithm.selection.zero_variance": "keep"}
    few = {**FEW, "reward": lambda problem, text: 0.0, "recipe": small_config("steps=1", "batch.prompts_per_step=1")}
    with pytest.raises(NothingToLearn) as told:
        train(None, PROBLEMS, **few | {"settings": begin, "out": "nothing"})
    way_out = " and ".join(f"{key}={str(value).lower()}" for key, value in end.items())
    assert str(told.value).endswith(f"or train on all groups with {way_out}")
    cut = {"sampling.max_new_tokens": 1, "algorithm.truncation_mask": "drop"}
    with pytest.raises(NothingToLearn, match=r"algorithm\.truncation_mask=drop"):
        train(None, PROBLEMS, **few | {"settings": cut, "out": "cut"})
    assert told.value._render_traceback_() == [f"NothingToLearn: {told.value}"]
    for number, mended in enumerate((begin | end, cut | end | {"algorithm.truncation_mask": "none"})):
        assert train(None, PROBLEMS, **few | {"settings": mended, "out": f"all{number}"}).summary["steps"] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"reward": lambda text: 1.0}, "reward"),
        ({"reward": vowels, "settings": {"optim.lrr": 1}}, r"optim\.lrr"),
        ({"reward": []}, "reward"),
        ({"reward": 5}, "reward: 5"),
        ({"reward": Answer}, "reward: .*Answer"),
        ({"reward": type("Silent", (), {"reset": lambda self: None})}, "Silent"),
        ({"reward": [vowels, Answer]}, "reward: .*Answer"),
        ({"reward": {Answer(): -1.0, vowels: 1.0}}, "reward"),
        ({"reward": [vowels], "resume": True}, "resume"),
        ({"recipe": "gpro"}, "'gpro'"),
        ({"recipe": lambda: 5}, "recipe: .*int"),
        ({"recipe": "grpo"}, r"model"),
        ({"problems": [{"answer": 2}]}, "row 1: .*'prompt'"),
        ({"reward": lambda completions, hint: [1.0]}, "'hint'"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_nothing(arguments: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"problems": PROBLEMS, "recipe": small_config("steps=1"), "quiet": True} | arguments
    with pytest.raises(InputError, match=named):
        strop.train(None, **given)
    assert not Path("runs").exists()


class Vowels(Environment):
    """An environment of the user's own."""

    def open(self) -> Session:
        return Spoken()


class Spoken(Session):
    def step(self, reply: str) -> Verdict:
        score = min(sum(letter in "aeiou0123456789" for letter in reply) / 4, 1.0)
        return Verdict(score, Status.CORRECT if score == 1 else Status.WRONG, "in an environment")


class Reckoner:
    """A class in TRL's shape; a random model does not call its tool."""

    reward = 0.25

    def reset(self, **row: Any) -> None:
        self.place = row["seed"]

    def look(self, place: Literal["here", "there"]) -> str:
        """Look somewhere."""
        return place


def test_an_environment_is_the_reward() -> None:
    run = train(None, PROBLEMS, reward=Vowels, recipe=small_config("steps=1"), **FEW)
    assert run.config["environment"]["piece"] == f"{__name__}:Vowels"
    found = {row["detail"] for row in run.rollouts(1).to_pylist() if row["finish_reason"] == "stop"}
    assert found == {"in an environment"}
    run = train(None, PROBLEMS, reward=Reckoner, recipe=small_config("steps=1"), **FEW)
    assert run.config["environment"]["cls"] == f"{__name__}:Reckoner"
    assert set(run.rollouts(1, ["score"])["score"].to_pylist()) == {0.25}


RANKS = """
from __future__ import annotations
import sys
from typing import Literal
import strop
from strop.algorithms.losses import PpoClip
from strop.base.types import Status, Verdict
from strop.verifiers.base import Verifier
from tests.runs import small_config

class MyLoss(PpoClip):
    pass

class Short(Verifier):
    def judge(self, problem, text, truncated):
        return Verdict(float(len(text) < LIMIT), Status.WRONG, "of the script")

class Seen:
    def reset(self, **row):
        self.reward = 0.25
    def look(self, place: Literal["here"]) -> str:
        "Look."
        return place

LIMIT = 8
if __name__ == "__main__":
    problems = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(6) for b in range(6)]
    apart = {"orchestration.trainers": 2, "evaluation.asynchronous": True, "evaluation.every": 1,
             "orchestration.executor": "embedded"}
    run = strop.train(None, problems, reward=Short(), recipe=lambda: small_config("steps=1"), loss=MyLoss(),
                      held_out=6, settings=apart, quiet=True)
    print(run.summary["steps"], *set(run.rollouts(1)["detail"].to_pylist()), 1 in run.pass_rates)
    run = strop.train(None, problems, reward=Seen, recipe=lambda: small_config("steps=1"), held_out=0, quiet=True)
    print(*set(run.rollouts(1)["score"].to_pylist()))
"""


@pytest.mark.slow
def test_what_a_script_defines_works_in_the_other_processes_of_its_run(tmp_path: Path) -> None:
    """Two trainer ranks with its loss, an evaluator with its verifier, an environment's process with its class."""
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    done = _python(str(script))
    assert done.stdout.splitlines() == ["1 of the script True", "0.25"], done.stderr


def test_import_loads_nothing_heavy() -> None:
    code = (
        "import sys, strop\nprint(*[m for m in ('torch', 'numpy', 'pydantic', 'pyarrow') if m in sys.modules])\n"
        "strop.load, strop.train\nprint(*[m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    assert _python("-c", code).stdout == "\n\n"
    assert {"load", "train"} <= set(strop.__all__)
    with pytest.raises(AttributeError, match="trian"):
        vars(strop)["__getattr__"]("trian")
