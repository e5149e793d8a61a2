"""Every command line and TOML block of README, docs and help texts, taken from the text and run.

They run in one process, through the function that the program calls, in a folder that holds what they name: the names
of hub models are folders there, with tiny models in them, and so are the runs. A command gets a few options more that
make it small (`SMALL`); most training commands show what they would do (`--dry-run`), some train. What this
machine lacks, or what takes minutes and is tested elsewhere, stands in `NEEDS` with the reason.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import typer.main
from numpy.typing import NDArray
from tests.forks import forking
from tests.lab.ablation.cases import write_ablation
from tests.lab.scaling.cases import COMPUTE, R_0, drawn, truth, write_csv, write_curve, write_run
from tests.runs import small_config
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings

from strop.base import imports
from strop.base.view import SilentView
from strop.cli import app, main
from strop.config.parse import edits_of_file
from strop.lab.scaling import Sigmoid
from strop.model.files import export
from strop.model.policy import load_policy
from strop.prepare.config import example_config, parse_config
from strop.recipes.resolve import resolve
from strop.report.drawing import canvas
from strop.report.training_figures import training_charts
from strop.run.run import train
from strop.serving.http import HttpServer
from strop.training.embedded_base import WORDS, named_base
from strop_verify.__main__ import main as strop_verify

ROOT = Path(__file__).parents[2]
VERIFY = ROOT / "packages/verify/README.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", VERIFY]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"(\s{3,}|\s+#\s).*$")  # what a line says of its command

# What cannot run here, or takes minutes and is tested elsewhere.
NEEDS = {
    r"--labels": "somebody who judges: tests/report/test_audit.py",
    r"--endpoint": "a model behind an endpoint: tests/serving/test_eval_endpoint.py",
    r"verifier=JudgeModel": "a judge behind an endpoint: tests/verifiers/test_judge_model.py",
    r"engine=Vllm": "an environment with vLLM: tests/engines/test_vllm_contract.py",
    r"reference\.url=": "a teacher on vLLM's server: tests/engines/test_vllm_teacher.py",
    r"device=cuda": "a GPU",
    r"sft .*trainers=": "processes for every rank: tests/run/test_fine_tuning.py",
    r"data prepare [a-z_0-9]+$": "the data sets of a paper: tests/prepare/test_pipelines.py",
    r"strop quickstart": "minutes: tests/run/test_quickstart.py",
    r"loss=Unclipped": "the class that the reader has added to losses.py",
}

# Options that make a command small, by its beginning; the first that fits counts.
TRAINING = (
    "--set steps=1 --set batch.prompts_per_step=2 --set batch.samples_per_prompt=2 --set sampling.max_new_tokens=8 "
    "--set evaluation.every=none --set engine.slots=16"
)
SMALL = {
    "train --resume runs/first --step": "--set steps=5",
    "train --resume": "--set steps=6 --set evaluation.every=none",
    "train": "--dry-run",
    "sft --resume": "",
    "sft": "--set training.steps=2 --set training.tokens_per_batch=64",
    "eval --list": "",
    "eval": "--limit 2 --samples 1 --set sampling.max_new_tokens=8",
    "sample": "--max-new-tokens 8 --n 1",
    "report": "--samples 1",
    "plan power": "", "plan allocate": "",
    "plan": "--steps 1 --set batch.prompts_per_step=16",
    "ablate show": "",
    "ablate": "--dry-run --out runs/ablation",
    "fit": "--bootstrap 20",
    "serve": "--port 0",
    "dashboard": "--port 0",
    "smoke": "--only update --limit 300",
}
TRAINED = (
    "strop train grpo --set model.path=Qwen/Qwen3-0.6B --set data.source=problems.jsonl",
    "strop train grpo --tiny --import my_losses --set algorithm.loss=my_losses:Unclipped",
    "strop train weighted.toml --import my_rewards",
    "strop train grpo --tiny --import soft_clip --set algorithm.loss=soft_clip:SoftClip --set algorithm.loss.width=0.5 "
    "--set batch.updates_per_step=2",
)
# What stands for something else, and sizes of what is looked at.
STANDS_FOR = {
    "--ask 16": "--ask 2 --set sampling.max_new_tokens=8",
    "RECIPE": "quickstart", "/shared/runs/first": "runs/shared", "@40": "@4", "--step 40": "--step 4",
    "--from 40 --to 42": "--from 3 --to 5", "--from 40": "--from 4", "steps=400": "steps=6", "--seen 20": "--seen 1",
    "--adapter": "--adapter --step 1", "export runs/grpo --adapter": "export runs/lora --adapter",
    "export runs/first --adapter": "export runs/lora --adapter",
    "model.lora.rank=32": "model.lora.rank=8",  # which the small stand-in's layers have room for
}  # fmt: skip
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "MODEL")
# Their own problems are drawn by the thousand.
DRAWS_ITS_OWN = re.compile(r"strop train (quickstart|grpo)(?!.*data\.source)( |$)")
ON_THE_HUB = re.compile(r"strop train (scalerl|skywork\S*|archer\S*|dapo|opefo\S*)( |$)")  # where their problems are
FINDS = re.compile(r"strop doctor \S")  # where something will not work, its exit code is 1


# ---------------------------------------------------------------------- what stands in the texts


def lines_of(text: str) -> Iterator[str]:
    """The lines of a block that call strop, continuation lines joined, what is said of them left out."""
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        words = re.sub(r"^\s*(?:[A-Z_]+=\S+\s+)*", "", line)
        if words.startswith(("strop ", "strop-verify ")):
            yield SAID.sub("", words.replace(" …", "")).strip().removesuffix(" &")


def helps() -> dict[str, str]:
    """The help of every command and group, by its words."""
    found: dict[str, str] = {}

    def walk(command: object, words: str) -> None:
        found[words] = textwrap.dedent(str(vars(command).get("help") or ""))
        for name, inner in (vars(command).get("commands") or {}).items():
            walk(inner, f"{words} {name}".strip())

    walk(typer.main.get_command(app), "")
    return found


def every_block() -> list[tuple[str, str, str]]:
    """Page, language and text of every block of code."""
    return [(page.name, *block) for page in PAGES for block in BLOCK.findall(page.read_text())]


def every_command() -> dict[str, str]:
    """Each different command line once, with the places where it stands."""
    texts = [(page, text) for page, language, text in every_block() if language in ("", "bash", "sh")]
    texts += [(f"help of {words or 'strop'}", text) for words, text in helps().items()]
    found: dict[str, str] = {}
    for place, text in texts:
        for line in lines_of(text):
            found[line] = f"{found[line]}, {place}" if line in found else place
    return found


def toml_blocks() -> list[tuple[str, str]]:
    """Every TOML block but those of peers' files, and those in help texts."""
    peers = VERIFY.read_text()
    found = [(page, text) for page, kind, text in every_block() if kind == "toml" and text not in peers]
    assigned = re.compile(r"^[a-z_.]+ = .+$", re.MULTILINE)
    return found + [
        (f"help of {words}", "\n".join(rows)) for words, text in helps().items() if (rows := assigned.findall(text))
    ]


