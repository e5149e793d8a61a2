"""All GPU checks and benches in order of worth, each with a time limit: for a GPU that is there for minutes.

    python bench/gpu_session.py --out build/gpu --seconds 560          # what fits; the same again goes on after it
    python bench/gpu_session.py --out build/gpu --steps decode-0.6b,mfu-0.6b
    python bench/gpu_session.py --device cpu --out build/cpu           # the same commands in small, without a GPU

A step that fails or outlasts its limit is noted, and the next one runs. Everything is in three files of `--out`:
`lines.jsonl`, every line that a bench printed and one `{"step": ..., "rc": ..., "seconds": ...}` for each step;
`log.txt`, the end of what each step said; `verdict.txt`, the bars beside what was measured, also printed at the end.
Steps that `lines.jsonl` says were finished are not run again, unless `--steps` names them. `--wheels` is a folder of
wheels to install from first, for a machine that reaches no package index.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
TAIL = 4000  # characters of a step's output that are kept
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", "--maxfail=12")
Line = Mapping[str, Any]


class Bar(NamedTuple):
    """Of the lines of `unit` whose case begins with `case`: the field `key` must reach `wanted`, or stay below it."""

    what: str
    unit: str
    key: str
    wanted: float
    case: str = ""
    below: bool = False
    peer: str | None = None

    def of(self, line: Line) -> bool:
        """Whether the line is one of those."""
        fits = line.get("unit") == self.unit and str(line.get("case")).startswith(self.case)
        return fits and (self.peer is None or line.get("peer_name") == self.peer)

    def met(self, value: float) -> bool:
        """Whether the value is good enough."""
        return value <= self.wanted if self.below else value >= self.wanted


class Step(NamedTuple):
    """Arguments of Python on a GPU and, in small, on a CPU; the seconds it may take; what it must show."""

    name: str
    gpu: Sequence[str]
    cpu: Sequence[str]
    seconds: float
    bars: Sequence[Bar] = ()


def bench(name: str, *arguments: str) -> tuple[str, ...]:
    """The arguments that run a bench."""
    return (str(ROOT / "bench" / f"{name}.py"), *arguments)


def _tests(workers: int, *files: str) -> tuple[str, ...]:
    many = ("-n", str(workers), "--dist", "worksteal") if workers > 1 else ("-p", "no:xdist")
    return (*PYTEST, *many, *(str(ROOT / "tests" / file) for file in files))


def steps() -> list[Step]:
    """Everything, the most telling first."""
    cuda = ("--device", "cuda")
    decoding = [Bar("decoding, of the bytes' limit", "ms a step", "of_limit", 0.7)]
    tiny_decode = bench("decode", "--models", "tiny", "--shapes", "16x40", "--steps", "2", "--repeats", "1")
    tiny_mfu = bench("mfu", "--models", "tiny", "--tokens", "256", "--longest", "96", "--repeats", "1")
    tiny_memory = bench("memory", "--tokens", "512", "--vocabulary", "2000", "--hidden", "32", "--repeats", "1")
    tiny_publication = bench("publication", "--model", "tiny", "--running", "16", "--context", "32", "--repeats", "1")
    tiny_step = bench("gpu_step", "--model", "tiny", "--prompts", "4", "--samples", "4", "--mean", "8", "--longest",
                      "24", "--tokens", "512", "--dtype", "float32", "--repeats", "1")  # fmt: skip
    head = [
        Bar("fused head, of plain PyTorch's memory", "MiB", "ratio", 10.0),
        Bar("fused head, times plain PyTorch's speed", "s", "ratio", 3.0, peer="plain PyTorch"),
    ]
    publish = [Bar("publication, ms", "ms", "ours", 50.0, below=True)]

    def memory(hidden: int) -> tuple[str, ...]:
        return bench("memory", *cuda, "--dtype", "bfloat16", "--hidden", str(hidden), "--repeats", "1")

    def mfu(model: str, *more: str) -> tuple[str, ...]:
        return bench("mfu", *cuda, "--models", model, *more)

    def training(share: float) -> list[Bar]:
        return [Bar("update, of the matrix rate", "tokens/s", "of_limit", share, "update")]

    few = _tests(1, "kernels/test_variable_length.py")
    return [
        Step("facts", bench("gpu_session", "--facts", *cuda), bench("gpu_session", "--facts"), 90),
        Step("small-decode", (*tiny_decode, *cuda), tiny_decode, 120),
        Step("small-update", (*tiny_mfu, *cuda), tiny_mfu, 120),
        Step("kernel-tests", _tests(6, "engines/test_paged_kernels.py", "kernels"), few, 300),
        Step("decode-0.6b", bench("decode", *cuda, "--models", "qwen3-0.6b"), tiny_decode, 240, decoding),
        Step("mfu-0.6b", mfu("qwen3-0.6b"), tiny_mfu, 200, training(0.3)),
        Step("head-1024", memory(1024), tiny_memory, 180, head),
        Step("publication", bench("publication", *cuda, "--model", "qwen3-1.7b"), tiny_publication, 120, publish),
        Step("decode-1.7b", bench("decode", *cuda, "--models", "qwen3-1.7b"), tiny_decode, 300, decoding),
        Step("mfu-1.7b", mfu("qwen3-1.7b"), tiny_mfu, 240, training(0.4)),
        Step("head-2048", memory(2048), tiny_memory, 180, head),
        Step("engine-tests", _tests(4, "engines/test_paged_engine.py", "engines/test_paged_contract.py"), few, 360),
        Step("scalerl-step", bench("gpu_step", *cuda), tiny_step, 360),
        Step("mismatch", bench("mismatch", *cuda, "--model", "qwen3-0.6b"),
             bench("mismatch", "--model", "tiny", "--sequences", "16", "--tokens", "8"), 240),
        Step("tune", bench("decode", *cuda, "--models", "qwen3-0.6b", "--shapes", "64x16384", "--tune"), tiny_decode,
             240),
        Step("tilings", bench("gpu_kernels", *cuda),
             bench("gpu_kernels", "--tokens", "17", "--vocabulary", "300", "--widths", "32", "--tiling", "0"), 420),
        Step("rollout", bench("rollout", *cuda, "--model", "qwen3-0.6b", "--dtype", "bfloat16", "--peer", "none"),
             bench("rollout", "--model", "tiny", "--sequences", "20", "--slots", "16", "--longest", "24", "--dtype",
                   "float32", "--peer", "none", "--repeats", "1"), 240),
        Step("mfu-one-sequence", mfu("qwen3-0.6b,qwen3-1.7b", "--longest", "16384", "--peer", "none"), tiny_mfu, 240),
        Step("scalerl-step-rounded-head", bench("gpu_step", *cuda, "--no-fp32-head"), tiny_step, 360),
    ]  # fmt: skip


class Ran(NamedTuple):
    """What became of a step: its exit status (None: it outlasted its limit), seconds, JSON lines, output's end."""

    rc: int | None
    seconds: float
    lines: list[dict[str, Any]]
    tail: str


