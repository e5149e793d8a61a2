"""An engine that offers the protocol and nothing besides is served too; what it lacks is told."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.serving.running import directly, endpoint, tiny_engine

from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Capabilities, Engine, Health, Request, Scoring, Streaming


class PlainEngine:
    """The protocol's methods of an embedded engine, and no others."""

    def __init__(self) -> None:
        self._engine = tiny_engine()

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @property
    def weight_version(self) -> int:
        return self._engine.weight_version

    @property
    def unfinished(self) -> int:
        return self._engine.unfinished

    def submit(self, request: Request) -> None:
        self._engine.submit(request)

    def step(self) -> list[Completion]:
        return self._engine.step()

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def pause(self, mode: Any = "keep") -> None:
        self._engine.pause(mode)

    def resume(self) -> None:
        self._engine.resume()

    def update_weights(self, source: Any, version: int, kv: Any = "keep") -> None:
        self._engine.update_weights(source, version, kv)

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        return self._engine.verify_weights(probe_ids)

    def health(self) -> Health:
        return self._engine.health()

    def close(self) -> None:
        self._engine.close()


def test_an_engine_of_the_protocol_alone_is_served() -> None:
    engine: Engine = PlainEngine()
    assert not isinstance(engine, Streaming) and not isinstance(engine, Scoring)
    with endpoint(engine=engine) as running:
        body = {"prompt": "3+5=", "max_tokens": 20, "seed": 6}
        wanted = directly("3+5=", 6, max_new_tokens=20)[0]
        whole = running.complete(**body, logprobs=0)["choices"][0]
        assert whole["text"] == wanted.text
        assert whole["logprobs"]["token_logprobs"] == wanted.logprobs.tolist()
        chunks = running.stream("/completions", **body)
        assert [c["text"] for chunk in chunks for c in chunk["choices"]] == [wanted.text]  # it comes in one piece
        scored = running.complete(prompt="3+5=", echo=True, max_tokens=0, logprobs=0)["choices"][0]["logprobs"]
        probed = tiny_engine().verify_weights(wanted.prompt_ids)
        np.testing.assert_allclose(scored["token_logprobs"][1:], probed, atol=1e-5)
        refused = running.post("/completions", **body, logprobs=1)
        assert refused.status_code == 400 and "ask for logprobs=0" in refused.json()["error"]["message"]
