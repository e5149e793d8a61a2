"""A dashboard next to the run that it shows: a separate process with low priority, so that the run is not slowed.

    with following(Path("runs/grpo"), view):    # the view says where a browser finds it
        ...                                     # the run; its folder need not be there yet

It ends with the block, and with this process however that ends.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strop.base.types import InputError, StropError
from strop.base.view import View
from strop.dashboard.app import PORT, DashboardServer, opened
from strop.dashboard.reading import FollowedRuns
from strop_verify.child_process import ChildProcess, connect_to_parent, start_module, thread_environment
from strop_verify.framing import Channel

NICENESS = 10
LOOK_SECONDS = 0.2


@contextmanager
def following(run: Path, view: View) -> Iterator[None]:
    """A dashboard of the run in this folder while the block runs.

    Raises:
        StropError: its process cannot be started.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process lives)
    child, end = start_module("strop.dashboard.follow", thread_environment(1), output)
    channel = Channel(end)
    try:
        view.note(f"dashboard: {_address(run, channel, child)}")
        yield
    finally:
        channel.close()
        child.end()
        child.close()


def _address(run: Path, channel: Channel, child: ChildProcess) -> str:
    try:
        channel.send_all(str(run.resolve()).encode())
        return channel.next().decode()
    except (EOFError, OSError) as error:
        raise StropError(f"the dashboard's process {child.exit_reason()}") from error


def main() -> None:
    """Serve the process that started this one: say where at once, and answer as soon as there is a run."""
    os.nice(NICENESS)
    channel = Channel(connect_to_parent())
    run = Path(channel.next().decode())
    try:
        listening, url = opened(PORT)
    except InputError:
        listening, url = opened(0)
    channel.send_all(url.encode())
    DashboardServer(_begun(run), listening).run()


def _begun(run: Path) -> FollowedRuns:
    """The run once its folder is there and whole; a former one in its place may be removed meanwhile."""
    while True:
        try:
            return FollowedRuns([run])
        except InputError:
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
