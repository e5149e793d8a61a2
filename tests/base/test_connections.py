"""Connections are lent to one request at a time, used again, and given up where they fail or have rested too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from strop.engines.vllm.client import Connections


class Server:
    """Answers over a socket file, once `together` requests are there; counts its connections."""

    def __init__(self, together: int = 1) -> None:
        self.opened = self.asked = 0
        self.together = together
        self.all_there = asyncio.Event()
        self.breaks = False
        self.tires = False  # it closes a connection that was at rest instead of answering on it again

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        answered = False
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            self.asked += 1
            if self.asked >= self.together:
                self.all_there.set()
            await self.all_there.wait()
            if self.breaks or (self.tires and answered):
                break
            answered = True
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()


Work = Callable[[httpx.AsyncClient, Server], Awaitable[None]]


def talk(path: Path, server: Callable[[], Server], work: Work) -> None:
    """Do `work` with a client of the server."""

    async def main() -> None:
        other = server()
        listening = await asyncio.start_unix_server(other.serve, path / "socket")
        transport = Connections(path / "socket", rest_seconds=0.2)
        async with listening, httpx.AsyncClient(transport=transport, base_url="http://server", timeout=10) as client:
            await work(client, other)

    asyncio.run(main())


def test_requests_at_once_have_a_connection_each_and_later_ones_use_them_again(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, server: Server) -> None:
        answers = await asyncio.gather(*(client.get("/") for _ in range(40)))
        assert [answer.text for answer in answers] == ["ok"] * 40 and server.opened == 40
        for _ in range(5):
            assert (await client.get("/")).text == "ok"
        assert server.opened == 40

    talk(tmp_path, lambda: Server(together=40), work)


def test_one_that_has_rested_too_long_is_not_used_again(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, server: Server) -> None:
        await client.get("/")
        await asyncio.sleep(0.4)
        await client.get("/")
        assert server.opened == 2

    talk(tmp_path, Server, work)


def test_one_whose_answer_was_given_up_or_never_came_is_not_used_again(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, server: Server) -> None:
        async with client.stream("GET", "/"):
            pass  # its body is not read
        await client.get("/")
        assert server.opened == 2
        server.breaks = True
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")
        assert server.opened == 3  # it was tried over a new one
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")
        assert server.opened == 4
        server.breaks = False
        assert (await client.get("/")).text == "ok" and server.opened == 5

    talk(tmp_path, Server, work)


def test_a_request_that_meets_the_end_of_its_connection_is_made_over_a_new_one(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, server: Server) -> None:
        server.tires = True
        for count in range(1, 6):
            answer = await client.post("/", json={"the": "same"})
            assert answer.text == "ok" and server.opened == count

    talk(tmp_path, Server, work)
