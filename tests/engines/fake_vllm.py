"""A server with vLLM's interface and nothing behind it, for what a real one cannot be made to do on purpose.

It answers over real HTTP as the real one was seen to: random tokens, or whatever the test has it do wrong.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Choice = dict[str, Any]


class FakeVllm(ThreadingHTTPServer):
    """What tests say and see.

    Attributes:
        wrong: what it does wrong, of: error, hang, short, long, no versions, unfinished, gap, abort, gibberish.
        after: how many requests of a sequence are answered well before that.
        asked: the names of parameters and fields that each endpoint, as (method, path), was asked with.
        sampling: those of sampling.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wrong: str | None = None
        self.after = 0
        self.mode, self.longest = "processed_logprobs", 512
        self.version = "default"
        self.key: str | None = None
        self.going = threading.Event()
        self.going.set()
        self.aborted: set[str] = set()
        self.asked: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.sampling: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeVllm

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        path = self.asked()
        if path == "/server_info":
            model = {"logprobs_mode": self.server.mode, "max_model_len": self.server.longest}
            self.answer({"vllm_config": {"model_config": model}})
        else:
            self.answer({})

    def do_POST(self) -> None:
        fake, path = self.server, self.asked()
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(text) if text else {}
        fake.asked[self.command, path] |= body.keys()
        if fake.key is not None and self.headers.get("Authorization") != f"Bearer {fake.key}":
            return self.answer({"error": "Unauthorized"}, 401)
        if path == "/pause":
            fake.going.clear()
        elif path == "/resume":
            fake.going.set()
        elif path == "/update_weight_version":
            fake.version = body["new_version"]
        elif path == "/inference/v1/abort_requests":
            fake.aborted |= set(body["request_ids"])
        elif path == "/inference/v1/generate":
            return self.generate(body)
        return self.answer({"success": True})

    def asked(self) -> str:
        parts = urlsplit(self.path)
        self.server.asked[self.command, parts.path] |= {name for name, _ in parse_qsl(parts.query)}
        return parts.path

    def answer(self, content: object, status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def generate(self, body: dict[str, Any]) -> None:
        fake, params = self.server, body["sampling_params"]
        fake.sampling |= params.keys()
        if "prompt_logprobs" in params:
            places = [{str(token): {"logprob": -1.0, "rank": 1}} for token in body["token_ids"][1:]]
            return self.answer({"prompt_logprobs": [None, *places]})
        wrong = fake.wrong if fake.after <= 0 else None
        fake.after -= 1
        if wrong == "error":
            return self.answer({"error": {"message": "out of luck"}}, 500)
        if wrong == "hang":
            time.sleep(30)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if wrong == "gibberish":
            self.send(b"data: {\"choices\": 7}\n\n")
        else:
            for choice in self.choices(body, wrong):
                self.send(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        if wrong != "gap":
            self.send(b"data: [DONE]\n\n")
            self.send(b"")
        else:
            self.close_connection = True

    def send(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def choices(self, body: dict[str, Any], wrong: str | None) -> Iterator[Choice]:
        """Tokens of the prompt over and over, one in the first message and the rest in the last."""
        asked, name = body["sampling_params"]["max_tokens"], f"generate-tokens-{body['request_id']}"
        count = {"short": asked - 1, "long": asked + 1}.get(wrong or "", asked)
        ids = (body["token_ids"] * count)[:count]
        version = self.server.version
        yield self.choice(ids[:1], None, None)
        if wrong == "gap":
            return
        while not self.server.going.is_set() and name not in self.server.aborted:
            time.sleep(0.01)
        if name in self.server.aborted or wrong == "abort":
            yield self.choice([], "abort", [{"version": version, "start": 0, "end": 1}])
            return
        end = count - (wrong == "no versions")
        spans = [{"version": version, "start": 0, "end": end}]
        yield self.choice(ids[1:], None if wrong == "unfinished" else "length", spans)

    def choice(self, ids: list[int], reason: str | None, spans: list[dict[str, Any]] | None) -> Choice:
        content = [{"token_id": token, "logprob": -1.0} for token in ids]
        return {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason, "weight_versions": spans}


@contextmanager
def fake_vllm() -> Iterator[FakeVllm]:
    """A running one."""
    with FakeVllm() as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        try:
            yield fake
        finally:
            fake.shutdown()
