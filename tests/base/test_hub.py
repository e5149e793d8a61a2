"""Models by the hub's names: from a hub on this machine, from its cache, and without either, at once."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base import hub
from strop.base.types import InputError
from strop.data.rows import HubDataset
from strop.model.files import export, load_pretrained
from strop.model.location import in_folder
from strop.model.settings import ModelSettings
from strop.prepare.filters import count_tokens
from strop.recipes.resolve import resolve
from strop.run.questions import known_room

NAMES = ("own/tiny", "tiny")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Hub(BaseHTTPRequestHandler):
    """The files of `folder` as the hub gives them for the models `names`; everything else is not there."""

    folder = Path()
    names: tuple[str, ...] = ()

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.lstrip("/").partition("?")[0]
        about = path.startswith("api/models/")
        path = path.replace("/revision/main", "")
        name, _, rest = path.removeprefix("api/models/").partition("/tree/" if about else "/resolve/")
        file = self.folder / rest.partition("/")[2]
        body, missing = b"", None
        if name not in self.names:
            missing = "RepoNotFound"
        elif about and not rest:
            body = json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode()
        elif about:
            sizes = {file.name: file.stat().st_size for file in self.folder.iterdir()}
            listed = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes.items()]
            body = json.dumps(listed).encode()
        elif file.is_file():
            body = file.read_bytes()
        else:
            missing = "EntryNotFound"
        self.send_response(200 if missing is None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        if missing is not None:
            self.send_header("X-Error-Code", missing)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A hub with one small model under two names, and an empty cache."""
    policy = tiny_qwen3()
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    handler = type("Handler", (_Hub,), {"folder": tmp_path / "model", "names": NAMES})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _point_at(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "cache")
    yield server
    server.shutdown()
    server.server_close()


def _point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    from huggingface_hub import constants
    from transformers.utils import hub as transformers_hub

    # transformers keeps one of its own, with the address of when it was made.
    monkeypatch.setattr(transformers_hub, "_hf_api", None, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def test_models_of_the_hub_are_loaded_then_from_the_cache_and_an_unknown_name_is_said(
    address: ThreadingHTTPServer,
) -> None:
    weight = tiny_qwen3().model.get_input_embeddings().weight
    for name in NAMES:
        model, tokenizer = load_pretrained(ModelSettings(path=name))
        assert len(tokenizer) == len(byte_tokenizer())
        assert torch.equal(model.get_input_embeddings().weight, weight)
    with pytest.raises(InputError, match=r"model\.path"):
        load_pretrained(ModelSettings(path="nope"))
    address.shutdown()
    address.server_close()
    began = time.monotonic()
    for name in NAMES:
        assert torch.equal(load_pretrained(ModelSettings(path=name))[0].get_input_embeddings().weight, weight)
    assert time.monotonic() - began < 15


def test_finding_9_a_name_is_the_folder_of_what_a_model_needs(
    address: ThreadingHTTPServer, tmp_path: Path
) -> None:
    for name in ("consolidated.safetensors", "pytorch_model.bin"):
        (tmp_path / "model" / name).write_bytes(b"the same weights, and not to be fetched")
    named = ModelSettings(path="own/tiny", revision="main")
    found = in_folder(named)
    assert found.path is not None and found.revision is None and in_folder(found) is found
    have = {path.name for path in Path(found.path).iterdir()}
    assert have >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert not have & {"consolidated.safetensors", "pytorch_model.bin"}
    with pytest.raises(InputError, match="critic.path nope"):
        in_folder(ModelSettings(path="nope"), "critic.path")
    address.shutdown()
    address.server_close()
    assert in_folder(named) == found


def test_the_room_of_a_model_on_the_hub_is_known_before_its_weights_are_fetched(address: ThreadingHTTPServer) -> None:
    config = resolve("grpo", ["model.path=own/tiny"])
    assert known_room(config) == tiny_qwen3().model.config.max_position_embeddings


def test_without_a_hub_the_answer_comes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries alone take 23 s a file, of nothing but waiting."""
    _point_at(monkeypatch, "http://127.0.0.1:9", tmp_path)
    began = time.monotonic()
    for name in ("nope", "own/nope", "no pe"):
        with pytest.raises(InputError, match=f"model.path {name}"):
            load_pretrained(ModelSettings(path=name))
    with pytest.raises(InputError, match="tokenizer nope"):
        count_tokens("three small words", "nope")
    assert time.monotonic() - began < 15


def test_a_hub_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        _point_at(monkeypatch, f"http://127.0.0.1:{mute.getsockname()[1]}", tmp_path)
        monkeypatch.setattr(hub, "SECONDS", 0.2)
        assert "does not answer" in str(hub.silence())


def test_data_sets_likewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="extra hub")
    _point_at(monkeypatch, "http://127.0.0.1:9", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    began = time.monotonic()
    with pytest.raises(InputError, match="own/nope"):
        list(HubDataset(dataset="own/nope").records())
    assert time.monotonic() - began < 15 and datasets.config.HF_HUB_OFFLINE is False