def run(arguments: Sequence[str], limit: float, environment: Mapping[str, str]) -> Ran:
    """Run Python with `arguments` for at most `limit` seconds; what it started ends with it."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=out, stderr=err, cwd=ROOT, env=dict(environment),
            start_new_session=True,
        )  # fmt: skip
        rc: int | None
        try:
            rc = process.wait(limit)
        except subprocess.TimeoutExpired:
            rc = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    lines, rest = parsed(texts[0])
    return Ran(rc, time.monotonic() - began, lines, rest[-TAIL:] + texts[1][-TAIL:])


def parsed(text: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON objects of a text that has one a line, and its other lines."""
    lines: list[dict[str, Any]] = []
    rest: list[str] = []
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if isinstance(found, dict):
            lines.append(found)
        else:
            rest.append(line)
    return lines, "\n".join(rest)


def verdicts(every: Sequence[Step], found: Mapping[str, Sequence[Line]]) -> list[tuple[str, str, str, str]]:
    """Rows of step, bar, what was measured, and `met`, `MISSED` or why there is nothing; `found` are lines by step."""
    rows: list[tuple[str, str, str, str]] = []
    for step in every:
        lines = found.get(step.name)
        if lines is None:
            rows.append((step.name, "", "", "not run"))
            continue
        ended = next(line for line in reversed(lines) if "step" in line)
        state = "outlasted its limit" if ended["rc"] is None else "" if ended["rc"] == 0 else f"FAILED {ended['rc']}"
        took = f"{ended['seconds']:.0f} s"
        if not step.bars or state:
            rows.append((step.name, "", took, state or "ok"))
        for bar in step.bars:
            fitting = [line for line in lines if bar.of(line) and isinstance(line.get(bar.key), (int, float))]
            if not fitting:
                rows.append((step.name, bar.what, "", "not measured"))
            for line in fitting:
                sign = "<=" if bar.below else ">="
                told = f"{line[bar.key]:.3g} ({sign} {bar.wanted:g})  {line['case']}"
                rows.append((step.name, bar.what, told, "met" if bar.met(line[bar.key]) else "MISSED"))
    return rows


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows in columns."""
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:{widths[0]}}  {d:19}  {b:{widths[1]}}  {c}".rstrip() for a, b, c, d in rows)


def read(path: Path) -> dict[str, list[Line]]:
    """The lines of `lines.jsonl` by step, of each step's last run."""
    found: dict[str, list[Line]] = {}
    collected: list[Line] = []
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        collected.append(line)
        if "step" in line:
            found[line["step"]], collected = collected, []
    return found


