"""The evaluation protocols of the papers: sampling, samples a problem and benchmarks, as frozen settings.

    protocol("archer").samples_of(benchmark("aime24"))     # 64

Values that a paper does not state are filled in here and listed in `unstated`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny

from strop.base.near import nearest
from strop.base.pieces import Settings
from strop.base.types import InputError
from strop.data.templates import OpenReasonerZero, PromptTemplate
from strop.engines.protocol import Sampling
from strop.evaluation.benchmarks import Benchmark, Extract, default_verifier
from strop.verifiers.base import Verifier
from strop.verifiers.combined import AnyOf

Count = Annotated[int, Field(ge=1)]
Metric = Annotated[str, Field(pattern=r"^(avg|pass|maj|pass@[1-9][0-9]*|maj@[1-9][0-9]*)$")]


class Protocol(Settings):
    """The conditions of an evaluation; `--set` and `--samples` override them.

    Fields:
        name: of `--protocol`.
        paper: what it follows, and where there.
        benchmarks: the default benchmarks.
        temperature, top_p: of sampling.
        budget: completion tokens.
        samples: N of each benchmark, by name or family.
        other_samples: N of every other benchmark.
        metrics: columns of the table: `avg` (avg@N), `pass` (pass@N), `maj`, `pass@8` …
        template: the prompt template; None takes the run's, else the chat template where the tokenizer has one.
        instruct: whether the prompt asks for the form of the answer.
        extract: where the verifier looks for the answer.
        verifier: judges mathematics; None uses each benchmark's default verifier with `extract`.
        stop: strings that end a completion.
        unstated: values that the paper does not state.
    """

    name: str
    paper: str
    benchmarks: tuple[str, ...]
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    budget: Count
    samples: dict[str, Count] = {}
    other_samples: Count
    metrics: tuple[Metric, ...] = ("avg",)
    template: SerializeAsAny[PromptTemplate] | None = None
    instruct: bool = True
    extract: Extract = "any"
    verifier: SerializeAsAny[Verifier] | None = None
    stop: tuple[str, ...] = ()
    unstated: str = ""

    def samples_of(self, benchmark: Benchmark) -> int:
        """N of a benchmark: by its name, else its family, else `other_samples`."""
        return self.samples.get(benchmark.name, self.samples.get(benchmark.family, self.other_samples))

    @property
    def sampling(self) -> Sampling:
        """How benchmarks are sampled."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.budget, stop=self.stop)

    def verifier_of(self, benchmark: Benchmark) -> Verifier:
        """The verifier of a benchmark under this protocol."""
        if self.verifier is not None and benchmark.kind == "math":
            return self.verifier
        return default_verifier(benchmark.kind, self.extract)


SKYWORK = Protocol(
    name="skywork",
    paper="Skywork-OR1, Section 8.1: temperature 1, top-p 1, 32,768 tokens; AIME avg@32, LiveCodeBench avg@4",
    benchmarks=("aime24", "aime25", "livecodebench:v5"),
    temperature=1.0,
    top_p=1.0,
    budget=32_768,
    samples={"aime24": 32, "aime25": 32, "livecodebench": 4},
    other_samples=4,
    unstated="samples of other benchmarks (4)",
)

ARCHER = Protocol(
    name="archer",
    paper="Archer, Section 4.1, Tables 1 and 2: temperature 0.8, top-p 1, 32,768 tokens; avg@K and pass@K; "
    "DeepScaleR's functions, then Math-Verify",
    benchmarks=(
        "aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench", "livecodebench:v5", "livecodebench:v6",
    ),
    temperature=0.8,
    top_p=1.0,
    budget=32_768,
    samples={
        "aime24": 64, "aime25": 64, "amc23": 64, "livecodebench:v6": 16, "livecodebench:v5": 8, "minerva": 8,
        "math500": 4, "olympiadbench": 4,
    },
    other_samples=4,
    metrics=("avg", "pass"),
    verifier=AnyOf(),
    unstated="prompt; samples of other benchmarks (4)",
)  # fmt: skip

OPEFO = Protocol(
    name="opefo",
    paper="OPEFO, Section 6.1: temperature 1, top-p 0.7; avg@32 on AIME and AMC23, else avg@1; no prompts added",
    benchmarks=("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench"),
    temperature=1.0,
    top_p=0.7,
    budget=8_192,
    samples={"aime24": 32, "aime25": 32, "amc23": 32},
    other_samples=1,
    instruct=False,
    unstated="budget (8,192 tokens, less where the model has room for less)",
)

OPEFO_PASS = OPEFO.model_copy(
    update={
        "name": "opefo_pass",
        "paper": "OPEFO, Section 6.4, Tables 3 and 4: pass@32, on AIME 2024 up to pass@64; sampled as `opefo`",
        "benchmarks": ("aime24", "aime25", "amc23", "math500"),
        "samples": {"aime24": 64},
        "other_samples": 32,
        "metrics": ("pass@32",),
    }
)