def python_block(page: str, beginning: str) -> str:
    """The first block of Python of a page that begins so."""
    return next(t for name, language, t in every_block() if (name, language) == (page, "python") and beginning in t)


def modules() -> dict[str, str]:
    """The blocks of Python that begin with the name of their file, by that name."""
    blocks = [text for _, language, text in every_block() if language == "python"]
    return {named[1]: text for text in blocks if (named := re.match(r"# (\w+\.py)\n", text))}


COMMANDS = every_command()


# ---------------------------------------------------------------------- the folder in which they run


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name."""
    place = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setenv("STROP_CACHE", str(place / "cache"))
        _problems()
        _models()
        _runs()
        _made_by_commands(patched)
    Path(place / "my_losses.py").write_text(python_block("CONTRIBUTING.md", "class Unclipped"))
    for name, text in modules().items():
        (place / name).write_text(text)
    for page, text in toml_blocks():
        titled = re.match(r"# (\S+\.toml)", text)
        (place / (titled[1] if titled else f"{page}.toml")).write_text(text)
    for name in ("my-run.toml", "mine.toml"):
        (place / name).write_text('recipe = "grpo"\nmodel.path = "MODEL"\nsteps = 3\n')
    return place


def lines(name: str, rows: list[dict[str, object]]) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("\n".join(map(json.dumps, rows)) + "\n")


def _problems() -> None:
    # Of which a recipe may hold out a thousand.
    lines("problems.jsonl", [{"prompt": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(1100)])
    lines("sums.jsonl", [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(4)])
    lines("exam.jsonl", [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(4)])
    stories = _stories(80)
    lines("train.jsonl", stories[:70])
    lines("test.jsonl", stories[70:])
    for name in ("worked-examples.jsonl", "tiny.jsonl"):
        lines(name, [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(20)])
    judged: dict[str, object] = {"program": "print(4)", "tests": {"inputs": [""], "outputs": ["4"]}}
    lines("cases.jsonl", [{"gold": "4", "response": "\\boxed{4}", **judged}])
    lines("rows.jsonl", [{"gold": "4", "response": "\\boxed{4}"}])
    lines("programs.jsonl", [judged])
    Path("passages.txt").write_text("Three and five are eight.\n")
    Path("deepscaler.json").write_text(json.dumps([{"problem": "1+1?", "answer": "2", "solution": "2"}]))
    for name in ("aime24", "aime25", "math500", "gsm8k"):
        mark = "#### " if name == "gsm8k" else ""
        lines(f"benchmarks/{name}.jsonl", [{"question": f"{n}+2?", "answer": f"{mark}{n + 2}"} for n in range(3)])
    for name in ("curve.csv", "scalerl.csv", "dapo.csv"):
        write_curve(Path(name), drawn(truth().value(COMPUTE), seed=len(name)))
    for seed, name in enumerate(("a.csv", "b.csv")):
        rates = drawn(truth().value(COMPUTE), seed).pass_rate
        write_csv(Path(name), {"tokens": [0, *(600 * COMPUTE)], "pass_rate": [R_0, *rates]})
    Path("prepare.toml").write_text(example_config().replace("count = 1000", "count = 4"))


def _stories(count: int) -> list[dict[str, object]]:
    """Problems in the form of GSM8K that are no duplicates of one another."""
    draw = random.Random(0)
    people = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ines")
    things = ("apples", "books", "chairs", "dolls", "eggs", "hats", "pens")
    places = ("market", "harbour", "forest", "museum", "school", "castle", "garden", "library", "station", "village")
    found: list[dict[str, object]] = []
    for _ in range(count):
        (one, other), (goods, price), place = draw.sample(people, 2), draw.sample(things, 2), draw.choice(places)
        have, gone = draw.randint(20, 90), draw.randint(2, 19)
        question = f"{one} carries {have} {goods} to the {place} and trades {gone} of them with {other} for {price}. "
        answer = f"{have}-{gone}={have - gone}\n#### {have - gone}"
        found.append({"question": f"{question}How many {goods} does {one} have now?", "answer": answer})
    return found


def _models() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    model = tiny_qwen3().model
    model.config.max_position_embeddings = 65_536  # room for what recipes ask
    for name in MODELS:
        export(model, tokenizer, Path(name))
    base = named_base("embedded", 0)
    assert base is not None
    policy, words = load_policy(tiny_settings(), byte_tokenizer(WORDS))
    export(policy.model, words, Path("cache") / base.key())


def _runs() -> None:
    sets = ("steps=5", "checkpoint.keep=5", f"model.path={Path('MODEL').resolve()}", "evaluation.every=5")
    train(small_config(*sets), Path("runs/first"), SilentView())
    for name in ("grpo", "dapo", "grpo-tiny", "quickstart", "slower", "probe", "one", "two"):
        shutil.copytree("runs/first", f"runs/{name}")
    train(small_config(*sets, "steps=1", "model.lora.rank=2"), Path("runs/lora"), SilentView())
    for seed, name in enumerate(("scalerl", "s0", "s1", "s2", "d0")):
        _curve(Path("runs") / name, seed, truth().value(COMPUTE), COMPUTE)
    for billions, name in ((0.5, "a"), (1.5, "b"), (7.0, "c")):  # of the law of `strop fit --joint`
        failing = 0.8 * (COMPUTE / COMPUTE[0]) ** (-0.5 / (1 + 1 / billions))
        _curve(Path("runs") / name, 0, 1 - failing, COMPUTE)
    spent = np.linspace(9.3, 556.0, 60)
    _curve(Path("runs/curve"), 0, Sigmoid(0.7, 2.0, 140.0, R_0).value(spent), spent, 1.0)
    write_ablation(Path("runs/ablate-scalerl"), Path(), {"base": 0.7, "without": 0.6})


def _curve(
    run: Path, seed: int, rates: NDArray[np.float64], at: NDArray[np.float64], seconds: float = 3600.0
) -> None:
    """A run with these pass rates but for noise, after so many device-hours, or units of so many seconds."""
    curve = drawn(rates, seed, at)
    assert curve.stderr is not None
    rows: list[tuple[int, dict[str, float | None]]] = [(0, {"evaluation/pass_rate": R_0, "evaluation/stderr": 0.003})]
    for step, (spent, rate, error) in enumerate(zip(at, curve.pass_rate, curve.stderr, strict=True), 1):
        done = {"compute/device_seconds": seconds * spent, "tokens/generated": 8000.0}
        rows.append((step, {"evaluation/pass_rate": rate, "evaluation/stderr": error, **done}))
    write_run(run, rows, seed)


def _made_by_commands(patched: pytest.MonkeyPatch) -> None:
    """What one command leaves for another."""
    sampled = "--set evaluation.benchmark_data=benchmarks --limit 2 --samples 8 --set sampling.max_new_tokens=8"
    for command in (
        f"eval base=MODEL runs/first --benchmark aime24 {sampled} --out evals/first",
        f"eval base=MODEL --benchmark aime24 {sampled} --out evals/base",
        f"eval runs/first --benchmark aime24 {sampled} --out evals/ours",
        f"eval runs/first@4 --benchmark aime24,aime25,math500 {sampled} --out evals/steps",
        "data prepare prepare.toml --out prepared",
        "sft MODEL --data tiny.jsonl --out runs/sft --set training.steps=2",
    ):
        assert called(shlex.split(command), patched) == 0, command


@pytest.fixture
def there(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that one, which this test alone changes."""
    place = tmp_path / "there"
    shutil.copytree(furnished, place, copy_function=_linked)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("STROP_CACHE", str(place / "cache"))
    monkeypatch.setenv("STROP_KEY", "secret")
    monkeypatch.setattr(imports, "_allowed", {})
    # An endpoint serves until it is told to end; here it has listened, and that is enough.
    monkeypatch.setattr(HttpServer, "run", lambda self, sockets=None: None)
    # Of a report's two dozen figures one is drawn, and every figure coarsely: most of their time are their points.
    monkeypatch.setattr("strop.report.drawing.canvas", lambda width, height, dpi=0: canvas(width, height, 20))
    few = "strop.report.build.training_charts"
    monkeypatch.setattr(few, lambda runs: [(name, charts[:1]) for name, charts in training_charts(runs)[:1]])
    for name in ("my_losses.py", *modules()):
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    return place


