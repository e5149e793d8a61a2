"""Where ranks meet that live on several hosts: at a store which the first of them opens.

    store = open_store("10.0.0.5", size=4, seconds=900.0)           # on rank 0; its port is one that was free
    store = reach_store("10.0.0.5:41235", size=4, seconds=900.0)    # on the others
    use_interface_of("10.0.0.6")                                    # on each, of itself, before the process group
"""

from __future__ import annotations

import datetime
import fcntl
import os
import socket
import struct

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # torch.distributed has it too, but type checkers are not told

from strop.base.types import StropError

_SIOCGIFADDR = 0x8915
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def open_store(address: str, size: int, seconds: float) -> TCPStore:
    """Listen on `address` alone (torch by itself would on all), on a port that the system chooses: `store.port`.

    Args:
        address: of this host, as the other ranks reach it.
        size: ranks that will meet.
        seconds: how long one may wait for another.

    Raises:
        StropError: this host has no such address.
    """
    listening = socket.socket()
    try:
        listening.bind((address, 0))
        listening.listen()
    except OSError as error:
        listening.close()
        raise StropError(f"the trainer's ranks cannot meet at {address}: {error.strerror or error}") from error
    port = listening.getsockname()[1]
    return TCPStore(
        address,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=seconds),
        master_listen_fd=listening.detach(),
    )


def reach_store(place: str, size: int, seconds: float) -> TCPStore:
    """The store that rank 0 has opened at HOST:PORT.

    Raises:
        StropError: no server answers there.
    """
    host, _, port = place.rpartition(":")
    try:
        return TCPStore(host, int(port), size, is_master=False, timeout=datetime.timedelta(seconds=seconds))
    except dist.DistError as error:
        said = str(error).splitlines()[0]
        raise StropError(f"the trainer's first rank is not reached at {place}: {said}") from error


def use_interface_of(address: str) -> None:
    """Exchange over the interface that has this address, unless the user has named another one."""
    name = interface_of(address)
    if name is not None:
        for variable in _INTERFACES:
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """The network interface of this host that has an IPv4 address; None where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no such address at all
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