def facts(device: str) -> None:
    """A line on the machine, its packages and the two rates that everything is held against."""
    import torch
    import transformers
    from common import bandwidth, emit, matrix_rate

    about: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    if device == "cuda":
        import triton

        card = torch.cuda.get_device_properties(0)
        about |= {"triton": triton.__version__, "gpu": card.name, "capability": f"{card.major}.{card.minor}",
                  "multiprocessors": card.multi_processor_count, "gib": card.total_memory / 2**30,
                  "cuda": torch.version.cuda, "free_gib": torch.cuda.mem_get_info()[0] / 2**30}  # fmt: skip
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    emit("gpu_session", "a copy", bandwidth(device, 2048 if device == "cuda" else 64), None, None, "B/s", **about)
    emit("gpu_session", f"a matrix product in {str(dtype)[6:]}", matrix_rate(dtype, device), None, None, "FLOP/s")


def session(given: argparse.Namespace, every: Sequence[Step], say: Callable[[str], None]) -> str:
    """Run what is to be run; the table of verdicts."""
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    record = out / "lines.jsonl"
    began = time.monotonic()
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    if given.device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    done = {name for name, lines in read(record).items() if lines[-1]["rc"] == 0}
    chosen = [s for s in every if (s.name not in done if given.steps is None else s.name in given.steps.split(","))]
    for step in chosen:
        left = given.seconds - (time.monotonic() - began)
        if left < 20:
            break
        found = run(step.cpu if given.device == "cpu" else step.gpu, min(step.seconds, left), environment)
        with record.open("a") as file:
            for line in (*found.lines, {"step": step.name, "rc": found.rc, "seconds": round(found.seconds, 1)}):
                file.write(json.dumps(line) + "\n")
        with (out / "log.txt").open("a") as file:
            file.write(f"===== {step.name}: status {found.rc}, {found.seconds:.0f} s\n{found.tail}\n")
        say(f"{step.name}: status {found.rc}, {found.seconds:.0f} s, {len(found.lines)} lines")
    whole = table(verdicts(every, read(record)))
    (out / "verdict.txt").write_text(whole + "\n")
    return whole


def main() -> None:
    """Run the steps, or say what there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=None)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no step goes on")
    parser.add_argument("--steps", help=f"only these, of {', '.join(step.name for step in steps())}")
    parser.add_argument("--wheels", type=Path, help="a folder to install missing packages from")
    parser.add_argument("--facts", action="store_true", help="only say what machine this is")
    given = parser.parse_args()
    if given.facts:
        facts(given.device or "cpu")
        return
    given.device = given.device or "cuda"
    names = [step.name for step in steps()]
    if strange := sorted(set((given.steps or names[0]).split(",")) - set(names)):
        raise SystemExit(f"--steps: no step is called {', '.join(strange)}; there are {', '.join(names)}")
    if given.wheels is not None:
        wanted = ("pydantic", "safetensors")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", given.wheels, *wanted]
        subprocess.run(command, check=True)
    print(session(given, steps(), lambda text: print(text, flush=True)), flush=True)


if __name__ == "__main__":
    main()
