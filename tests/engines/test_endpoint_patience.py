"""An endpoint that does not answer: who is told, how long it is asked again, and that nothing outlives an error."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prepare.test_judges import judging, serving
from tests.prepare.working import questions, write_lines
from tests.watching import Notes

from strop.base.endpoint import ChatEndpoint, EndpointClient, EndpointError
from strop.base.types import InputError
from strop.engines.endpoint import EndpointEngine, EndpointTokenizer
from strop.engines.protocol import Request, Sampling
from strop.prepare import parse_config, prepare


@pytest.fixture
def dead() -> Iterator[str]:
    """The URL of a port that nobody listens at, and that nobody else is given meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/v1"


def asking(url: str, *texts: str, told: list[str], **settings: Any) -> EndpointEngine:
    """An engine with a chat for each of `texts` on its way."""
    engine = EndpointEngine(ChatEndpoint(url=url, model="m", **settings), 8, told.append)
    for text in texts:
        tokens = EndpointTokenizer().apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        ).encode()  # fmt: skip
        engine.submit(Request(text, np.array(list(tokens), np.int32), Sampling(max_new_tokens=4), 0, 1))
    return engine


def finish(engine: EndpointEngine) -> int:
    found = 0
    while engine.unfinished:
        found += len(engine.step())
    return found


def test_a_dead_port_is_told_once_for_all_requests_and_until_when(dead: str) -> None:
    told: list[str] = []
    engine = asking(dead, *"abcdef", told=told, retries=2, backoff=0.5)
    with pytest.raises(EndpointError, match=dead):
        finish(engine)
    engine.close()
    [line] = told
    assert line.startswith(f"{dead} does not answer (ConnectError: ")


def test_one_failure_for_good_ends_the_pauses_of_all() -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
        if body["messages"][0]["content"] == "refused":
            while len(server.bodies) < 4:
                time.sleep(0.01)
            return 400, {}, {"error": "no"}
        return 503, {"Retry-After": "60"}, {}

    with serving(answer) as server:
        engine = asking(server.url, "a", "b", "c", "refused", told=[])
        with pytest.raises(InputError):
            finish(engine)
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < 30  # of the minute that they would wait
        assert len(server.bodies) == 4  # none was sent again


def test_failures_are_told_once_a_minute(dead: str) -> None:
    told: list[str] = []
    client = EndpointClient(ChatEndpoint(url=dead, model="m"), told.append)
    client._failed("busy")
    client._failed("busy")
    assert len(told) == 1
    client._told -= 60.0
    client._failed("busy")
    assert len(told) == 2


def polled(folder: Path, view: Notes, url: str, rows: list[dict[str, Any]], **judge: Any) -> None:
    step = {"piece": "Judges", "judges": [{"url": url, "model": "m", **judge}], "votes": 2, "threshold": 2}
    source = write_lines(folder / "set.jsonl", rows)
    prepare(parse_config({"out": str(folder / "out"), "sources": [{"path": str(source)}], "steps": [step]}), view)


def test_dead_judges_are_told_once(tmp_path: Path, dead: str) -> None:
    view = Notes()
    with pytest.raises(EndpointError, match="0 votes"):
        polled(tmp_path, view, dead, questions(*"abcd"), retries=2, backoff=0.5)
    assert len([note for note in view.lines if note.startswith(f"{dead} does not answer")]) == 1


def test_an_error_waits_for_no_judge_and_keeps_the_votes_that_were_got(tmp_path: Path) -> None:
    """A problem has its first vote and waits for the second when another is refused."""
    over, waits = threading.Event(), threading.Event()

    def answer(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
        if "other" in body["messages"][-1]["content"]:
            waits.wait(60)
            return 400, {}, {"error": "no"}
        if sum("slow" in each["messages"][-1]["content"] for each in server.bodies) == 2:
            waits.set()
            over.wait(60)
        return judging(body, number)

    with serving(answer) as server:
        began = time.monotonic()
        try:
            with pytest.raises(InputError):
                polled(tmp_path, Notes(), server.url, questions("slow", "other"))
            assert time.monotonic() - began < 50
        finally:
            over.set()
    votes = next((tmp_path / "out").rglob("votes.jsonl")).read_text().splitlines()
    assert len(votes) == 1


PROGRAM = """
import sys, numpy as np
from strop.base.endpoint import ChatEndpoint
from strop.engines.endpoint import EndpointEngine
from strop.engines.protocol import Request, Sampling
engine = EndpointEngine(ChatEndpoint(url=sys.argv[1], model="m", backoff=60), 2, lambda line: print(line, flush=True))
engine.submit(Request("r", np.array([51], np.int32), Sampling(max_new_tokens=4), 0, 4))
try:
    while True:
        engine.step()
finally:
    engine.close()
"""


@pytest.mark.parametrize("listens", [True, False])
def test_ctrl_c_ends_a_program_at_once(listens: bool) -> None:
    """Requests that a server has taken and does not answer, or that wait for their next attempt."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if listens:
            held.listen(8)
            held.settimeout(60)
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as program:  # fmt: skip
            if listens:
                taken, _ = held.accept()
            else:
                assert program.stdout is not None and b"does not answer" in program.stdout.readline()
            program.send_signal(signal.SIGINT)
            program.wait(20)  # the answer or the next attempt would be waited for twice as long
            if listens:
                taken.close()
