"""A client of vLLM's HTTP interface: requests and answers as JSON, a sequence as a stream of chunks.

The pool of httpx compares all pairs of connections, which takes seconds for 256 requests. `Connections` lends each
request one connection instead.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from strop.base.types import ExpertArray, InputError, IntArray, StropError
from strop.engines.protocol import EngineLost, Scores


class Connections(httpx.AsyncBaseTransport):
    """Any number of connections to one server, over the socket file `socket` where one is named.

    A connection that has been at rest for `rest_seconds` is not used again.
    """

    def __init__(self, socket: Path | None, rest_seconds: float) -> None:
        self._socket, self._limits = socket, httpx.Limits(max_connections=1, keepalive_expiry=rest_seconds)
        self._context: ssl.SSLContext | bool = httpx.create_ssl_context() if socket is None else False
        self._idle: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer to a request; its connection is lent again once the answer is closed.

        A server may close a connection at rest just when it is lent again: then the request is made again, over a new
        connection.
        """
        rested = bool(self._idle)
        one = self._idle.pop() if rested else self._new()
        while True:
            try:
                answer = await one.handle_async_request(request)
                break
            except BaseException as error:
                await one.aclose()
                if not rested or not isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
                    raise
            one, rested = self._new(), False
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.stream = _Lent(answer.stream, one, self._idle)
        return answer

    async def aclose(self) -> None:
        """Close those that are at rest."""
        while self._idle:
            await self._idle.pop().aclose()

    def _new(self) -> httpx.AsyncHTTPTransport:
        uds = None if self._socket is None else str(self._socket)
        return httpx.AsyncHTTPTransport(verify=self._context, uds=uds, limits=self._limits)


class _Lent(httpx.AsyncByteStream):
    """The body of an answer, with the connection that it comes over and the list that gets it back."""

    def __init__(
        self, body: httpx.AsyncByteStream, one: httpx.AsyncHTTPTransport, idle: list[httpx.AsyncHTTPTransport]
    ) -> None:
        self._body, self._one, self._idle = body, one, idle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        """Give the connection back; what is left of the body is not read."""
        await self._body.aclose()
        self._idle.append(self._one)


Json = dict[str, Any]
GENERATE = "/inference/v1/generate"
LOWEST = -9999.0  # what vLLM sends for a log-prob that is not finite


@dataclass(frozen=True)
class Chunk:
    """Tokens that a request drew, and their log-probs where they were asked for.

    The last one has a `reason` (stop, length or abort) and `spans`: which version drew what, as (version, start, end).
    A server that records experts sends with it those of every computed token, int16 [tokens, decoder layers, k].
    """

    token_ids: list[int]
    logprobs: list[float]
    reason: str | None
    spans: list[tuple[int, int, int]]
    experts: ExpertArray | None


