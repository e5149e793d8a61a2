"""Environments: useful tokens a second of the embedded engine in several turns, beside the same tokens in one turn.

    python bench/environments.py                       # 2,000 trajectories at once, steps of 50 ms, four turns
    python bench/environments.py --turns 8 --said 64   # more turns, longer observations

Every trajectory samples equally many tokens, in several turns; between two of them the environment takes its time and
then says something. The peer is one turn of as many tokens, those that the environment says included, in an environment
that takes as long before its verdict. The model has random weights and no token that ends a sequence, so that every
turn is as long as it may be. By default every trajectory has a slot, so that all of them are open at once. `ratio` is
the speed with turns over that in one turn (the bar is 0.9).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from common import (
    SHAPES,
    Spent,
    begin,
    emit,
    endless_tokenizer,
    interleaved,
    model_of,
    parser_of,
    policy_of,
    timed,
)  # fmt: skip
from waiting import Timed

from strop.base.imports import allow_module
from strop.base.types import Problem
from strop.data.dataset import Dataset, Example
from strop.data.templates import Plain
from strop.engines.protocol import Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.environments.responder import Play
from strop.environments.tokens import TurnTokens
from strop.evaluation.evaluate import ProblemSet, measure_set
from strop.verifiers.answer import ExactMatch
from strop.verifiers.judges import OpenJudges
from strop.verifiers.protocol import InlineJudge

GROUP = 8


def problems(count: int, prompt: int) -> Dataset:
    """Problems with prompts of so many random tokens."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 256, prompt).astype(np.int32) for _ in range(count)]
    return Dataset("bench", tuple(Example(Problem(str(n), str(n), ""), ids) for n, ids in enumerate(rows)))


def side(given: argparse.Namespace, turns: int) -> Callable[[], Spent]:
    """Sample every trajectory in `turns` turns."""
    budget = given.tokens + (given.turns - 1) * given.said  # both sides read and write as many
    room = budget + 1  # a trajectory that its budget cuts off is not judged
    settings = EngineSettings(slots=given.slots, max_tokens=given.prompt + room)
    tokenizer = endless_tokenizer()
    engine = TorchEngine(policy_of(model_of(given.model, torch.float32, given.device)), tokenizer, settings)
    environment = Timed(
        turns=turns, said=given.said, seconds=given.seconds, max_turns=turns,
        turn_tokens=given.tokens // turns if turns > 1 else budget,
    )  # fmt: skip
    data = problems(given.trajectories // GROUP, given.prompt)
    verifier = ExactMatch()
    play = Play(environment, TurnTokens(tokenizer, Plain()))
    asked = ProblemSet("bench", data, GROUP, Sampling(max_new_tokens=room), verifier, 0, play)
    judges = OpenJudges([(verifier, play, play.responder(InlineJudge(verifier)))])

    def run() -> None:
        found = measure_set(engine, asked, judges)
        assert found.usable.all() and (found.lengths == budget).all()

    return lambda: timed(run, given.device)


def main() -> None:
    """Measure both sides."""
    parser = parser_of(__doc__, ("one turn",))
    parser.add_argument("--model", choices=SHAPES, default="1.8m")
    parser.add_argument("--trajectories", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="that a trajectory samples")
    parser.add_argument("--prompt", type=int, default=32, help="tokens")
    parser.add_argument("--said", type=int, default=16, help="tokens of an observation")
    parser.add_argument("--seconds", type=float, default=0.05, help="of a step of the environment")
    given = parser.parse_args()
    begin(given)
    allow_module("waiting")
    sides = {"ours": side(given, given.turns)}
    if given.peer != "none":
        sides["peer"] = side(given, 1)
    found = interleaved(sides, given.repeats, given.patience)
    tokens = given.trajectories * (given.tokens + (given.turns - 1) * given.said)
    emit(
        "environments", f"{given.trajectories} trajectories of {given.turns} turns, {given.model}, {given.slots} slots",
        tokens / found["ours"].wall, tokens / found["peer"].wall if "peer" in found else None,
        None if given.peer == "none" else given.peer, "tokens/s", None,
        found["peer"].cpu / found["ours"].cpu if "peer" in found else None, runs=found["ours"].runs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
