"""Where ranks of several hosts meet: one address, one port, and an error for whoever finds nobody there."""

from __future__ import annotations

import datetime
import os
import socket
from pathlib import Path

import pytest

from strop.base.types import InputError, StropError
from strop.run.learners import RankSettings, Scattered
from strop.training.ranks import interface_of, open_store, reach_store, use_interface_of

NOBODY = "192.0.2.1"  # of no machine (RFC 5737)


def test_what_one_says_the_other_hears() -> None:
    store = open_store("127.0.0.1", 2, 20.0)
    other = reach_store(f"127.0.0.1:{store.port}", 2, 20.0)
    other.set("key", "value")
    assert store.get("key") == b"value"
    for end in (store, other):
        assert end.timeout == datetime.timedelta(seconds=20)  # type: ignore[attr-defined]  # torch does not tell
    with socket.socket() as free:  # the port was not taken from anybody
        free.bind(("127.0.0.1", 0))
        assert free.getsockname()[1] != store.port


def test_an_address_of_another_machine_is_refused() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StropError, match=f"{NOBODY}: [^\n]*address$") as caught:
        open_store(NOBODY, 2, 5.0)
    assert len(os.listdir("/proc/self/fd")) == len(before), caught  # whose frames still hold the socket


def test_who_finds_nobody_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(StropError, match=f"127.0.0.1:{port}: ") as caught:
            reach_store(f"127.0.0.1:{port}", 2, 1.0)
    assert "\n" not in str(caught.value)


def test_exchanges_go_over_the_interface_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for _, name in socket.if_nameindex()]
    assert interface_of("127.0.0.1") in names and interface_of(NOBODY) is None
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for mine, other in (variables, variables[::-1]):
        monkeypatch.setenv(mine, "chosen")
        monkeypatch.setenv(other, "")  # so that it is put back afterwards
        monkeypatch.delenv(other)
        use_interface_of(NOBODY)
        assert other not in os.environ
        use_interface_of("127.0.0.1")
        assert os.environ[mine] == "chosen" and os.environ[other] == interface_of("127.0.0.1")
    real = socket.if_nameindex()
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(99, "gone0"), *real])  # gone since, or without an address
    assert interface_of("127.0.0.1") == os.environ[variables[0]]


def test_a_rank_that_does_not_see_the_run_is_named(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    ranks = [Scattered(RankSettings({}, rank, 2, None, 5.0), "127.0.0.1") for rank in range(2)]
    with pytest.raises(InputError, match=r"trainer-1, .*train_in_cluster"):
        ranks[1].host(str(mark))
    mark.touch()
    place, _ = ranks[0].host(str(mark))
    assert place is not None and place.startswith("127.0.0.1:")
    assert ranks[1].host(str(mark)) == (None, "")
