"""Helpers of the engine tests: random prompts, running an engine to its end, the policy's own log-probs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.tiny import byte_tokenizer

from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Engine, Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.policy import PackedInputs, Policy


def engine_of(policy: Policy, **settings: object) -> TorchEngine:
    """An engine of 16 slots unless told otherwise."""
    return TorchEngine(policy, byte_tokenizer(), EngineSettings.model_validate({"slots": 16, **settings}))


def prompts(count: int, seed: int = 0, longest: int = 12) -> list[IntArray]:
    """Ragged random prompts, the first of a single token."""
    rng = np.random.default_rng(seed)
    lengths = [1, *rng.integers(1, longest + 1, count - 1)]
    return [rng.integers(0, 256, length).astype(np.int32) for length in lengths]


def requests(ids: Sequence[IntArray], sampling: Sampling, n: int = 1) -> list[Request]:
    """One request a prompt, named and seeded by its place."""
    return [Request(str(i), prompt, sampling, seed=1000 + i, n=n) for i, prompt in enumerate(ids)]


def drain(engine: Engine) -> list[Completion]:
    """Every completion, in the order they finished."""
    found: list[Completion] = []
    while engine.unfinished:
        found += engine.step()
    return found


def run(engine: Engine, todo: Sequence[Request]) -> dict[tuple[str, int], Completion]:
    """Submit, drain, and index by (request id, sample)."""
    for request in todo:
        engine.submit(request)
    found = drain(engine)
    indexed = {(c.request_id, c.index): c for c in found}
    assert len(indexed) == len(found) == sum(request.n for request in todo)
    return indexed


def policy_logprobs(policy: Policy, completion: Completion, temperature: float = 1.0) -> FloatArray:
    """The policy's log-probs [T] of a completion's tokens."""
    return policy_scores(policy, completion, temperature)[0]


def policy_scores(policy: Policy, completion: Completion, temperature: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """The policy's log-probs and entropies [T] of a completion's tokens."""
    ids = [*completion.prompt_ids.tolist(), *completion.token_ids.tolist()]
    start = len(completion.prompt_ids) - 1
    logprob, entropy = (column.detach().numpy()[start:] for column in policy(PackedInputs.whole([ids]), temperature))
    return logprob, entropy
