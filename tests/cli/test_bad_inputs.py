"""What a user can get wrong on the command line: one line on standard error, the right exit code, and at once.

Each case is refused by what the configuration alone shows, so that torch is never loaded. They run in one process,
through the same function that the program calls; a few are timed as programs.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strop.base import imports
from strop.cli import main

SECONDS = 0.5  # of processor time, on a machine of its own

# What lies in the folder in which the commands run.
FILES = {
    "good.jsonl": '{"prompt": "What is 2+2?", "answer": "4"}\n' * 1,
    "empty.jsonl": "",
    "parted.csv": "prompt;answer\n2+2;4\n",
    "broken.jsonl": '{"prompt": "What is 2+2?"\n',
    "columns.jsonl": '{"question": "What is 2+2?", "solution": "4"}\n',
    "noanswer.jsonl": '{"prompt": "What is 2+2?", "answer": ""}\n',
    "words.txt": "What is 2+2? 4\n",
    "bad.toml": 'recipe = "grpo\n',
    "nameless.toml": "steps = 3\n",
    "typo.toml": 'recipe = "grpo"\noptim.lrr = 2e-6\n',
    "latin.toml": 'recipe = "grpo" # caf\xe9\n',
    "bad.json": '{"recipe": ',
    "other.json": '{"recipe": "x"}\n',
    "raises.py": "def recipe():\n    return 1 / 0\n",
    "nothing.py": "x = 3\n",
    "made.py": (
        "from strop.algorithms.rewards import Reward\n\n\n"
        "class Short(Reward):\n    def __call__(self, completion):\n        return 1.0\n\n\n"
        "def judge(text):\n    return True\n\n\nnumber = 3\n"
    ),
    "syntax.py": "def f(:\n",
    "needs.py": "import no_such_package\n",
    "model/config.json": "{}",
    "untokenized/config.json": "{}",
    "pickled/config.json": "{}",
    "pickled/tokenizer.json": "{}",
    "pickled/pytorch_model.bin": "",
    "quantized/config.json": '{"quantization_config": {"quant_method": "gptq", "bits": 4}}',
    "quantized/tokenizer.json": "{}",
    "quantized/model.safetensors": "",
    "judge/config.json": '{"architectures": ["Qwen3ForSequenceClassification"]}',
    "judge/tokenizer.json": "{}",
    "judge/model.safetensors": "",
    "run/run.json": '{"format": 2, "id": "0"}',
    "run/config.json": '{"recipe": "x"}',
    "future/run.json": '{"format": 99}',
    "sft/run.json": '{"format": 2, "id": "0"}',
    "sft/config.json": '{"demonstrations": "x.jsonl"}',
    "full/thing": "",
    "cases.jsonl": '{"answer": "1"}\n',
    "bad-prepare.toml": "[[sources]]\npath = 3\n",
    "costs.csv": "step,rate\n1,a\n",
}
EMBEDDED = "train grpo --set model.path=embedded"

# The command, and what its line must say: the key or file, and mostly the way out.
CASES = (
    # the command itself
    ("train", "name what to train"),
    ("train gpro", "did you mean 'grpo'"),
    ("train archer", "choose one of its variants: archer.code,"),
    ("train grpo --step 3", "--resume RUN"),
    ("train grpo", "names no model"),
    # settings
    ("train grpo --set optim.lrr=2e-6", "did you mean optim.lr"),
    ("train grpo --set optim.lr=fast", "optim.lr='fast'"),
    ("train grpo --set optim.lr", "write key=value"),
    ("train grpo --set optim.lr=-1", "must be greater than 0"),
    ("train grpo --set steps=0", "steps=0: must be greater than or equal to 1"),
    ("train grpo --set algorithm.loss=Cisppo", "did you mean 'Cispo'"),
    ("train grpo --set verifier=Anser", "did you mean 'Answer'"),
    ("train grpo --set model=Qwen/Qwen3-0.6B", "set one of model.path"),
    ("train grpo --set data.held_out=4", "data.held_out=4: it is a section; set one of data.held_out.count"),
    ("train grpo --set verifier=3", "verifier=3: name one of Answer, "),
    ("train grpo --set verifier=PythonFunction --set verifier.function=made:judge", "allow it with --import made"),
    ("train grpo --set sampling.top_p=0.9", "training needs the whole distribution"),
    ("train grpo --set batch.updates_per_step=64", "exceeds batch.prompts_per_step"),
    ("train grpo --set critic.updates_per_step=2", "never reads the critic"),
    ("train grpo --set device=cuda --set model.path=embedded", "no GPU"),
    ("train grpo --set orchestration.executor=in_process --set orchestration.generators=2", "in_process has none"),
    (f"{EMBEDDED} --set trackers=tensorbord", "trackers"),
    # sizes
    (f"{EMBEDDED} --set data.source.count=100000000000", "data.source.count"),
    # files
    ("train nowhere.toml", "no such file"),
    ("train bad.toml", "not TOML"),
    ("train nameless.toml", "say which recipe"),
    ("train typo.toml", "did you mean optim.lr"),
    ("train latin.toml", "not UTF-8"),
    ("train bad.json", "line 1: not JSON"),
    ("train other.json", "missing"),
    ("train raises.py", "raises.py, line 2: ZeroDivisionError"),
    ("train nothing.py", "define a function recipe()"),
    ("train ./run", "./run is a folder; name a recipe"),
    ("doctor ./full", "./full is a folder; name a recipe"),
    # models
    ("train grpo --set model.path=/no/such/model", "no such folder"),
    ("train grpo --set model.path=run", "this is a run; its model is run/model"),
    ("train grpo --set model.path=untokenized", "holds no tokenizer"),
    ("train grpo --set model.path=quantized", "its weights are quantized (gptq)"),
    ("train grpo --set model.path=judge", "Qwen3ForSequenceClassification judges texts and writes none"),
    ("eval quantized --set data.source=good.jsonl", "its weights are quantized (gptq)"),
    ("train grpo --set model.path=pickled", "no weights in safetensors"),
    ("train grpo --set model.path=full", "holds no config.json"),
    ("train grpo --set model.path=Nobody/Nothing-1B", "the hub cannot be asked"),
    # problems
    (f"{EMBEDDED} --set data.source=nowhere.jsonl", "nowhere.jsonl: no such file"),
    (f"{EMBEDDED} --set data.source=words.txt", "no source is called 'words.txt'; the files that are read end in"),
    (
        f"{EMBEDDED} --set data.source=broken.jsonl",
        "broken.jsonl:1: not valid JSON (Expecting ',' delimiter, column 26)",
    ),
    (f"{EMBEDDED} --set data.source=parted.csv", "data.source.columns"),
    (f"{EMBEDDED} --set data.source=columns.jsonl", "data.source.columns"),
    (f"{EMBEDDED} --set data.source=noanswer.jsonl", "the answer is empty; fill it in, or leave such rows out"),
    (f"{EMBEDDED} --set data.source=empty.jsonl", "no problems in it"),
    (f"{EMBEDDED} --set data.held_out.source=nowhere.jsonl", "nowhere.jsonl: no such file"),
    (f"{EMBEDDED} --set evaluation.benchmarks=nowhere.jsonl --set evaluation.every=5", "there is no file nowhere"),
    # engines
    ("train scalerl --set engine=Vllm", "it has no interpreter; name that of an environment with vLLM"),
    (f"{EMBEDDED} --set engine=Vllm --set engine.python=/no/python", "there is no such interpreter"),
    # code of the user's own
    (f"{EMBEDDED} --import nowhere", "No module named 'nowhere'"),
    (f"{EMBEDDED} --import syntax.py", "syntax.py, line 1: SyntaxError"),
    (f"{EMBEDDED} --import needs.py", "needs.py, line 1: ModuleNotFoundError"),
    (f"{EMBEDDED} --import made.py --set algorithm.reward=made:Short", "is called with (self, completion, verdict)"),
    (f"{EMBEDDED} --import made.py --set algorithm.reward=made:Long", "no Reward is called 'made:Long'"),
    (
        f'{EMBEDDED} --import made.py --set \'verifier={{piece="PythonFunction", function="made:judge"}}\'',
        "is called with (problem, text)",
    ),
    (
        f'{EMBEDDED} --import made.py --set \'verifier={{piece="PythonFunction", function="made:number"}}\'',
        "has no function 'number'",
    ),
    # folders
    (f"{EMBEDDED} --out full", "not empty and not a run"),
    (f"{EMBEDDED} --out run", "already holds a run: go on with it by strop train --resume run"),
    (f"{EMBEDDED} --out good.jsonl", "is a file"),
    ("train --resume nowhere", "there is no run folder nowhere; strop runs lists"),
    ("train --resume full", "is not a run of strop"),
    ("train --resume future", "layout format 99"),
    ("train --resume sft", "fine-tuning run; go on with it by strop sft --resume sft"),
    ("train grpo --resume run", "leave out the recipe"),
    # the other commands
    ("sft", "name the model and the demonstrations"),
    ("sft fresh --data nowhere.jsonl", "nowhere.jsonl: no such file"),
    ("sft fresh --data columns.jsonl", "columns.answer=COLUMN"),
    ("sft fresh --data good.jsonl --set training.epoch=3", "training.epoch"),
    ("eval", "name what to measure"),
    ("sft fresh --data good.jsonl --set steps=3", "did you mean training.steps"),
    ("sft nowhere --data columns.jsonl --set columns.answer=solution", "name a folder with config.json, or fresh\n"),
    ("sft embedded --data good.jsonl", "name a folder, a hub name, or fresh"),
    ("sft fresh --data good.jsonl --set optim.lr=3", "did you mean training.optimizer"),
    ("settings optm", "did you mean 'optim'"),
    ("eval nowhere", "nowhere is neither a run nor a model folder"),
    ("eval ./rnu", "a model folder; did you mean run?\n"),
    ("eval org/model", "looks like a name on the hub, and cannot be loaded: there is no folder"),
    ("eval run", "run has no model yet"),
    ("eval run@7", "has no checkpoint 7"),
    ("eval embedded --benchmark aime42", "no benchmark is called 'aime42'"),
    ("eval embedded --set data.source=nowhere.jsonl", "no such file"),
    ("eval embedded --samples 0", "--samples"),
    ("compare nowhere", "no such folder"),
    ("sample embedded --set data.source=nowhere.jsonl", "no such file"),
    ("sample nowhere --prompt x", "nowhere is neither a run nor a model folder"),
    ("export nowhere", "there is no run folder nowhere"),
    ("export sft --step 3", "has no checkpoint 3"),
    ("export sft@3", "has no checkpoint 3"),
    ("export sft@3 --step 4", "sft@3 names a checkpoint, and --step 4 too; leave one out"),
    ("serve nowhere", "model.path nowhere"),
    ("report nowhere", "there is no run folder nowhere"),
    ("plot nowhere", "there is no run folder nowhere"),
    ("status nowhere", "there is no run folder nowhere"),
    ("fit nowhere", "there is no run folder or CSV file nowhere"),
    ("plan gpro", "did you mean 'grpo'"),
    ("ablate gpro --leave-one-out", "did you mean 'grpo'"),
    ("doctor gpro", "did you mean 'grpo'"),
    ("recipes show gpro", "did you mean 'grpo'"),
    ("data show nowhere", "nowhere"),
    ("data prepare nowhere.toml", "nowhere.toml"),
    ("data prepare bad-prepare.toml", "sources"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything that is wrong."""
    place = tmp_path_factory.mktemp("bad")
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text, encoding="latin-1" if name == "latin.toml" else "utf-8")
    return place


