"""Completions from early and late in a run, token by token with the values that generation recorded."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.algorithms.statistics import entropy_flow
from strop.base.rollout_table import injected_mask
from strop.base.types import FloatArray
from strop.model.endings import Detokenizer, text_of
from strop.model.files import byte_tokenizer, load_tokenizer
from strop.report.runs import RunData
from strop.training.embedded_base import named_base

QUANTILE = 0.8  # tokens at or above it reason (Archer, Eq. 4 and 5)
SHOWN_TOKENS = 600  # most of a completion that is shown


class ShownToken(NamedTuple):
    """A token of a completion; values that are not known are None.

    Attributes:
        text: that the token adds.
        logprob: of the model that sampled it, nats.
        entropy: of the distribution it was drawn from, nats.
        flow: ΔH of a policy-gradient step on it (see `flow_of`).
        reasoning: at or above the 80 % quantile of its response's entropies.
        injected: forced into the context, not sampled.
        turn: the turn that it was sampled in, or that an environment answered with it; None if there is only one.
        said: whether it comes from an environment; other injected tokens belong to an interruption.
    """

    text: str
    logprob: float | None
    entropy: float | None
    flow: float | None
    reasoning: bool
    injected: bool
    turn: int | None = None
    said: bool = False


@dataclass(frozen=True, eq=False)
class ShownCompletion:
    """A completion with the prompt as the model saw it, verdict and first tokens; `length` counts all tokens."""

    prompt: str
    reference: str
    label: str
    verdict: str
    finish: str
    tokens: Sequence[ShownToken]
    length: int
    turns: int = 1


def recorded_answers(run: RunData, tokenizer: PreTrainedTokenizerBase, count: int) -> list[ShownCompletion]:
    """About `count` rollouts, half of them from the first and half from the last recorded step."""
    steps = run.folder.rollout_steps()
    return [
        ShownCompletion(
            prompt_of(tokenizer, row), row["reference"], f"Step {step}", row["status"], row["finish_reason"],
            shown_tokens(tokenizer, row), len(row["token_ids"]), len(row["turns"]) + 1,
        )
        for step in dict.fromkeys((*steps[:1], *steps[-1:]))
        for row in chosen(run.folder.read_rollouts(step), max(1, count // 2))
    ]  # fmt: skip


def chosen(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` rollouts of a step: of a prompt a right and a wrong one, from groups that have both if there are.

    The groups are drawn with a fixed seed. Of the rollouts of a prompt that are alike, the one with the most turns.
    """
    of_ticket: dict[int, dict[bool, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["token_ids"]:
            outcomes = of_ticket.setdefault(row["ticket"], {})
            outcomes.setdefault(row["status"] == "correct", []).append(row)
    tickets = random.Random(0).sample(sorted(of_ticket), len(of_ticket))
    tickets.sort(key=lambda ticket: -len(of_ticket[ticket]))
    found = [max(alike, key=lambda one: len(one["turns"])) for each in tickets for alike in of_ticket[each].values()]
    return sorted(found[:most], key=lambda row: (row["ticket"], row["status"] != "correct"))


def prompt_of(tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Any]) -> str:
    """The prompt of a row of the rollout table as the model saw it, template and special tokens included."""
    return text_of(tokenizer, row["prompt_ids"])


def shown_tokens(tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Any]) -> list[ShownToken]:
    """The first tokens of a row of the rollout table, with their recorded values."""
    ids = [int(token) for token in row["token_ids"][:SHOWN_TOKENS]]
    forced = injected(row)
    logprob = np.asarray(row["logprobs"], np.float32)
    entropy = None if row["entropies"] is None else np.asarray(row["entropies"], np.float32)
    flow = None if entropy is None else flow_of(logprob, entropy, row["status"])
    reasoning: NDArray[np.bool_] = np.zeros(len(logprob), np.bool_)
    if entropy is not None and not forced.all():
        reasoning = ~forced & (entropy >= np.quantile(entropy[~forced], QUANTILE))

    def at(column: FloatArray | None, place: int) -> float | None:
        return None if column is None or forced[place] else float(column[place])

    turn, said = turns_of(row)
    return [
        ShownToken(
            text, at(logprob, place), at(entropy, place), at(flow, place), bool(reasoning[place]), bool(forced[place]),
            int(turn[place]) if row["turns"] else None, bool(said[place]),
        )
        for place, text in enumerate(pieces(tokenizer, ids))
    ]  # fmt: skip


def injected(row: Mapping[str, Any]) -> NDArray[np.bool_]:
    """A mask of the completion tokens of a rollout row that were forced into the context, bool [T]."""
    return injected_mask(row["injected"], len(row["token_ids"]))


def turns_of(row: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The turn of each token, int64 [T], and whether an environment said it, bool [T].

    The words of an environment stand before a turn and belong to the turn that they answer.
    """
    length = len(row["token_ids"])
    turn, said = np.zeros(length, np.int64), np.zeros(length, np.bool_)
    for start in row["turns"]:
        turn[start:] += 1
        for span in row["injected"]:
            if span["start"] < start <= span["end"]:
                said[span["start"] : start] = True
    return turn, said


def flow_of(logprob: FloatArray, entropy: FloatArray, verdict: str) -> FloatArray:
    """ΔH of each token (OPEFO, Eq. 6) for an advantage of 1 if the completion is correct, else −1.

    The sign is that of the group's advantage wherever the rewards of the group differ.
    """
    advantage = 1.0 if verdict == "correct" else -1.0
    found = entropy_flow(torch.full((len(logprob),), advantage), torch.from_numpy(logprob), torch.from_numpy(entropy))
    flow: FloatArray = found.numpy().astype(np.float32)
    return flow


def tokenizer_of(run: RunData) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the run's exported model, or of the one it began with; None where neither is on this machine."""
    model = None if run.config is None else run.config.model
    places = [str(run.folder.model)] if run.folder.model.is_dir() else []
    if model is not None:
        base = None if model.path is None else named_base(model.path, 0)
        if model.path is None or base is not None:
            return byte_tokenizer(() if base is None else base.words)
        places.append(str(Path(model.path).expanduser()))
    for place in places:
        try:
            return load_tokenizer(place, cached_only=True)
        except (OSError, ValueError):
            continue  # the next place; a page without tokens is written where there is none
    return None


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to the ones before it.

    Where several tokens make one character, the last of them has it and the others have none.
    """
    stream = Detokenizer(partial(text_of, tokenizer))
    found = [stream.push([one]) for one in ids]
    return [*found[:-1], found[-1] + stream.finish()] if found else []
