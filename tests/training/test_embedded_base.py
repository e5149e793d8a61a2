"""The embedded base: made once, kept under its settings, never shown a held-out question."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strop.base.types import Problem
from strop.base.view import SilentView
from strop.data.generators import ChainSum, part_of, solve
from strop.model.files import byte_tokenizer
from strop.model.settings import FreshModel
from strop.training.embedded_base import WORDS, EmbeddedBase, FallibleDemonstrator, demonstrations, embedded_base
from strop.training.settings import SftSettings
from strop.verifiers.answer import Answer

SMALL = EmbeddedBase(
    demonstrations=64,
    model=FreshModel(hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate_size=32),
    training=SftSettings(tokens_per_batch=512, max_length=128, steps=3, tokens_per_microbatch=512),
)


class Stages(SilentView):
    def __init__(self) -> None:
        self.names: list[str] = []

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        self.names.append(name)


def test_it_is_made_once_for_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path))
    view = Stages()
    first = embedded_base(SMALL, view)
    assert embedded_base(SMALL, view) == first and view.names == ["sft"]
    other = embedded_base(SMALL.model_copy(update={"seed": 1}), view)
    assert other != first and view.names == ["sft", "sft"]
    assert sorted(p.name for p in tmp_path.glob("base-*")) == sorted([first.name, other.name])


def test_a_killed_making_leaves_no_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path))

    class Stops(SilentView):
        def advance(self, step: int, metrics: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embedded_base(SMALL, Stops())
    assert {p.name for p in tmp_path.iterdir()} <= {"native"}  # compiled kernels, where no test before made them


def test_demonstrations_are_of_training_questions_only() -> None:
    tokenizer = byte_tokenizer(WORDS)
    shown = demonstrations(SMALL, tokenizer)
    questions = {tokenizer.decode(d.prompt_ids.tolist()) for d in shown}
    assert {part_of(question) for question in questions} == {"train"}
    held_out = ChainSum(part="held_out", count=50, seed=2).load()
    assert questions.isdisjoint(problem.prompt for problem in held_out)
    assert all(d.completion_ids[-1] == tokenizer.eos_token_id for d in shown)


def test_the_demonstrator_is_as_fallible_as_it_says() -> None:
    rng = random.Random(0)
    teacher, question = FallibleDemonstrator(guess=0.5, partial=0.0, slip=0.0), "3+5-2+9-1="
    written = [teacher(question, rng) for _ in range(2000)]
    worked = [text for text in written if "=" in text]
    assert 0.45 < len(worked) / len(written) < 0.55
    assert set(worked) == {"3+5=8 8-2=6 6+9=15 15-1=14 \\boxed{14}"}
    problem = Problem("p", question, str(solve(question)))
    guesses = [Answer()(problem, text, truncated=False).score for text in written if "=" not in text]
    assert 0.05 < sum(guesses) / len(guesses) < 0.15


def test_slips_are_carried_on() -> None:
    rng = random.Random(3)
    always = FallibleDemonstrator(guess=0.0, partial=0.0, slip=1.0)
    text = always("3+5-2=", rng)
    first, second, _ = text.split()
    assert first in ("3+5=7", "3+5=9")
    assert second.startswith(first.split("=")[1] + "-2=")


def test_shares_beyond_one_are_refused() -> None:
    with pytest.raises(ValueError):
        FallibleDemonstrator(guess=0.7, partial=0.5)
