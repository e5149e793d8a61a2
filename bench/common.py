"""What the performance benches share: models of given shapes, limits of the machine, interleaved timing, JSON lines.

Every line has `bench, case, ours, peer, peer_name, ratio, unit, limit, of_limit`: the medians of both sides, how many
times better ours is, the most the machine could do (measured in the same run), and how much of it ours reaches.
`ratio_cpu` compares processor seconds instead of wall time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float, c_long
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from dimensions import Dimensions
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from strop.base.sample import Sample
from strop.model.files import DTYPES, byte_tokenizer
from strop.model.kernels.compiled import compiled
from strop.model.policy import Policy
from strop.model.settings import FreshModel, ModelSettings

QWEN2 = {
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "vocab_size": 320},
    "1.8m": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6,
             "num_key_value_heads": 2, "vocab_size": 320},
    "3.4m": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 1024},
}  # fmt: skip
QWEN3 = {
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    "qwen3-1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28},
    "qwen3-8b-layer": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 1,
                       "num_attention_heads": 32, "vocab_size": 4096},
}  # fmt: skip
SHAPES = (*QWEN2, *QWEN3)
POSITIONS = 40_960


class Spent(NamedTuple):
    """Wall and processor seconds of one run, or the medians of some."""

    wall: float
    cpu: float
    runs: int = 1


def shape_or_folder(text: str) -> str:
    """An argument that names a shape or a model's folder."""
    if text not in SHAPES and not Path(text, "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text}: no folder of a model, and none of {', '.join(SHAPES)}")
    return text


def model_of(shape: str, dtype: torch.dtype, device: str, seed: int = 0) -> PreTrainedModel:
    """The model of a folder, or one of random weights, drawn with standard deviation 0.02; no id ends a sequence."""
    if shape not in SHAPES:
        real: PreTrainedModel = AutoModelForCausalLM.from_pretrained(shape, dtype=dtype, local_files_only=True)
        real.generation_config.eos_token_id = None
        return real.to(device).eval()
    torch.manual_seed(seed)
    common = {"tie_word_embeddings": True, "max_position_embeddings": POSITIONS, "attention_dropout": 0.0,
              "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # fmt: skip
    with torch.device(device):
        if shape in QWEN2:
            model: PreTrainedModel = Qwen2ForCausalLM(Qwen2Config(**QWEN2[shape], **common))
        else:
            heads = {"vocab_size": 151_936, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
            model = Qwen3ForCausalLM(Qwen3Config(**heads | QWEN3[shape], **common))
    return model.to(dtype).eval()


def policy_of(model: PreTrainedModel, **settings: Any) -> Policy:
    """The policy of a model; the model attends as strop does from then on."""
    name = next(name for name, dtype in DTYPES.items() if dtype == next(model.parameters()).dtype)
    return Policy(model, ModelSettings(fresh=FreshModel(), dtype=name, **settings))


def endless_tokenizer() -> PreTrainedTokenizerBase:
    """One token a byte and none that ends a completion, so that lengths are those asked for."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    return tokenizer


def random_sample(rng: np.random.Generator, length: int, prompt: int, vocabulary: int, place: int) -> Sample:
    """A sequence of random tokens, those after `prompt` trained with one random advantage; in a group of eight."""
    trained = np.arange(length) >= prompt
    return Sample(
        token_ids=rng.integers(0, vocabulary, length).astype(np.int32),
        trained=trained,
        logprobs=np.where(trained, -np.log(vocabulary), 0.0).astype(np.float32),
        advantages=np.where(trained, rng.normal(), 0.0).astype(np.float32),
        versions=np.where(trained, 0, -1).astype(np.int32),
        group=place // 8,
        id=place,
    )


def long_tailed(count: int, longest: int, seed: int = 0) -> list[int]:
    """Log-normal lengths (sigma 0.9), cut at `longest`; their median is 3/16 of it."""
    drawn = np.random.default_rng(seed).lognormal(np.log(longest * 3 / 16), 0.9, count)
    return np.clip(drawn, 4, longest).astype(int).tolist()


def kv_bytes_a_token(model: PreTrainedModel) -> int:
    """Bytes of one token's keys and values in all layers."""
    c = model.config
    head = c.to_dict().get("head_dim") or c.hidden_size // c.num_attention_heads
    return 2 * c.num_hidden_layers * c.num_key_value_heads * head * next(model.parameters()).element_size()


def dimensions_of(model: PreTrainedModel) -> Dimensions:
    """What the operations of a model are counted from."""
    c = model.config
    head = c.to_dict().get("head_dim") or c.hidden_size // c.num_attention_heads
    return Dimensions(c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads,
                      c.num_key_value_heads, head, c.vocab_size)  # fmt: skip


def parameter_count(model: PreTrainedModel) -> int:
    """Parameters, a tied one once."""
    return sum(parameter.numel() for parameter in model.parameters())


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], device: str) -> Spent:
    """Seconds of one run of `work`."""
    synchronize(device)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    synchronize(device)
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(
    sides: Mapping[str, Callable[[], Spent]], repeats: int, patience: float | None = None
) -> dict[str, Spent]:
    """Medians of `repeats` runs of each side, taken in turns after one of each to warm up; `runs` says how many.

    With `patience` (seconds) a side makes no more runs than fit into it, two at the least, and one whose first run took
    a third of it is not run again: what warms up weighs little there. Every run is noted on standard error.
    """
    taken: dict[str, list[Spent]] = {}
    left = dict.fromkeys(sides, repeats)
    for name, run in sides.items():
        first = run()
        _note(name, 0, first)
        taken[name] = []
        if patience is not None:
            if first.wall > patience / 3:
                taken[name], left[name] = [first], 0
            else:
                left[name] = min(repeats, max(int(patience / first.wall), 2))
    for turn in range(repeats):
        for name, run in sides.items():
            if turn < left[name]:
                taken[name].append(run())
                _note(name, turn + 1, taken[name][-1])
    return {
        name: Spent(*(statistics.median(one[part] for one in spent) for part in (0, 1)), len(spent))
        for name, spent in taken.items()
    }


