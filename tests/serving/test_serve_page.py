"""What docs/serve.md asks of a model, asked of one with and of one without a chat template, as the page says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving.running import Running, endpoint

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
PLAIN, CHAT = "embedded", "Qwen/Qwen3-0.6B"
HERE = "http://127.0.0.1:8000/v1"


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Running]]:
    """The models of the page by name; the embedded one has no chat template."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(endpoint(name=name, template=template))
            for name, template in ((PLAIN, False), (CHAT, True))
        }


def asked(part: str) -> list[tuple[str, dict[str, Any] | None]]:
    """The requests of a part of the page: the address, and the body of what is posted."""
    commands = re.findall(r"^curl (?:.*\\\n)*.*$", part, re.MULTILINE)
    words = [shlex.split(command.replace("\\\n", "")) for command in commands]
    return [
        (next(word for word in line if word.startswith("http")), json.loads(line[-1]) if "-d" in line else None)
        for line in words
    ]


def parts() -> dict[str, str]:
    """What the page asks of which model."""
    _, asking = PAGE.split("## Requests\n")
    plain, chat = asking.split("A model with a chat template")
    chat = chat.split("| path |")[0]
    assert f"`strop serve {PLAIN}`" in plain and f"`strop serve {CHAT}`" in chat
    return {PLAIN: plain, CHAT: chat}


def test_every_request_of_the_page_is_answered(served: dict[str, Running]) -> None:
    count = 0
    for name, part in parts().items():
        running = served[name]
        for address, body in asked(part):
            url = address.replace(HERE, running.url).replace(HERE.removesuffix("/v1"), running.url.removesuffix("/v1"))
            answer = httpx.get(url, timeout=60) if body is None else httpx.post(url, json=body, timeout=60)
            assert answer.status_code == 200, (address, answer.text)
            count += 1
    assert count == 5


def test_the_answer_has_the_shape_that_the_page_shows(served: dict[str, Running]) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", parts()[PLAIN], re.DOTALL)
    wanted = json.loads(shown)
    (_, body), *_ = asked(parts()[PLAIN])
    assert body is not None
    found = served[PLAIN].complete(**body)
    assert wanted.keys() <= found.keys() and wanted["choices"][0].keys() <= found["choices"][0].keys()
    assert wanted["choices"][0]["text"] == "…"  # no other machine's base gives what one of them gave
    assert {name: found[name] for name in ("object", "model")} == {name: wanted[name] for name in ("object", "model")}


def test_the_client_of_the_page_is_answered(served: dict[str, Running]) -> None:
    pytest.importorskip("openai")
    (block,) = re.findall(r"```python\n(.*?)```", parts()[CHAT], re.DOTALL)
    values: dict[str, Any] = {}
    exec(block.replace(HERE, served[CHAT].url).replace("seed=7", "seed=7, max_tokens=8"), values)  # noqa: S102
    assert values["answer"].model == CHAT and values["answer"].choices[0].message.role == "assistant"
