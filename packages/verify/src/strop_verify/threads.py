"""How many threads the numerical libraries of a process have, and how long one of them spins before it sleeps.

A thread that has done its part waits for the others. GNU's OpenMP, which PyTorch brings along, spins for milliseconds
before it sleeps; where another program wants the core meanwhile, the threads take turns in spinning for each other,
and a step takes fifty times as long. A thousand rounds, a few microseconds, cost nothing where the machine is idle.
"""

from __future__ import annotations

import os

SPINS = "1000"


def wait_politely() -> None:
    """Let the threads of this process and of its children spin for microseconds only, if the user has said nothing.

    It has an effect here as long as torch has not been imported.
    """
    os.environ.update(_waiting())


def thread_environment(threads: int) -> dict[str, str]:
    """The environment variables that give the numerical libraries of a child so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)) | _waiting()


def _waiting() -> dict[str, str]:
    said = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ)
    return {} if said else {"GOMP_SPINCOUNT": SPINS}
