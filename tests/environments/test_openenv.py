"""The client of OpenEnv against OpenEnv's own server, which is not among strop's dependencies (pip install openenv)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from strop.base.types import Problem, Verdict
from strop.environments.base import FromEnvironment, Outcome, Reply
from strop.environments.sessions import SessionHost, Turn
from strop.environments.tools import OpenEnv
from strop_verify.verdict import Status

pytest.importorskip("websockets", reason="needs the extra openenv")
server = pytest.importorskip("openenv.core.env_server", reason="needs the package openenv (0.10 was tried)")
uvicorn = pytest.importorskip("uvicorn")


class Guess(server.Action):  # type: ignore[name-defined]
    number: int


class Heard(server.Observation):  # type: ignore[name-defined]
    said: str


class Game(server.Environment):  # type: ignore[name-defined]
    """Guess the seed's last digit; an odd one may be found in one of two halves of the reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Heard:
        self.number = (seed or 0) % 10
        return Heard(said=f"Guess {'an odd' if self.number % 2 else 'an even'} digit.")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Heard:
        if action.number == self.number:
            return Heard(said="yes", reward=0.75, done=True)
        return Heard(said="higher" if self.number > action.number else "lower", reward=0.0)

    @property
    def state(self) -> Any:
        return server.State()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = server.create_fastapi_app(Game, Guess, Heard, max_concurrent_envs=50)
    serving = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serving.run, args=([listening],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        serving.should_exit = True
        thread.join()


def played(environment: OpenEnv, seeds: list[int], replies: list[str]) -> list[list[Outcome]]:
    async def one(host: SessionHost, seed: int) -> list[Outcome]:
        found: list[Outcome] = []
        for reply in replies:
            found.append(await host.turn(Turn(("g", seed), Problem("p", "", None), seed, reply, False)))
            if not isinstance(found[-1], Reply):
                break
        return found

    async def all_of_them() -> list[list[Outcome]]:
        host = SessionHost(environment)
        found = await asyncio.gather(*(one(host, seed) for seed in seeds))
        host.close()
        await asyncio.sleep(0.1)
        return found

    return asyncio.run(all_of_them())


def test_sessions_at_once_are_played_to_their_rewards(url: str) -> None:
    environment = OpenEnv(url=url, action="number", observation="said")
    found = played(environment, list(range(20)), ["<think>4?</think>4", "6", "7"])
    for seed, outcomes in enumerate(found):
        says = [one.messages[0]["content"] for one in outcomes if isinstance(one, Reply)]
        digit = seed % 10
        expected = [guess for guess in (4, 6, 7)[: (4, 6, 7).index(digit) if digit in (4, 6, 7) else 3]]
        assert says == ["higher" if digit > guess else "lower" for guess in expected]
        assert (outcomes[-1] == Verdict(0.75, Status.WRONG)) == (digit in (4, 6, 7))


def test_a_turn_may_be_the_action_as_json(url: str) -> None:
    environment = OpenEnv(url=url, action="", observation="said")
    [[answer, end]] = played(environment, [3], ["three", '{"number": 3}'])
    assert isinstance(answer, Reply) and "not JSON" in answer.messages[0]["content"]
    assert end == Verdict(0.75, Status.WRONG)


def test_what_the_server_refuses_is_an_error_of_the_sample(url: str) -> None:
    [[outcome]] = played(OpenEnv(url=url, action="number"), [3], ["not a number"])
    assert isinstance(outcome, Verdict) and outcome.status is Status.ERROR and "the server says" in outcome.detail


def test_problems_begin_with_what_it_observes(url: str) -> None:
    [*problems] = FromEnvironment(environment=OpenEnv(url=url, observation="said"), count=20).problems()
    assert {problem.prompt for problem in problems} == {"Guess an odd digit.", "Guess an even digit."}
