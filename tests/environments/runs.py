"""Runs in environments for tests, and what their engines sampled and their trainers learned from."""

from __future__ import annotations

import os
import pickle
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.environments.players import chat_tokenizer
from tests.runs import small_config

from strop.base.imports import allow_module
from strop.base.sample import Sample
from strop.base.types import Completion
from strop.config.schema import RunConfig
from strop.engines.protocol import Request
from strop.engines.torch.engine import TorchEngine
from strop.training.samples import make_samples

PLAYERS = "tests.environments.players"
STOPS = f"sampling.stop_token_ids={list(range(0, 256, 12))}"  # a random model would go on for ever
CHATTY = (
    f"environment.piece={PLAYERS}:Chatty", STOPS, "sampling.max_new_tokens=140", "model.fresh.max_positions=512",
    "data.max_prompt_tokens=200", "data.template=Auto", "algorithm.selection.zero_variance=keep",
)  # fmt: skip


def chatty(*sets: str) -> RunConfig:
    allow_module(PLAYERS)
    return small_config(*CHATTY, *sets)


Played = dict[tuple[int, int], list[Completion]]


def record(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[[], Played]:
    """What gives the turns that engines of this process and of forked ones sample from now on, see `turns_of`."""
    step = TorchEngine.step

    def recorded(engine: TorchEngine) -> list[Completion]:
        completions = step(engine)
        with (folder / f"turns-{os.getpid()}").open("ab") as file:
            file.writelines(pickle.dumps(one) for one in completions)
        return completions

    monkeypatch.setattr(TorchEngine, "step", recorded)
    return lambda: turns_of([one for file in sorted(folder.glob("turns-*")) for one in _unpickled(file)])


def _unpickled(path: Path) -> Iterator[Completion]:
    with path.open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)


def dies_in_a_later_turn(monkeypatch: pytest.MonkeyPatch, died: Path) -> None:
    """Have the first generator process that is to sample a later turn end itself, and leave a file."""
    submit, driver = TorchEngine.submit, os.getpid()

    def submit_or_die(engine: TorchEngine, request: Request) -> None:
        if "/" in request.id and os.getpid() != driver and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        submit(engine, request)

    monkeypatch.setattr(TorchEngine, "submit", submit_or_die)


def turns_of(found: Sequence[Completion]) -> Played:
    """The turns of each trajectory that is trained, by ticket and sample: of the last attempt at its group."""
    turns: dict[tuple[int, int], dict[int, dict[str, Completion]]] = defaultdict(lambda: defaultdict(dict))
    for one in found:
        if one.request_id[0].isdecimal() and one.finish_reason != "abort":  # no evaluation, no server's request
            name, _, rest = one.request_id.partition("/")
            ticket, _, attempt = name.partition(".")
            turns[int(ticket), int(rest.partition("@")[0] or one.index)][int(attempt)][one.request_id] = one
    return {key: list(attempts[max(attempts)].values()) for key, attempts in turns.items()}


def speak(monkeypatch: pytest.MonkeyPatch, template: str | None) -> None:
    """Have models with the chat template of `template`."""
    if template is not None:
        for place in ("strop.model.policy", "strop.training.embedded_base"):
            monkeypatch.setattr(f"{place}.byte_tokenizer", lambda *specials: chat_tokenizer(template))


def injected(row: dict[str, Any]) -> np.ndarray[Any, Any]:
    mask = np.zeros(len(row["token_ids"]), np.bool_)
    for span in row["injected"]:
        mask[span["start"] : span["end"]] = True
    return mask


def record_samples(monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """Every sample that is trained from now on."""
    found: list[Sample] = []

    def recorded(*arguments: Any) -> list[Sample]:
        made = make_samples(*arguments)
        found.extend(made)
        return made

    monkeypatch.setattr("strop.training.learner.make_samples", recorded)
    return found
