"""Signals: the first asks, inside what may be thrown away it ends at once, and nothing is thrown away beyond `hold`."""

from __future__ import annotations

import os
import signal
import time

import pytest

from strop.base.interrupt import Stopped, breakable, hold, on_interrupt


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # handlers run between two operations


def test_the_first_asks_and_the_second_ends() -> None:
    asked: list[int] = []
    with pytest.raises(KeyboardInterrupt), on_interrupt(lambda: asked.append(1)):
        send(signal.SIGINT)
        assert asked == [1]
        send(signal.SIGHUP)  # the second of a terminal that is closed
        send(signal.SIGTERM)
    assert asked == [1]


def test_what_may_be_thrown_away_ends_at_once() -> None:
    reached: list[str] = []
    with on_interrupt(lambda: None):
        with pytest.raises(Stopped), breakable():
            send()
            reached.append("inside")
        with pytest.raises(Stopped), breakable():  # a later one does not begin
            reached.append("inside")
    assert not reached


def test_beyond_hold_everything_is_seen_through() -> None:
    reached: list[str] = []
    with on_interrupt(lambda: None), breakable():
        hold()
        send()
        reached.append("end")
    assert reached == ["end"]


def test_the_next_run_begins_unasked() -> None:
    with on_interrupt(lambda: None):
        send()
    with on_interrupt(lambda: None), breakable():
        pass


def test_nohup_stays_nohup() -> None:
    asked: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_interrupt(lambda: asked.append(1)):
            send(signal.SIGHUP)
        assert not asked and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
