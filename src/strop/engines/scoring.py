"""A model behind vLLM's server that scores given tokens: a reference policy that is not loaded here.

    teacher = ScoringServer(ChatEndpoint(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-32B"))
    logprob, zeros = teacher(packed, 1.0)                       # as a policy is called, without gradient

Each sequence is one request to /completions for the log-probs of its prompt, which vLLM gives at temperature 1.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from torch import Tensor, nn

from strop.base.types import InputError
from strop.engines.endpoint import ChatEndpoint, EndpointClient
from strop.model.policy import PackedInputs

AT_ONCE = 64  # requests


class ScoringServer(nn.Module):
    """Scores packed tokens through `endpoint`; its errors are those of `EndpointClient`."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._loop = asyncio.new_event_loop()

    def forward(self, packed: PackedInputs, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-prob [M] of each target, float32, and zeros [M].

        Raises:
            ValueError: the temperature is not 1.
        """
        if temperature != 1:
            raise ValueError(f"temperature {temperature}: a server scores at temperature 1")
        sequences = [ids.tolist() for ids in packed.token_ids.cpu().split(list(packed.lengths))]
        found = self._loop.run_until_complete(self._ask(sequences))
        # The token after position t is predicted by row t; after the last of a sequence there is none.
        column = torch.tensor([value for values in found for value in (*values, 0.0)], dtype=torch.float32)
        logprob = column[packed.rows.cpu()].to(packed.rows.device)
        return logprob, torch.zeros_like(logprob)

    async def _ask(self, sequences: list[list[int]]) -> list[list[float]]:
        client, slots = EndpointClient(self._endpoint), asyncio.Semaphore(AT_ONCE)

        async def one(ids: list[int]) -> list[float]:
            if len(ids) < 2:
                return []
            body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
            async with slots:
                found, _ = await client.post("completions", body, lambda answer: _logprobs(answer, ids))
            if found is None:
                url = self._endpoint.url
                raise InputError(f"{url} answers without prompt_logprobs, so it cannot score; serve it with vLLM")
            return found

        try:
            return await asyncio.gather(*map(one, sequences))
        finally:
            await client.close()


def _logprobs(answer: Any, ids: list[int]) -> list[float] | None:
    """The log-probs [L - 1] of the tokens `ids` [L] after the first; None where the answer has none at all."""
    places = answer["choices"][0].get("prompt_logprobs")
    if places is None:
        return None
    return [float(place[str(token)]["logprob"]) for place, token in zip(places[1:], ids[1:], strict=True)]