def _linked(source: str, target: str) -> None:
    """The same file, but for one that grows in place."""
    shutil.copy2(source, target) if source.endswith("metrics.jsonl") else os.link(source, target)


# ---------------------------------------------------------------------- the tests


def called(arguments: list[str], patched: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of a command."""
    patched.setattr(sys, "argv", ["strop", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def small(line: str) -> str:
    """A command line, made small."""
    more = next((options for word, options in SMALL.items() if line.startswith(f"strop {word}")), "")
    more = TRAINING if line in TRAINED else more
    if ON_THE_HUB.match(line) and "data.source" not in line:
        more += " --set data.source=problems.jsonl"
    if DRAWS_ITS_OWN.match(line):
        more += " --set data.source.count=400"
    if line.startswith("strop eval") and ("--benchmark" in line or "--protocol" in line):
        more += " --set evaluation.benchmark_data=benchmarks" + ("" if "--benchmark" in line else " --benchmark aime24")
    if line.startswith("strop train") and "aime24" in line:
        more += " --set evaluation.benchmark_data=benchmarks"
    for word, stands in STANDS_FOR.items():
        line = line.replace(word, stands)
    return f"{line} {more}"


@pytest.mark.parametrize("line", COMMANDS, ids=[f"{place}: {line}" for line, place in COMMANDS.items()])
def test_a_command(
    line: str, there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = next((reason for pattern, reason in NEEDS.items() if re.search(pattern, line)), None)
    if reason is not None and line not in TRAINED:
        pytest.skip(f"needs {reason}")
    command, _, file = line.partition(" > ")
    arguments = shlex.split(small(command))[1:]
    if "--out" in arguments and arguments[0] in ("train", "eval", "sft"):  # the page's own, which was furnished
        shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
    with forking() if arguments[0] == "smoke" else nullcontext():
        code = strop_verify(arguments) if command.startswith("strop-verify ") else called(arguments, monkeypatch)
    shown = capsys.readouterr()
    assert code in (None, 0) or (code == 1 and FINDS.match(line)), f"strop {shlex.join(arguments)}\n{shown.err}"
    if file:
        assert tomllib.loads(shown.out) and Path(file).suffix == ".toml"


@pytest.mark.parametrize(("page", "text"), toml_blocks(), ids=[page for page, _ in toml_blocks()])
def test_a_toml_block(page: str, text: str, there: Path) -> None:
    data = tomllib.loads(text)
    if "recipe" in data:
        imports.allow_module("my_rewards")
        Path("block.toml").write_text(text)
        assert resolve("block.toml").recipe == data["recipe"]
    elif "sampling" in data:  # settings for --set @FILE
        Path("block.toml").write_text(text)
        assert resolve("grpo", edits_of_file(Path("block.toml")))
    else:  # of a preparation, or a part of one
        assert parse_config({"sources": [{"path": "train.jsonl"}], **data}, page).steps


def test_what_is_left_out_or_trained_stands_in_the_texts() -> None:
    for pattern in NEEDS:
        assert any(re.search(pattern, line) for line in COMMANDS), pattern
    assert set(TRAINED) <= COMMANDS.keys()


def test_every_command_is_found() -> None:
    """Should the pages change their form, nothing would be found and everything would pass."""
    assert len(COMMANDS) > 100 and len(toml_blocks()) >= 3
