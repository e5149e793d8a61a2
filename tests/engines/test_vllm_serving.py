"""`strop serve` with vLLM behind it: the same bodies, answers and streams. Run by `make test-vllm`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.engines.contract import model
from tests.tiny import byte_tokenizer

from strop.model.files import export
from strop.model.policy import PackedInputs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SETS = ("engine=Vllm", "engine.slots=16", "engine.eager=true", "engine.kv_cache_gib=0.25")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
BODY = {"prompt": "3+5-2=", "max_tokens": 20, "seed": 11, "return_token_ids": True, "logprobs": 0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("serve") / "small"
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    export(model(0, tie=True).model, tokenizer, folder)
    command = [sys.executable, "-m", "strop", "serve", f"small={folder}", "--port", "0", "--json"]
    command += [part for item in SETS for part in ("--set", item)]
    with subprocess.Popen(
        [*command, "--api-key-env", "STROP_TEST_SERVE_KEY"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "STROP_TEST_SERVE_KEY": "hush"},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            assert facts["slots"] == 16 and facts["weight_version"] == 0
            headers = {"Authorization": "Bearer hush"}
            with httpx.Client(base_url=facts["url"], headers=headers, timeout=120, trust_env=False) as client:
                yield client
            workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
            assert workers and not any(Path(f"/proc/{pid}/fd/0").exists() for pid in workers)
        finally:
            process.kill()


def complete(client: httpx.Client, **body: Any) -> dict[str, Any]:
    """The first choice of a completion that must succeed."""
    answer = client.post("/completions", json={**BODY, **body})
    assert answer.status_code == 200 and answer.json()["weight_version"] == 0, answer.text
    return dict(answer.json()["choices"][0])


def of_the_policy(choice: dict[str, Any]) -> np.ndarray:
    """What the policy itself says of a choice's tokens."""
    prompt, sampled = choice["prompt_token_ids"], choice["token_ids"]
    logprobs, _ = model(0, tie=True)(PackedInputs.whole([[*prompt, *sampled]]), 1.0)
    found: np.ndarray = logprobs.detach().numpy()[len(prompt) - 1 :]
    return found


def test_tokens_logprobs_and_versions(served: httpx.Client) -> None:
    choice = complete(served)
    assert choice["prompt_token_ids"] == byte_tokenizer().encode("3+5-2=")
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], of_the_policy(choice), atol=1e-4)
    assert complete(served)["token_ids"] == choice["token_ids"]  # the seed's
    assert complete(served, seed=12)["token_ids"] != choice["token_ids"]


def test_a_stream_adds_up_to_the_answer(served: httpx.Client) -> None:
    whole = complete(served, max_tokens=400, seed=4)
    body = {**BODY, "max_tokens": 400, "seed": 4, "stream": True}
    with served.stream("POST", "/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    pieces = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    assert [token for piece in pieces for token in piece["token_ids"]] == whole["token_ids"]
    assert "".join(piece["text"] for piece in pieces) == whole["text"] and len(pieces) > 1
    assert pieces[-1]["finish_reason"] == whole["finish_reason"]


def test_a_chat_is_a_completion_of_what_its_template_makes(served: httpx.Client) -> None:
    wanted = complete(served, prompt="user: 1+1\nassistant: ")
    chat = {"messages": [{"role": "user", "content": "1+1"}], "max_tokens": 20, "seed": 11}
    answer = served.post("/chat/completions", json=chat)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == wanted["text"]


def test_who_has_no_key_is_refused(served: httpx.Client) -> None:
    refused = httpx.post(f"{served.base_url}completions", json=BODY, trust_env=False)
    assert refused.status_code == 401
