"""One run of an ablation: the program of a process of its own, which dies with the one that started it.

The job comes over the socket as JSON, {"folder", "config", "imports"}; the answer, once the run has ended, is
{"error": null or one line}. What the run prints goes to its log.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from strop.base.child_process import connect_to_parent
from strop.base.framing import Channel
from strop.base.types import InputError, StropError
from strop.base.view import PlainView


def main() -> int:
    """Do the job and return the exit code."""
    channel = Channel(connect_to_parent())
    job: dict[str, Any] = json.loads(channel.next())
    error, code = None, 0
    try:
        _run(Path(job["folder"]), job["config"], job["imports"])
    except StropError as problem:
        error, code = str(problem), problem.exit_code
    except KeyboardInterrupt:
        error, code = "stopped at once", 130
    except Exception as problem:  # whatever a variant does wrong is recorded, and the other variants go on
        traceback.print_exc()
        error, code = f"{type(problem).__name__}: {problem}".splitlines()[0], 1
    if error is not None:
        sys.stderr.write(f"{error}\n")
    channel.send_all(json.dumps({"error": error}).encode())
    return code


def _run(folder: Path, data: dict[str, Any], imports: list[str]) -> None:
    from strop.base.imports import allow_module, allow_settings, code_settings
    from strop.config.parse import parse
    from strop.run.folder import RunFolder, is_run
    from strop.run.run import resume, train

    for module in imports:
        allow_module(module)
    config = parse(data, str(folder), to_run=False)  # what was allowed is the business of the process that asks
    allow_settings(key for key, *_ in code_settings(data))
    view = PlainView(sys.stderr)
    try:
        if not is_run(folder):
            train(config, folder, view)
            return
        kept = RunFolder.open(folder)
        if parse(kept.read_json("config.json"), str(kept.config_path), to_run=False) != config:
            raise InputError(f"{kept.config_path} is not that of the ablation; remove {folder} to run it again")
        resume(folder, view)
    finally:
        view.close()


if __name__ == "__main__":
    sys.exit(main())
