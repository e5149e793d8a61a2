"""One sample on its way: the tokens that it has, and what a server is asked for next."""

from __future__ import annotations

from typing import Any

import numpy as np

from strop.base.types import FinishReason, StropError
from strop.engines.protocol import EngineLost
from strop.engines.sampling import stream_key
from strop.engines.slots import Entry, Sequence
from strop.engines.vllm.client import LOWEST, Chunk

_SEED_MASK = (1 << 63) - 1
# Tokens between two messages of a stream: rarely, for a message costs more than a small model's step; soon enough to
# end at a stop string, which is looked for on this side; at once where somebody looks on.
_SELDOM, _SOON, _AT_ONCE = 256, 16, 1


class Sample(Sequence):
    """A sample between its request and its report; a server is asked once for each of its phases.

    Attributes:
        request: the name of what the server has been asked for and not answered to its end, or None.
        drawn: how many tokens of that the server has drawn.
        cancelled: nobody wants it any more.
        restarting: what the server has been asked for is to be asked again, under other weights.
        knows_logprobs: vLLM's are of what top-k and top-p leave, so that with those nothing is known of the whole.
    """

    def __init__(self, entry: Entry, index: int) -> None:
        super().__init__(entry, index)
        sampling = entry.request.sampling
        self.knows_logprobs = sampling.temperature == 0 or not sampling.truncates
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.request: str | None = None
        self.cancelled = self.restarting = False
        # Of the present request: its first token, how many were asked for, and the latest of its messages.
        self._begin = self._asked = self.drawn = 0
        self._last: Chunk | None = None
        self._wanted = True  # what else is drawn for it
        self._reason: FinishReason | None = None

    def ask(self, request: str, salt: str) -> dict[str, Any]:
        """Begin a request of the server under this name: its body. What is to be injected comes with it."""
        if len(self.token_ids) < self.chain.sampled_from:
            self.token_ids += self.chain.phase.inject
            self.logprobs += [0.0] * len(self.chain.phase.inject)
        self.request, self._wanted, self._last = request, True, None
        self._begin, self.drawn = len(self.token_ids), 0
        self._asked = self.chain.phase_end - self._begin
        asked, sampling = self.entry.request, self.entry.request.sampling
        # The stop ids given are all there are.
        params = {
            "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or 0,
            "seed": stream_key(self.key, self._begin) & _SEED_MASK, "max_tokens": self._asked,
            "stop_token_ids": list(self.entry.stop_ids), "ignore_eos": True, "detokenize": False,
            "logprobs": 0 if self.knows_logprobs else None,
            "stream_interval": _AT_ONCE if asked.watched else _SOON if sampling.stop else _SELDOM,
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
        logprobs = chunk.logprobs if self.knows_logprobs else [np.nan] * len(chunk.token_ids)
        if self.drawn > self._asked or len(logprobs) != len(chunk.token_ids):
            sent = f"{self.drawn} tokens, the last {len(chunk.token_ids)} with {len(logprobs)} log-probs"
            raise EngineLost(f"vLLM sent {sent}, where {self._asked} were asked for")
        if self.restarting or not self._wanted:
            return False
        for token, logprob in zip(chunk.token_ids, logprobs, strict=True):
            if logprob <= LOWEST:
                said = "the weights have overflowed; go back to an earlier checkpoint with a lower optim.lr"
                raise StropError(f"a sampled log-prob is not finite: {said}")
            self.token_ids.append(token)
            self.logprobs.append(logprob)
            ending = self.chain.ending(self.token_ids)
            if ending is not None:
                self._reason = self.chain.follow(self.token_ids, ending)
                if self._reason is not None or self.chain.phase.inject:
                    self._wanted = False
                    return chunk.reason is None
        return False

    def end(self) -> FinishReason | None:
        """The stream of a request has ended: why the completion does, or None: there is more to ask for.

        Raises:
            EngineLost: it ended before its time, or its versions are not those of as many tokens.
        """
        self.request, last = None, self._last
        if self.restarting and last is not None:
            self.restarting = False
            return None
        ended, spans = (None, []) if last is None else (last.reason, last.spans)
        stopped = bool(self.token_ids) and self.token_ids[-1] in self.entry.stop_ids
        fair = {"length": self.drawn == self._asked, "stop": stopped, "abort": self.cancelled}
        if ended is None or (self._wanted and not fair.get(ended)):
            raise EngineLost(f"vLLM ended a request of {self._asked} tokens by {ended} after {self.drawn}")
        if [start for _, start, _ in spans] + [self.drawn] != [0] + [end for _, _, end in spans]:
            raise EngineLost(f"vLLM says {spans} (version, first, end) of {self.drawn} tokens")
        for version, _, end in spans:
            self.chain.drawn_by(version, min(self._begin + end, len(self.token_ids)))
        return "abort" if self._wanted and ended == "abort" else self._reason