ORZ = Protocol(
    name="orz",
    paper="Open-Reasoner-Zero, Figure 1 and Tables 1, 2 and 5: mean of 16 responses, the training prompt, answer tags",
    benchmarks=("aime24", "aime25", "math500", "gpqa_diamond", "mmlu", "mmlu_pro"),
    temperature=1.0,
    top_p=1.0,
    budget=8_000,
    samples={"mmlu": 1, "mmlu_pro": 1},
    other_samples=16,
    template=OpenReasonerZero(),
    instruct=False,
    extract="answer_tag",
    stop=OpenReasonerZero.STOP,
    unstated="temperature, top-p and budget (those of the released code's evaluation); one sample of MMLU and MMLU-Pro",
)

SCALERL = Protocol(
    name="scalerl",
    paper="ScaleRL, Sections 2 and A.15: mean@16; AIME, MATH-500, LiveCodeBench January to June 2025",
    benchmarks=("aime24", "aime25", "math500", "livecodebench:2025-01-01..2025-06-30"),
    temperature=1.0,
    top_p=1.0,
    budget=14_336,
    other_samples=16,
    unstated="temperature and top-p (those of training); the budget is that of training, 12,288 + 2,048 tokens",
)

PROTOCOLS = {found.name: found for found in (SKYWORK, ARCHER, OPEFO, OPEFO_PASS, ORZ, SCALERL)}

PLAIN = Protocol(
    name="strop",
    paper="none: the defaults of `strop eval --benchmark`",
    benchmarks=(),
    temperature=1.0,
    top_p=1.0,
    budget=8_192,
    other_samples=4,
)


def protocol(name: str | None) -> Protocol:
    """The protocol of a paper; for None `PLAIN`.

    Raises:
        InputError: there is none of that name.
    """
    if name is None:
        return PLAIN
    if name not in PROTOCOLS:
        raise InputError(f"--protocol {name}: {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def changed(base: Protocol, samples: int | None = None, metrics: Sequence[str] = ()) -> Protocol:
    """`base` with N = `samples` for every benchmark, and other metrics; None and an empty sequence leave it as it is.

    Raises:
        InputError: an unknown metric.
    """
    for metric in metrics:
        parse_metric(metric)
    changes: dict[str, Any] = {} if samples is None else {"samples": {}, "other_samples": samples}
    return base.model_copy(update=changes | ({"metrics": tuple(metrics)} if metrics else {}))


def refuse_few_samples(chosen: Protocol, measured: Sequence[Benchmark]) -> None:
    """Refuse a metric of more samples than any benchmark has.

    Raises:
        InputError: it names the metric and the way out.
    """
    most = max(chosen.samples_of(benchmark) for benchmark in measured)
    for metric in chosen.metrics:
        k = parse_metric(metric)[1]
        if k is not None and k > most:
            raise InputError(f"{metric} cannot be estimated from {most} samples a problem; raise --samples to {k}")


def in_words(sampling: Sampling) -> str:
    """Temperature, top-p, budgets, and whatever else shapes or ends completions, for tables and notes."""
    parts = [f"temperature {sampling.temperature:g}", f"top-p {sampling.top_p:g}"]
    parts += [] if sampling.top_k is None else [f"top-k {sampling.top_k}"]
    parts.append(f"up to {sampling.max_new_tokens} tokens")
    parts += [] if sampling.thinking_tokens is None else [f"{sampling.thinking_tokens} of them of thinking"]
    parts += [] if sampling.answer_tokens is None else [f"{sampling.answer_tokens} of the answer"]
    if sampling.interruption is not None:
        first, last = sampling.interruption.after
        parts.append(f"interrupted after {first if first == last else f'{first} to {last}'} tokens of thinking")
    ends = [*map(repr, sampling.stop), *(f"token {token}" for token in sampling.stop_token_ids)]
    parts += [f"ended by {' or '.join(ends)}"] if ends else []
    return ", ".join(parts)


MetricKind = Literal["avg", "pass", "maj"]


def parse_metric(text: str) -> tuple[MetricKind, int | None]:
    """`pass@8` as `("pass", 8)`; `avg`, `pass` and `maj` are of all samples, written with None.

    Raises:
        InputError: an unknown metric.
    """
    kind, at, count = text.partition("@")
    if kind == "avg" and not at:
        return "avg", None
    if kind in ("pass", "maj") and (not at or (count.isdecimal() and int(count) > 0)):
        found: MetricKind = "pass" if kind == "pass" else "maj"
        return found, int(count) if at else None
    raise InputError(f"--metric {text}: write avg, pass, maj, pass@K or maj@K")