@pytest.fixture
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder as the present one; modules that a command allowed are forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STROP_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(imports, "_allowed", {})
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name in ("made", "needs", "syntax", "raises", "nothing"):
            del sys.modules[name]


@pytest.mark.parametrize(("command", "said"), CASES, ids=[command for command, _ in CASES])
def test_one_line_and_exit_code_2(
    there: Path, command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["strop", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if line]
    assert ended.value.code == 2, shown.err
    assert len(lines) == 1 and lines[0].startswith("strop: ") and said in shown.err, shown.err
    assert shown.out == "" and not (there / "runs").exists()


LOOKS = """
import sys, shlex
from strop.cli import main
for command in sys.argv[1:]:
    sys.argv = ["strop", *shlex.split(command)]
    try:
        main()
    except SystemExit:
        heavy = sorted({"torch", "transformers", "sympy", "scipy", "matplotlib"} & sys.modules.keys())
        if heavy:
            sys.exit(f"{command}: loads {heavy}")
"""


def test_nothing_heavy_is_loaded_for_them(there: Path) -> None:
    commands = [command for command, _ in CASES[::3]]
    program = [sys.executable, "-c", LOOKS, *commands]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr.splitlines()[-1]


def environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


def processor_seconds(command: list[str]) -> float:
    """User seconds of a program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, capture_output=True, check=False, env=environment())
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


@pytest.mark.parametrize("number", [1, 40])
def test_at_once(there: Path, number: int) -> None:
    """At most half a second of processor time, the best of three tries; more on a machine that imports slowly."""
    command = [sys.executable, "-m", "strop", *shlex.split(CASES[number][0])]

    def soon_enough() -> bool:
        usual = processor_seconds([sys.executable, "-c", "import numpy, pydantic"])
        return processor_seconds(command) <= 1.25 * SECONDS * max(1.0, usual / 0.1)

    assert any(soon_enough() for _ in range(3))


# ---------------------------------------------------------------------- terminals and pipes


def strop(arguments: str, **settings: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "strop", *shlex.split(arguments)]
    return subprocess.run(command, capture_output=True, check=False, env={**environment(), **settings})


ASCII = {"PYTHONIOENCODING": "ascii"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("settings", [ASCII, {"COLUMNS": "40", **C_LOCALE}])
@pytest.mark.parametrize("arguments", ["recipes", "train --help"])
def test_a_poor_terminal_shows_everything_it_can(there: Path, arguments: str, settings: dict[str, str]) -> None:
    done = strop(arguments, **settings)
    assert done.returncode == 0 and done.stderr == b""


def test_a_closed_pipe_and_a_full_disk_end_without_a_traceback(there: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m strop recipes | true", shell=True, capture_output=True, check=False, env=environment()
    )
    assert done.stderr == b""
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "strop", "recipes", "show", "scalerl"]
        written = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, env=environment())
    assert written.returncode == 1 and written.stderr.count(b"\n") == 1 and b"No space left" in written.stderr


def test_the_list_is_as_long_as_promised() -> None:
    assert len(CASES) >= 60 and len({command for command, _ in CASES}) == len(CASES)
