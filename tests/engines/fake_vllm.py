"""A server with vLLM's interface and nothing behind it, for what a real one cannot be made to do on purpose.

It answers over real HTTP as the real one was seen to: tokens of the prompt, or whatever the test has it do wrong.
`ServedModel` has a model behind it, so that whole runs can be trained with a server that goes wrong on the way.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import torch
from safetensors.torch import load_file
from tests.tiny import byte_tokenizer
from torch import Tensor

from strop.base.types import Completion, ExpertArray, InputError
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.policy import Policy

Choice = dict[str, Any]
Span = dict[str, Any]


class FakeVllm(ThreadingHTTPServer):
    """What tests say and see.

    Attributes:
        wrong: what it does wrong, of: error, hang, short, long, no versions, unfinished, gap, abort, gibberish.
        after: how many requests of a sequence are answered well before that.
        faults: what it does wrong once each, in this order, every time that `after` requests have been answered well.
        records: whether it was started with --enable-return-routed-experts.
        asked: the names of parameters and fields that each endpoint, as (method, path), was asked with.
        sampling: those of sampling.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wrong: str | None = None
        self.after = self.good = 0
        self.faults: list[str] = []
        self.lock = threading.Lock()
        self.mode, self.longest, self.records = "processed_logprobs", 512, False
        self.version = "default"
        self.key: str | None = None
        self.going = threading.Event()
        self.going.set()
        self.aborted: set[str] = set()
        self.asked: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.sampling: set[str] = set()
        self.closed = threading.Event()

    def server_close(self) -> None:
        """Listen no more; what hangs ends."""
        self.closed.set()
        super().server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: clients that have given up have closed their connections."""

    def next_wrong(self) -> str | None:
        """What is done wrong with the next request of a sequence."""
        with self.lock:
            if self.good < self.after:
                self.good += 1
                return None
            if self.faults:
                self.good = 0
                return self.faults.pop(0)
            return self.wrong

    def load(self, folder: Path) -> None:
        """Weights are to be taken from a folder."""

    def call(self, version: str) -> None:
        """The weights are to be called by this version."""
        self.version = version

    def abort(self, name: str) -> None:
        """A request is to be ended."""
        self.aborted.add(name)

    def scores(self, ids: list[int]) -> list[float]:
        """Log-probs of tokens after the first."""
        return [-1.0] * (len(ids) - 1)

    def choices(self, body: dict[str, Any], wrong: str | None) -> Iterator[Choice]:
        """Tokens of the prompt over and over, one in the first message and the rest in the last."""
        asked, name = body["sampling_params"]["max_tokens"], f"generate-tokens-{body['request_id']}"
        count = {"short": asked - 1, "long": asked + 1}.get(wrong or "", asked)
        ids = (body["token_ids"] * count)[:count]
        version = self.version
        yield self.choice(ids[:1], None, None)
        if wrong == "gap":
            return
        while not self.going.is_set() and name not in self.aborted:
            time.sleep(0.01)
        if name in self.aborted or wrong == "abort":
            yield self.choice([], "abort", [{"version": version, "start": 0, "end": 1}])
            return
        end = count - (wrong == "no versions")
        spans = [{"version": version, "start": 0, "end": end}]
        yield self.choice(ids[1:], None if wrong == "unfinished" else "length", spans)

    def choice(
        self, ids: list[int], reason: str | None, spans: list[Span] | None, logprobs: list[float] | None = None,
        experts: ExpertArray | None = None,
    ) -> Choice:  # fmt: skip
        """A message of a stream."""
        known = [-1.0] * len(ids) if logprobs is None else logprobs
        content = [{"token_id": token, "logprob": logprob} for token, logprob in zip(ids, known, strict=True)]
        found = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason, "weight_versions": spans}
        return {**found, "routed_experts": None if experts is None else as_base64(experts)}


def with_experts_as_one(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a file by the names of the module, which keeps the experts of a layer as one tensor."""
    found = {name: tensor for name, tensor in weights.items() if ".experts." not in name}
    for block in sorted({name.partition(".experts.")[0] + ".experts" for name in weights.keys() - found.keys()}):
        count = len([name for name in weights if name.startswith(block) and name.endswith(".down_proj.weight")])

        def of(expert: int, projection: str, block: str = block) -> Tensor:
            return weights[f"{block}.{expert}.{projection}.weight"]

        both = [torch.cat((of(expert, "gate_proj"), of(expert, "up_proj"))) for expert in range(count)]
        found[f"{block}.gate_up_proj"] = torch.stack(both)
        found[f"{block}.down_proj"] = torch.stack([of(expert, "down_proj") for expert in range(count)])
    return found


