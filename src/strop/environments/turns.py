"""A trajectory of several turns as one completion: sampled tokens exactly as sampled, observations injected between.

    first = Request(…, within(sampling, limit), …)                        # of n samples, as any other
    request = next_turn(key, whole, observation, sampling, limit, seed)   # None if the budget has no room for it
    turn = counted(completion, sampling, limit)                           # the completion of that request, or the first
    whole = joined(key, whole, observation, turn)

Every turn is an ordinary request whose prompt is everything so far, or the chat as the template renders it now
(`Observation.prompt_ids`). Its seed depends on the group's request, the sample and the place in the trajectory, so that
a trajectory can be generated again with the same result.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strop.base.seeds import derive
from strop.base.types import Completion, FloatArray, IntArray, Observation, Restart, VersionSpan
from strop.engines.protocol import Request, Sampling
from strop.verifiers.protocol import Key


def unspoken(request_id: str, index: int, prompt_ids: IntArray) -> Completion:
    """A sample without tokens, because its environment failed first."""
    ids, nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
    injected = np.zeros(0, np.bool_)
    return Completion(request_id, index, prompt_ids, ids, nothing, (), injected, "", "stop")


def next_turn(
    key: Key, whole: Completion | None, observation: Observation, sampling: Sampling, limit: int | None, seed: int
) -> Request | None:
    """The request of the turn after `observation`.

    Args:
        key: the group's request, and the sample.
        whole: the trajectory so far; None if the observation is its prompt.
        observation: the environment's reply.
        sampling: of the run; its `max_new_tokens` is the budget of the whole trajectory, injected tokens included.
        limit: token limit of one turn, or None.
        seed: seed of the group's request.

    Returns:
        A request of one sample; None if the budget has no room for the observation and another token.
    """
    prompt_ids, length, left = observation.prompt_ids, 0, sampling.max_new_tokens
    if whole is None:
        prompt_ids = observation.token_ids
    else:
        length = len(whole.token_ids) + len(observation.token_ids)
        if prompt_ids is None:
            before, start, _ = whole.sequences[-1]
            prompt_ids = np.concatenate([before, whole.token_ids[start:], observation.token_ids]).astype(np.int32)
        # A rewritten chat may be longer than the tokens so far.
        left -= max(length, len(prompt_ids) - len(whole.prompt_ids))
    if left < 1:
        return None
    name = f"{key[0]}/{key[1]}"
    own = derive(seed, "turn", key[1], length)
    return Request(
        f"{name}@{length}", prompt_ids, within(within(sampling, left), limit), own, keeps=True, continues=name
    )


def within(sampling: Sampling, limit: int | None) -> Sampling:
    """The sampling with at most `limit` tokens, without an interruption that may not fit."""
    if limit is None or limit >= sampling.max_new_tokens:
        return sampling
    shorter = sampling.model_copy(update={"max_new_tokens": limit})
    if sampling.interruption is None:
        return shorter
    try:
        shorter.fits(len(sampling.interruption.phrase.encode()))  # a token is a byte at least
    except ValueError:
        return shorter.model_copy(update={"interruption": None})
    return shorter


def counted(turn: Completion, sampling: Sampling, limit: int | None) -> Completion:
    """The turn; if the limit of turns ended it, it does not count as truncated."""
    own = limit is not None and limit < sampling.max_new_tokens and len(turn.token_ids) == limit
    return replace(turn, finish_reason="stop") if own and turn.truncated else turn


def out_of_room(whole: Completion) -> tuple[Completion, Completion]:
    """The trajectory ended by its budget, and an empty last turn."""
    ended = replace(whole, finish_reason="length", last_turn_at=len(whole.text))
    nothing = np.zeros(0, np.float32)
    turn = replace(
        ended, token_ids=whole.token_ids[:0], logprobs=nothing, versions=(), injected=whole.injected[:0], text="",
        entropies=None, last_turn_at=0,
    )  # fmt: skip
    return ended, turn


def joined(key: Key, before: Completion | None, observation: Observation, turn: Completion) -> Completion:
    """The trajectory `before`, the environment's reply and the next turn as one completion of T tokens.

    It is sample `key[1]` of request `key[0]`. Without `before`, the turn is the first one.
    """
    if before is None:
        return replace(turn, request_id=key[0], index=key[1])
    start = len(before.token_ids)
    first = start + len(observation.token_ids)

    def column(old: FloatArray, new: FloatArray) -> FloatArray:
        return np.concatenate([old, np.zeros(first - start, np.float32), new])

    entropies = None
    if before.entropies is not None and turn.entropies is not None:
        entropies = column(before.entropies, turn.entropies)
    interrupted_at = before.interrupted_at
    if interrupted_at is None and turn.interrupted_at is not None:
        interrupted_at = first + turn.interrupted_at
    restarts = before.restarts
    if observation.prompt_ids is not None:
        restarts = (*restarts, Restart(first, observation.prompt_ids))
    return replace(
        before,
        token_ids=np.concatenate([before.token_ids, observation.token_ids, turn.token_ids]).astype(np.int32),
        logprobs=column(before.logprobs, turn.logprobs),
        versions=_joined_spans(before.versions, start, first, turn.versions),
        injected=np.concatenate([before.injected, np.ones(first - start, np.bool_), turn.injected]),
        text=before.text + observation.text + turn.text,
        finish_reason=turn.finish_reason,
        interrupted_at=interrupted_at,
        entropies=entropies,
        routed_experts=None if restarts else turn.routed_experts,  # its prompt is everything before it
        turns=(*before.turns, first),
        restarts=restarts,
        last_turn_at=len(before.text) + len(observation.text),
    )


def _joined_spans(
    before: tuple[VersionSpan, ...], start: int, first: int, turn: tuple[VersionSpan, ...]
) -> tuple[VersionSpan, ...]:
    """The spans of both without a gap; an observation [start, first) joins the turn after it, if that has tokens."""
    later = [VersionSpan(version, begin + first, end + first) for version, begin, end in turn]
    if later:
        later[0] = later[0]._replace(start=start)
    elif before and first > start:
        later = [VersionSpan(before[-1].version, start, first)]
    if before and later and before[-1].version == later[0].version:
        return (*before[:-1], later[0]._replace(start=before[-1].start), *later[1:])
    return (*before, *later)
