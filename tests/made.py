"""Completions, rollouts and groups made by hand for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.base.types import Completion, FinishReason, Group, Problem, Rollout, Verdict, VersionSpan
from strop_verify.verdict import Status

PROBLEM = Problem(id="p", prompt="1+1=", reference="2")


def completion(
    length: int = 3,
    finish: FinishReason = "stop",
    versions: Sequence[tuple[int, int, int]] | None = None,
    injected: Sequence[int] = (),
    request_id: str = "r",
    index: int = 0,
) -> Completion:
    """Token ids 10, 11, …; log-probs −0.1, −0.2, …; a prompt of two tokens."""
    forced = np.isin(np.arange(length), injected)
    logprobs = np.where(forced, 0.0, -0.1 * (np.arange(length) + 1)).astype(np.float32)
    spans = versions or [(0, 0, length)]
    return Completion(
        request_id=request_id,
        index=index,
        prompt_ids=np.array([5, 6], dtype=np.int32),
        token_ids=np.arange(10, 10 + length, dtype=np.int32),
        logprobs=logprobs,
        versions=tuple(VersionSpan(*span) for span in spans),
        injected=forced,
        text="x",
        finish_reason=finish,
    )


def rollout(score: float, status: Status | None = None, finish: FinishReason = "stop", length: int = 3) -> Rollout:
    """A rollout whose reward is its score."""
    found = status or (Status.CORRECT if score == 1 else Status.WRONG)
    return Rollout(PROBLEM, completion(length, finish), Verdict(score, found), score)


def group(ticket: int, *rollouts: Rollout) -> Group:
    """A group of these rollouts."""
    return Group(ticket, PROBLEM, rollouts)
