"""Which Ray cluster a run's generators live in, and what each of them reserves there."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from strop.base.pieces import Settings


class RaySettings(Settings):
    """Of the Ray cluster.

    Fields:
        address: HOST:PORT of a running cluster; none takes RAY_ADDRESS, and where that is not set either, a cluster is
            started on this machine, on the loopback device alone, and ended with the run.
        cpus: that each worker reserves; a GPU besides, where the run is on GPUs.
        placement_seconds: how long a worker may wait for a place in the cluster.
        train_in_cluster: with `orchestration.trainers` above 1 its ranks are actors as well, the first one on the
            driver's node, the others wherever there is room; all nodes must see the run's folder.
    """

    address: str | None = None
    cpus: Annotated[float, Field(gt=0)] = 1.0
    placement_seconds: Annotated[float, Field(gt=0)] = 120.0
    train_in_cluster: bool = False
