"""What trl_losses.py and verl_losses.py share; runs in a peer's environment, imports nothing of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version

import torch

Given = dict[str, torch.Tensor]
Found = dict[str, torch.Tensor]


def answer(peer: str, calls: Mapping[str, Callable[..., Found]]) -> None:
    """Read a JSON object {tensors, cases} on standard input, compute each case with its `call` of these, and write one
    of {version, found}."""
    what = json.load(sys.stdin)
    found = {}
    for name, case in what["cases"].items():
        given = {key: torch.tensor(column, dtype=torch.float64) for key, column in what["tensors"].items()}
        result = calls[case.pop("call")](given, **case)
        found[name] = {key: tensor.tolist() for key, tensor in result.items()}
    print(json.dumps({"version": version(peer), "found": found}))
