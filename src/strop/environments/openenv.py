"""A client of OpenEnv servers: any of them, over its WebSocket, whatever the types of its actions.

    reset ─▶ {"type": "reset", "data": {"seed": 3}}
          ◀─ {"type": "observation", "data": {"observation": {…}, "reward": null, "done": false}}
    step  ─▶ {"type": "step", "data": {"message": "hello"}}, answered likewise
"""

from __future__ import annotations

import json
from typing import Any

from strop.base.imports import require
from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session
from strop.environments.tools import END_OF_THINKING
from strop.verifiers.base import scored
from strop_verify.verdict import Status


class OpenEnv(Environment):
    """Sends each turn as an action to a server, and returns its observation; `done` ends with the sum of the rewards.

    Fields:
        url: of the server, such as ws://localhost:8000.
        action: the action's field that takes the turn's text; empty: the turn is the action as JSON.
        observation: the observation's field that is shown; empty: all of it as JSON.
    """

    url: str
    action: str = "message"
    observation: str = ""

    def open(self) -> Session:
        """A session that has not connected."""
        return _Remote(self)


class _Remote(Session):
    def __init__(self, environment: OpenEnv) -> None:
        self._environment = environment
        self._connection: Any = None
        self._reward = 0.0

    async def reset(self, problem: Problem, seed: int) -> str:
        """Connect and begin; what the server observes."""
        websockets = require("websockets.asyncio.client", extra="openenv", purpose="OpenEnv servers")
        address = self._environment.url.replace("http", "ws", 1).rstrip("/")
        self._connection = await websockets.connect(f"{address}/ws", proxy=None)
        return self._shown(await self._ask("reset", {"seed": seed % 2**31}))

    async def step(self, reply: str) -> Reply | Verdict:
        """The observation of the turn's action."""
        said = reply.rpartition(END_OF_THINKING)[2].strip()
        if self._environment.action:
            action: Any = {self._environment.action: said}
        else:
            try:
                action = json.loads(said)
            except ValueError as error:
                return Reply((Message(role="user", content=f"not JSON: {error}"),))
        data = await self._ask("step", action)
        self._reward += float(data.get("reward") or 0.0)
        if data.get("done"):
            return scored(self._reward, "", partial_credit=True)
        return Reply((Message(role="user", content=self._shown(data)),))

    def end(self, reply: str) -> Verdict:
        """What was earned until then."""
        verdict = scored(self._reward, "not done", partial_credit=True)
        return Verdict(0.0, Status.WRONG, "not done") if self._reward == 0 else verdict

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()

    async def _ask(self, kind: str, data: Any) -> dict[str, Any]:
        await self._connection.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(await self._connection.recv())
        if answer.get("type") == "error":
            raise RuntimeError(f"the server says: {answer.get('data', {}).get('message', 'error')}")
        found: dict[str, Any] = answer["data"]
        return found

    def _shown(self, data: dict[str, Any]) -> str:
        observation = data.get("observation", {})
        field = self._environment.observation
        return str(observation.get(field, "")) if field else json.dumps(observation, ensure_ascii=False)