def _note(name: str, turn: int, spent: Spent) -> None:
    what = f"run {turn}" if turn else "first run"
    print(f"  {name}, {what}: {spent.wall:.2f} s, {spent.cpu:.2f} s of processor", file=sys.stderr, flush=True)


def bandwidth(device: str, mebibytes: int = 256) -> float:
    """Bytes a second that memory gives: reading on a CPU, reading and writing (a copy) on a GPU; best of 7."""
    source = torch.ones(mebibytes << 18, device=device)
    target = torch.empty_like(source) if device == "cuda" else None
    moved = source.nbytes * (1 if target is None else 2)

    def move() -> object:
        return source.sum() if target is None else target.copy_(source)

    move()
    return moved / min(timed(move, device).wall for _ in range(7))


def multiply_adds(threads: int) -> float:
    """Operations a second of the multiply-add loop (limit.c) on so many threads; 0 without a C compiler."""
    library = compiled("limit", [Path(__file__).with_name("limit.c")])
    if library is None:
        return 0.0
    library.strop_limit.argtypes, library.strop_limit.restype = (c_long,), c_float
    library.strop_limit_round.restype = c_long
    rounds = [1_000_000] * threads  # so few that a busy machine lets some through undisturbed
    with ThreadPoolExecutor(threads) as pool:
        best = min(timed(lambda: list(pool.map(library.strop_limit, rounds)), "cpu").wall for _ in range(20))
    return float(sum(rounds) * library.strop_limit_round()) / best


def matrix_rate(dtype: torch.dtype, device: str) -> float:
    """Operations a second that products can reach: of a large one, best of 7; on a CPU at least those of the loop."""
    n = 8192 if device == "cuda" else 1024
    left, right = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    left @ right
    found = 2 * n**3 / min(timed(lambda: left @ right, device).wall for _ in range(7))
    # torch emulates bfloat16 where a CPU has no instructions for it; widened to float32 it is as fast as float32.
    return found if device == "cuda" else max(found, multiply_adds(torch.get_num_threads()))


def emit(bench: str, case: str, ours: float, peer: float | None, peer_name: str | None, unit: str,
         limit: float | None = None, ratio_cpu: float | None = None, **more: Any) -> None:  # fmt: skip
    """Print one result; a unit that ends in `/s` or is `ratio` is better the larger, any other the smaller."""
    larger_is_better = unit.endswith("/s") or unit == "ratio"
    ratio = None if peer is None else (ours / peer if larger_is_better else peer / ours)
    of_limit = None if limit is None else (ours / limit if larger_is_better else limit / ours)
    line = {"bench": bench, "case": case, "ours": ours, "peer": peer, "peer_name": peer_name, "ratio": ratio,
            "unit": unit, "limit": limit, "of_limit": of_limit, "ratio_cpu": ratio_cpu, **more}  # fmt: skip
    print(json.dumps({key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in line.items()}), flush=True)


def parser_of(doc: str | None, peers: tuple[str, ...]) -> argparse.ArgumentParser:
    """Arguments that every performance bench has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peer", choices=(*peers, "none"), default=(*peers, "none")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        help="seconds of runs of one side, after which there are fewer than --repeats of it",
    )
    parser.add_argument("--threads", type=int, help="of torch; by default as it chooses")
    return parser


def begin(given: argparse.Namespace) -> None:
    """Set what the arguments say of torch."""
    if given.threads is not None:
        torch.set_num_threads(given.threads)
        os.environ["OMP_NUM_THREADS"] = str(given.threads)  # of peers in processes of their own
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: this torch sees no GPU")


class OtherProcess:
    """A peer in another virtual environment: it runs `script` with a JSON object of what to do as its argument, writes
    a JSON line when it is ready, and for each line it reads does the work once and writes what it spent."""

    def __init__(self, python: Path, script: str, what: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        command = [str(python), str(Path(__file__).parent / "peers" / script), json.dumps(what)]
        every = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | dict(environment)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=every
        )
        self.about = self._line()

    def _line(self) -> dict[str, Any]:
        stream: IO[str] | None = self._process.stdout
        assert stream is not None
        for line in stream:
            if line.startswith("{"):  # libraries print what they like in between
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"the peer ended with status {self._process.wait()}; run it by hand: {self._process.args}")

    def run(self) -> dict[str, Any]:
        """Do the work once."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._line()

    def spent(self) -> Spent:
        """Do the work once: its seconds."""
        line = self.run()
        return Spent(line["wall"], line["cpu"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
