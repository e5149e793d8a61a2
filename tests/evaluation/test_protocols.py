"""Protocols: the papers' numbers, and what is asked for explicitly wins."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from strop.base.types import InputError
from strop.data.templates import OpenReasonerZero
from strop.engines.protocol import Interruption, Sampling
from strop.evaluation.benchmarks import benchmark
from strop.evaluation.protocols import PLAIN, PROTOCOLS, changed, in_words, parse_metric, protocol
from strop.verifiers.answer import MultipleChoice
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import AnyOf
from strop.verifiers.math_verifier import MathVerifier


@pytest.mark.parametrize(
    ("name", "sampling", "samples"),
    [
        ("skywork", (1.0, 1.0, 32_768), {"aime24": 32, "aime25": 32, "livecodebench:v5": 4}),
        (
            "archer",
            (0.8, 1.0, 32_768),
            {"aime24": 64, "aime25": 64, "amc23": 64, "math500": 4, "minerva": 8, "olympiadbench": 4,
             "livecodebench:v5": 8, "livecodebench:v6": 16},
        ),
        (
            "opefo",
            (1.0, 0.7, 8192),
            {"aime24": 32, "aime25": 32, "amc23": 32, "math500": 1, "minerva": 1, "olympiadbench": 1},
        ),
        (
            "orz",
            (1.0, 1.0, 8000),
            {"aime24": 16, "aime25": 16, "math500": 16, "gpqa_diamond": 16, "mmlu": 1, "mmlu_pro": 1},
        ),
        (
            "scalerl",
            (1.0, 1.0, 14_336),
            {"aime24": 16, "aime25": 16, "math500": 16, "livecodebench:2025-01-01..2025-06-30": 16},
        ),
    ],
)  # fmt: skip
def test_what_the_papers_say(name: str, sampling: tuple[float, float, int], samples: dict[str, int]) -> None:
    found = protocol(name)
    assert (found.temperature, found.top_p, found.budget) == sampling
    assert {each: found.samples_of(benchmark(each)) for each in found.benchmarks} == samples


def test_archer_reports_pass_at_k_and_orz_has_its_own_prompt() -> None:
    assert protocol("archer").metrics == ("avg", "pass")
    orz = protocol("orz")
    assert orz.template == OpenReasonerZero() and orz.extract == "answer_tag" and "</answer>" in orz.stop
    assert not protocol("opefo").instruct


def test_archer_judges_mathematics_by_simple_rules_or_else_as_mathematics() -> None:
    archer, skywork = protocol("archer"), protocol("skywork")
    assert archer.verifier_of(benchmark("aime24")) == AnyOf()
    assert skywork.verifier_of(benchmark("aime24")) == MathVerifier(extract="any")
    assert archer.verifier_of(benchmark("livecodebench:v5")) == CodeVerifier()
    assert protocol("orz").verifier_of(benchmark("gpqa_diamond")) == MultipleChoice(extract="answer_tag")
    assert changed(archer, samples=2).verifier == AnyOf()


def test_any_window_of_livecodebench_has_the_familys_samples() -> None:
    assert protocol("skywork").samples_of(benchmark("livecodebench:2024-10..2024-12")) == 4
    assert protocol("archer").samples_of(benchmark("gsm8k")) == 4


def test_explicit_flags_override() -> None:
    found = changed(protocol("archer"), 5, ["maj"])
    assert (found.sampling, found.metrics) == (protocol("archer").sampling, ("maj",))
    assert {found.samples_of(benchmark(name)) for name in found.benchmarks} == {5}
    assert changed(PLAIN) == PLAIN


def test_a_sampling_in_words() -> None:
    interrupted = Interruption(after=(26, 32))
    own = Sampling(
        top_p=0.9, max_new_tokens=120, thinking_tokens=40, answer_tokens=5, interruption=interrupted, stop=("!",)
    )  # fmt: skip
    assert in_words(own) == (
        "temperature 1, top-p 0.9, up to 120 tokens, 40 of them of thinking, 5 of the answer, "
        "interrupted after 26 to 32 tokens of thinking, ended by '!'"
    )


def test_values_out_of_range_are_named() -> None:
    with pytest.raises(InputError, match="--metric pass@0"):
        changed(PLAIN, metrics=["pass@0"])
    with pytest.raises(InputError, match="skyworks"):
        protocol("skyworks")


def test_protocols_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        PROTOCOLS["skywork"].temperature = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "metric"),
    [("avg", ("avg", None)), ("pass", ("pass", None)), ("pass@8", ("pass", 8)), ("maj@4", ("maj", 4))],
)
def test_metrics(text: str, metric: tuple[str, int | None]) -> None:
    assert parse_metric(text) == metric


@pytest.mark.parametrize("text", ["", "avg@4", "pass@", "pass@x", "mean"])
def test_no_metric(text: str) -> None:
    with pytest.raises(InputError, match="--metric"):
        parse_metric(text)