def as_base64(experts: ExpertArray) -> str:
    """Experts [tokens, layers, k] as vLLM sends them: a file of numpy's, of the narrowest type."""
    file = io.BytesIO()
    np.save(file, experts.astype(np.uint8))
    return base64.b64encode(file.getvalue()).decode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeVllm

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        path = self.asked()
        if path == "/server_info":
            model = {"logprobs_mode": self.server.mode, "max_model_len": self.server.longest}
            records = {"enable_return_routed_experts": self.server.records}
            self.answer({"vllm_config": {"model_config": model, "aux_output_config": records}})
        else:
            self.answer({})

    def do_POST(self) -> None:
        fake, path = self.server, self.asked()
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(text) if text else {}
        fake.asked[self.command, path] |= body.keys()
        if fake.key is not None and self.headers.get("Authorization") != f"Bearer {fake.key}":
            return self.answer({"error": "Unauthorized"}, 401)
        if path == "/sleep":
            fake.going.clear()
        elif path == "/wake_up":
            fake.going.set()
        elif path == "/collective_rpc":
            fake.load(Path(body["kwargs"]["weights_path"]))
        elif path == "/update_weight_version":
            fake.call(body["new_version"])
        elif path == "/inference/v1/abort_requests":
            for name in body["request_ids"]:
                fake.abort(name)
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
            ids = body["token_ids"]
            pairs = zip(ids[1:], fake.scores(ids), strict=True)
            places = [{str(token): {"logprob": logprob, "rank": 1}} for token, logprob in pairs]
            return self.answer({"prompt_logprobs": [None, *places]})
        wrong = fake.next_wrong()
        if wrong == "error":
            return self.answer({"error": {"message": "out of luck"}}, 500)
        if wrong == "hang":
            fake.closed.wait(30)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if wrong == "gibberish":
            self.send(b"data: {\"choices\": 7}\n\n")
        else:
            for choice in fake.choices(body, wrong):
                self.send(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        if wrong != "gap":
            self.send(b"data: [DONE]\n\n")
            self.send(b"")
        else:
            self.close_connection = True

    def send(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


class ServedModel(FakeVllm):
    """One that draws with the embedded engine, from the weights that it is given."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.longest, self.records = 128, policy.routing is not None
        self.changed = threading.Condition()
        self.found: dict[str, Completion] = {}
        self.staged: dict[str, Tensor] = {}
        self.engine = self.fresh()
        self.drawing = threading.Thread(target=self.draw, daemon=True)
        self.drawing.start()

    def server_close(self) -> None:
        """Draw no more either: an interpreter may hang at its end where a thread then computes."""
        super().server_close()
        self.drawing.join()

    def fresh(self) -> TorchEngine:
        return TorchEngine(self.policy, byte_tokenizer(), EngineSettings(slots=16, share_parameters=False))

    def draw(self) -> None:
        """Step, unless paused, until the server is closed."""
        while not self.closed.is_set():
            with self.changed:
                if self.going.is_set() and self.engine.unfinished:
                    self.found |= {one.request_id: one for one in self.engine.step()}
                    self.changed.notify_all()
            time.sleep(0.001)

    def load(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"))
        self.staged = with_experts_as_one({name: one for file in files for name, one in load_file(file).items()})

    def call(self, version: str) -> None:
        with self.changed:
            if int(version) < self.engine.weight_version:  # another client, which begins anew
                self.engine = self.fresh()
            self.engine.update_weights(self.staged, int(version))
            self.version = version

    def scores(self, ids: list[int]) -> list[float]:
        with self.changed:
            return [float(logprob) for logprob in self.engine.verify_weights(np.array(ids, np.int32))]

    def abort(self, name: str) -> None:
        with self.changed, suppress(InputError):  # it may have ended
            self.engine.cancel(name)
            self.found |= {one.request_id: one for one in self.engine.step()}
            self.changed.notify_all()

    def choices(self, body: dict[str, Any], wrong: str | None) -> Iterator[Choice]:
        """The whole in one message."""
        params, name = body["sampling_params"], f"generate-tokens-{body['request_id']}"
        sampling = Sampling(
            temperature=params["temperature"], max_new_tokens=params["max_tokens"],
            stop_token_ids=tuple(params["stop_token_ids"]),
        )  # fmt: skip
        request = Request(name, np.array(body["token_ids"], np.int32), sampling, seed=params["seed"] & (2**31 - 1))
        with self.changed:
            engine = self.engine
            engine.submit(request)
            while name not in self.found and engine is self.engine:
                self.changed.wait(1.0)
            one = self.found.pop(name, None)
        if one is None:
            yield self.choice([], "abort", [])
            return
        spans = [{"version": str(span.version), "start": span.start, "end": span.end} for span in one.versions]
        ids = one.token_ids.tolist()[: -1 if wrong == "short" else None]
        yield self.choice(ids, one.finish_reason, spans, one.logprobs.tolist()[: len(ids)], one.routed_experts)


Served = TypeVar("Served", bound=FakeVllm)


@contextmanager
def running(fake: Served) -> Iterator[Served]:
    """Serve until the end of the block."""
    with fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        try:
            yield fake
        finally:
            fake.shutdown()


@contextmanager
def fake_vllm() -> Iterator[FakeVllm]:
    """A running one without a model."""
    with running(FakeVllm()) as fake:
        yield fake
