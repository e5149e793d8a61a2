"""A model behind vLLM's server that scores given tokens: a reference policy that is not loaded here.

    teacher = ScoringServer(ChatEndpoint(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-32B"))
    logprob, zeros = teacher(packed, 1.0)                       # as a policy is called, without gradient

Each sequence is one request to /completions for the log-probs of its prompt, which vLLM gives at temperature 1.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from strop.base.endpoint import ChatEndpoint, EndpointClient
from strop.base.types import InputError
from strop.model.policy import PackedInputs

AT_ONCE = 64  # requests


class ScoredToken(NamedTuple):
    """What a server says of one token: its log-prob, and the ids and log-probs of the most probable tokens there."""

    logprob: float
    ids: list[int]
    logprobs: list[float]


class ScoringServer(nn.Module):
    """Scores packed tokens through `endpoint`; its errors are those of `EndpointClient`."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._loop = asyncio.new_event_loop()

    def forward(self, packed: PackedInputs, temperature: float, top: int = 0) -> tuple[Tensor, ...]:
        """Log-prob [M] of each target, float32, and zeros [M]; with `top` as `Policy.forward` has it.

        Raises:
            ValueError: the temperature is not 1.
        """
        if temperature != 1:
            raise ValueError(f"temperature {temperature}: a server scores at temperature 1")
        sequences = [ids.tolist() for ids in packed.token_ids.cpu().split(list(packed.lengths))]
        found = self._loop.run_until_complete(self._ask(sequences, top))
        # The token after position t is predicted by row t; after the last of a sequence there is none.
        places = [place for places in found for place in (*places, ScoredToken(0.0, [0] * top, [0.0] * top))]
        rows = [places[row] for row in packed.rows.tolist()]
        logprob = torch.tensor([place.logprob for place in rows], dtype=torch.float32)
        ids = torch.tensor([place.ids for place in rows], dtype=torch.int64).view(len(rows), top)
        logprobs = torch.tensor([place.logprobs for place in rows], dtype=torch.float32).view(len(rows), top)
        scored = (logprob, torch.zeros_like(logprob)) + ((ids, logprobs) if top else ())
        return tuple(column.to(packed.rows.device) for column in scored)

    async def _ask(self, sequences: list[list[int]], top: int) -> list[list[ScoredToken]]:
        client, slots = EndpointClient(self._endpoint), asyncio.Semaphore(AT_ONCE)

        async def one(ids: list[int]) -> list[ScoredToken]:
            if len(ids) < 2:
                return []
            body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": top}
            async with slots:
                found, _ = await client.post("completions", body, lambda answer: _places(answer, ids, top))
            if found is None:
                url = self._endpoint.url
                raise InputError(f"{url} answers without prompt_logprobs, so it cannot score; serve it with vLLM")
            return found

        try:
            return await asyncio.gather(*map(one, sequences))
        finally:
            await client.close()


def _places(answer: Any, ids: list[int], top: int) -> list[ScoredToken] | None:
    """What is said of the tokens `ids` [L] after the first, L - 1 places; None where the answer says nothing."""
    given = answer["choices"][0].get("prompt_logprobs")
    if given is None:
        return None
    places = []
    for known, token in zip(given[1:], ids[1:], strict=True):
        best = sorted(known, key=lambda name: int(known[name]["rank"]))[:top] if top else []
        logprobs = [float(known[name]["logprob"]) for name in best]
        places.append(ScoredToken(float(known[str(token)]["logprob"]), [int(name) for name in best], logprobs))
    return places
