"""One sample on its way: the tokens that it has, and what a server is asked for next."""

from __future__ import annotations

from typing import Any

import numpy as np

from strop.base.types import ExpertArray, FinishReason, StropError
from strop.engines.protocol import EngineLost
from strop.engines.sampling import stream_key
from strop.engines.slots import Entry, Sequence
from strop.engines.vllm.client import LOWEST, Chunk


class Sample(Sequence):
    """A sample between its request and its report; a server is asked once for each of its phases.

    Attributes:
        request: the name of what the server has been asked for and not answered to its end, or None.
        drawn: how many tokens of that the server has drawn.
        wanted: whether what it goes on to draw is taken.
        reason: why the completion ends, once that is known.
        experts: int16 [tokens, layers, k], the experts that computed the first tokens of prompt and completion in the
            decoder layers of these numbers; None without such layers.
    """

    def __init__(self, entry: Entry, index: int, layers: list[int]) -> None:
        super().__init__(entry, index)
        # vLLM's log-probs are of what top-k and top-p leave, so that with those nothing is known of the whole.
        self._whole = entry.request.sampling.temperature == 0 or not entry.request.sampling.truncates
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.experts: ExpertArray | None = None
        self._layers, self.wanted = layers, True
        self.reason: FinishReason | None = None
        # Of the present request: its first token, how many were asked for, and the latest of its messages.
        self.request: str | None = None
        self._begin = self._asked = self.drawn = 0
        self._last: Chunk | None = None

    def ask(self, request: str, salt: str) -> dict[str, Any]:
        """Begin a request of the server under this name: its body. What is to be injected comes with it."""
        if len(self.token_ids) < self.chain.sampled_from:
            self.token_ids += self.chain.phase.inject
            self.logprobs += [0.0] * len(self.chain.phase.inject)
        self.request, self.wanted, self._last = request, True, None
        self._begin, self.drawn = len(self.token_ids), 0
        self._asked = self.chain.phase_end - self._begin
        asked, sampling = self.entry.request, self.entry.request.sampling
        # The stop ids given are all there are. Messages come rarely, for one costs more than a small model's step; soon
        # enough to end at a stop string, which is looked for on this side; at once where somebody looks on.
        params = {
            "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or 0,
            "seed": stream_key(self.key, self._begin) & (2**63 - 1), "max_tokens": self._asked,
            "stop_token_ids": list(self.entry.stop_ids), "ignore_eos": True, "detokenize": False,
            "logprobs": 0 if self._whole else None,
            "stream_interval": 1 if asked.watched else 16 if sampling.stop else 256,
        }  # fmt: skip
        body = {"request_id": request, "token_ids": self.entry.ids.tolist() + self.token_ids, "cache_salt": salt}
        return {**body, "stream": True, "sampling_params": params}

    def take(self, chunk: Chunk) -> bool:
        """Append what was drawn; whether the server should be told that the rest of its request is not wanted.

        Raises:
            EngineLost: more tokens than were asked for, or another number of log-probs.
            StropError: a log-prob is not finite.
        """
        self._last = chunk
        self.drawn += len(chunk.token_ids)
        logprobs = chunk.logprobs if self._whole else [np.nan] * len(chunk.token_ids)
        if self.drawn > self._asked or len(logprobs) != len(chunk.token_ids):
            sent = f"{self.drawn} tokens, the last {len(chunk.token_ids)} with {len(logprobs)} log-probs"
            raise EngineLost(f"vLLM sent {sent}, where {self._asked} were asked for")
        for token, logprob in zip(chunk.token_ids, logprobs, strict=True):
            if not self.wanted:
                break
            if logprob <= LOWEST:
                said = "the weights have overflowed; go back to an earlier checkpoint with a lower optim.lr"
                raise StropError(f"a sampled log-prob is not finite: {said}")
            self.token_ids.append(token)
            self.logprobs.append(logprob)
            ending = self.chain.ending(self.token_ids)
            if ending is not None:
                self.reason = self.reason or self.chain.follow(self.token_ids, ending)
                self.wanted = self.reason is None and not self.chain.phase.inject
        return not self.wanted and chunk.reason is None

    def end(self) -> None:
        """The stream of a request has ended. Without a reason for the completion to end, there is more to ask for.

        Raises:
            EngineLost: it ended before its time, or its versions or experts are not those of as many tokens.
        """
        self.request, last = None, self._last
        ended = None if last is None else last.reason
        due = (ended == "length" and self.drawn == self._asked) or (ended == "abort" and self.reason == "abort")
        if last is None or ended is None or (self.wanted and not due):
            raise EngineLost(f"vLLM ended a request of {self._asked} tokens by {ended} after {self.drawn}")
        if [start for _, start, _ in last.spans] + [self.drawn] != [0] + [end for _, _, end in last.spans]:
            raise EngineLost(f"vLLM says {last.spans} (version, first, end) of {self.drawn} tokens")
        if len(self.token_ids) > self._begin:
            for version, _, end in last.spans:
                self.chain.drawn_by(version, min(self._begin + end, len(self.token_ids)))
            if self._layers:
                self._record(last.experts)

    def _record(self, experts: ExpertArray | None) -> None:
        """Keep the experts of what this request has computed first; tokens of earlier ones keep theirs."""
        due = len(self.entry.ids) + self._begin + self.drawn - 1  # the last token is not computed
        if experts is None or len(experts) != due:
            raise EngineLost(f"vLLM sent the experts of {0 if experts is None else len(experts)} tokens, not of {due}")
        rows = experts[: len(self.entry.ids) + len(self.token_ids) - 1, self._layers]
        if self.experts is not None:
            rows[: len(self.experts)] = self.experts
        self.experts = rows
