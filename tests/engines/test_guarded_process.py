"""A program that must not outlive us: however it ends, and however we end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.watching import alive, until

from strop.engines.vllm.server import GuardedProcess


def guarded(place: Path, script: str) -> GuardedProcess:
    place.mkdir()
    return GuardedProcess(["/bin/sh", "-c", script], os.environ, place)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo nothing of note; exit 3", r"; it ended with code 3; its log, .*, says: nothing of note$"),
        ("kill -9 $$", r"; it was killed by SIGKILL; its log, .*, says: nothing$"),
        (
            "echo 'WARNING ValueError: no matter'; echo 'x  OSError: the disk'; echo 'RuntimeError: see above'; exit 1",
            "; it ended with code 1; its log, .*, says: OSError: the disk$",
        ),
    ],
)
def test_how_it_ended_is_told(tmp_path: Path, script: str, said: str) -> None:
    process = guarded(tmp_path / "place", script)
    found = process.failed()
    assert re.match(said, found), found
    process.stop()
    assert (tmp_path / "place" / "log.txt").exists()  # for whoever wants to read it


def test_it_shares_the_processor_as_we_do_and_no_signal_of_the_terminal(tmp_path: Path) -> None:
    process = guarded(tmp_path / "place", "sleep 600")
    assert os.getsid(process.pid) == os.getsid(0) and os.getpgid(process.pid) == process.pid
    process.stop()


def test_it_is_ended_with_all_it_has_started_and_its_folder_goes(tmp_path: Path) -> None:
    child = tmp_path / "child"
    process = guarded(tmp_path / "place", f"sleep 600 & echo $! > {child}; sleep 600")
    while not child.exists() or not child.read_text():
        time.sleep(0.01)
    assert alive(process.pid)
    process.stop()
    assert not process.alive and until(lambda: not alive(int(child.read_text())))
    assert not (tmp_path / "place").exists()
    process.stop()  # once more is no harm


@pytest.mark.slow
def test_what_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    process = guarded(tmp_path / "place", "trap '' TERM; while :; do sleep 0.1; done")
    time.sleep(0.3)
    begin = time.monotonic()
    process.stop()
    assert not process.alive and time.monotonic() - begin < 8


def test_it_dies_with_us_however_we_end(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from strop.engines.vllm.server import GuardedProcess\n"
        "process = GuardedProcess(['/bin/sh', '-c', 'sleep 600 & echo $!; wait'], os.environ, Path(sys.argv[1]))\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert until(lambda: not alive(int(done.stdout)))
    child = (tmp_path / "log.txt").read_text()
    assert not child or until(lambda: not alive(int(child)))
