"""A real endpoint on loopback for tests: a small random model behind real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from tests.engines.runs import run
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.types import Completion, IntArray
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.serving import ServeLimits
from strop.serving.driver import ServedEngine
from strop.serving.http import listen
from strop.serving.server import ModelServer, Served

VERSION = 7  # of the weights
ARGUED = "{% if enable_thinking is defined %}thinking: {{ enable_thinking }}\n{% endif %}"


@dataclass(frozen=True)
class Running:
    """An endpoint, and a client of it."""

    server: ModelServer
    engine: ServedEngine
    url: str
    client: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def complete(self, **body: Any) -> dict[str, Any]:
        """A completion that must succeed."""
        answer = self.post("/completions", **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def chat(self, text: str, **body: Any) -> dict[str, Any]:
        answer = self.post("/chat/completions", messages=[{"role": "user", "content": text}], **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream, which must end as it should."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def health(self) -> dict[str, Any]:
        return dict(httpx.get(self.url.replace("/v1", "/health"), timeout=60).json())


def tiny_engine(**settings: Any) -> TorchEngine:
    return TorchEngine(
        tiny_qwen3(), byte_tokenizer(), EngineSettings.model_validate({"slots": 16, **settings}), VERSION
    )


@contextmanager
def endpoint(
    key: str | None = None,
    limits: ServeLimits | None = None,
    template: bool = True,
    engine: ServedEngine | None = None,
    template_arguments: Mapping[str, Any] | None = None,
    name: str = "tiny",
) -> Iterator[Running]:
    engine = engine or tiny_engine()
    tokenizer = byte_tokenizer(chat=template)
    if template_arguments is not None:
        tokenizer.chat_template = ARGUED + str(tokenizer.chat_template)
    given = template_arguments or {}
    served = Served(name, limits or ServeLimits(grace=1.0), key, local_only=True, template_arguments=given)
    server = ModelServer(engine, tokenizer, served, listen("127.0.0.1", 0, key, False))
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with (
        server.in_thread() as url,
        httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client,
    ):
        yield Running(server, engine, url, client)


def ids_of(text: str) -> IntArray:
    return np.array(byte_tokenizer().encode(text), np.int32)


def directly(text: str, seed: int, n: int = 1, **sampling: Any) -> list[Completion]:
    """The completions of another engine without any HTTP."""
    found = run(tiny_engine(), [Request("r", ids_of(text), Sampling.model_validate(sampling), seed, n)])
    return [found["r", index] for index in range(n)]