class Client:
    """A server at the URL `name`, or behind the socket file `socket`; messages call it `name`.

    Raises, from every coroutine:
        EngineLost: the server cannot be reached, does not answer within `seconds`, or answers with its own error
            (5xx) or with what cannot be read.
        StropError: it refuses what it is asked.
    """

    def __init__(self, name: str, socket: Path | None, key: str | None, seconds: float) -> None:
        transport = Connections(socket, rest_seconds=2.0)  # the server closes those that have been so for 5 seconds
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._name, url = name, name if socket is None else "http://localhost"
        self._http = httpx.AsyncClient(base_url=url, transport=transport, headers=headers, timeout=seconds)
        self._patient = httpx.Timeout(seconds, read=None)  # the engine ends silent streams

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ready(self) -> bool:
        """Whether the server can be reached and serves."""
        with suppress(httpx.TransportError):
            return (await self._http.get("/health", timeout=5.0)).status_code == 200
        return False

    async def ask(self, path: str, body: Json | None = None, method: str = "POST", **parameters: str) -> Json:
        """The server's answer to a request with a JSON body, or with parameters in its URL."""
        with self._understood(path):
            answer = await self._http.request(method, path, json=body, params=parameters)
            await self._refuse(answer, path)
            return dict(answer.json() if answer.content else {})

    async def abort(self, names: list[str]) -> None:
        """End requests; their streams end with the reason `abort`. Unknown ones are ignored."""
        await self.ask("/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-{name}" for name in names]})

    async def generate(self, body: Json) -> AsyncIterator[Chunk]:
        """Draw a sequence."""
        with self._understood(GENERATE):
            async with self._http.stream("POST", GENERATE, json=body, timeout=self._patient) as answer:
                await self._refuse(answer, GENERATE)
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield _chunk(json.loads(line.removeprefix("data: ")))

    async def score(self, sequences: Sequence[IntArray], top: int) -> list[Scores]:
        """Log-probs of the tokens of each sequence [L] at temperature 1, with the `top` best in each place."""
        return list(await asyncio.gather(*(self._scored(ids.tolist(), top) for ids in sequences)))

    async def _scored(self, ids: list[int], top: int) -> Scores:
        params = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": top, "detokenize": False, "ignore_eos": True}
        found = await self.ask(GENERATE, {"token_ids": ids, "sampling_params": params})
        with self._understood(GENERATE):
            places = found["prompt_logprobs"][1:]
            own = [place[str(token)]["logprob"] for place, token in zip(places, ids[1:], strict=True)]
            ranked = [sorted((one["rank"], int(token), one["logprob"]) for token, one in p.items()) for p in places]
            best = np.array([place[:top] for place in ranked]).reshape(len(own), top, 3)
            return Scores(np.array(own, np.float32), best[..., 1].astype(np.int32), best[..., 2].astype(np.float32))

    async def refuse_unfit(self, max_tokens: int, experts: bool) -> None:
        """Raise `InputError` for a server, not of our making, with other log-probs, shorter sequences or no experts."""
        found = await self.ask("/server_info", method="GET", config_format="json")
        with self._understood("/server_info"):
            model, records = found["vllm_config"]["model_config"], found["vllm_config"]["aux_output_config"]
            mode, longest = model["logprobs_mode"], model["max_model_len"]
            unrecorded = experts and not records["enable_return_routed_experts"]
        if mode != "processed_logprobs" or longest < max_tokens:
            wanted = f"start it with processed_logprobs and {max_tokens} or more, or lower engine.max_tokens"
            raise InputError(f"{self._name} has --logprobs-mode {mode} and --max-model-len {longest}: {wanted}")
        if unrecorded:
            raise InputError(f"{self._name}: model.replay_routing needs a server with --enable-return-routed-experts")

    async def _refuse(self, answer: httpx.Response, path: str) -> None:
        if answer.status_code != 200:
            await answer.aread()
            said = f"{self._name} answered {answer.status_code} to {path}: {' '.join(answer.text.split())[:300]}"
            raise EngineLost(said) if answer.status_code >= 500 else StropError(said)

    @contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """Turn failures of the connection, and answers of another shape than we know, into `EngineLost`."""
        try:
            yield
        except httpx.TransportError as error:
            raise EngineLost(f"{self._name} did not answer {path} ({type(error).__name__})") from error
        except (ValueError, LookupError, TypeError) as error:
            raise EngineLost(f"{self._name} answered {path} with what cannot be read ({error!r})") from error


def _chunk(found: Json) -> Chunk:
    """A message of a stream. Raises `KeyError` or `ValueError` for one that is no chunk, such as an error's."""
    (choice,) = found["choices"]
    logprobs, spans, experts = choice["logprobs"], choice["weight_versions"], choice["routed_experts"]
    return Chunk(
        choice["token_ids"] or [],
        [] if logprobs is None else [one["logprob"] for one in logprobs["content"]],
        choice["finish_reason"],
        [(int(span["version"]), span["start"], span["end"]) for span in spans or ()],
        None if experts is None else np.load(io.BytesIO(base64.b64decode(experts))).astype(np.int16),
    )
