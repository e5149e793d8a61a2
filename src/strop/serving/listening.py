"""Listening on this machine: the socket, whom a request asks for, and uvicorn without its own signal handlers."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvicorn

from strop.base.types import InputError


def listen(host: str, port: int, key: str | None, insecure: bool) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        InputError: others could reach it without a key, or the address cannot be had.
    """
    if key is None and not is_loopback(host) and not insecure:
        raise InputError(
            f"--host {host}: whoever reaches this machine could use the model; name a key with --api-key-env, or say "
            "--insecure"
        )
    # asyncio switches Nagle's algorithm off (40 ms an answer) where the protocol is named, as create_server does not.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(f"cannot listen on {host}, port {port}: {error}; choose another with --port") from error


def is_loopback(host: str) -> bool:
    """Whether a host name or address means only this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def host_of(headers: Mapping[bytes, bytes]) -> str:
    """The host that a request asks for, without its port; empty where it names none."""
    host = headers.get(b"host", b"").decode("latin-1")
    has_port = host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host)
    return host.rpartition(":")[0] if has_port else host


class QuietServer(uvicorn.Server):
    """uvicorn's server without its own signal handlers, which would end the process after the first signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to whoever runs the server."""
        yield
