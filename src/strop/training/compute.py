"""Compute accounting: what a run has spent so far, as device-seconds and as floating-point operations.

A device-second is a second of one GPU, or of one core where there is none; device-seconds / 3600 are the GPU-hours of
compute-performance curves. In one process the generator and the trainer take turns on the same devices. What
evaluations take is counted apart: it is no part of the compute of a curve.

    t_R rollout, t_T update, t_O everything else of a step but evaluation and checkpoints (Skywork-OR1, Section 5)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

GENERATOR = ("rollout",)
TRAINER = ("update",)
APART = ("evaluation", "checkpoint")  # not part of training


# Operations a second of dense bfloat16 products, from NVIDIA's data sheets; the first name that is part of the GPU's.
PEAKS = {
    "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "H800": 989e12, "B200": 2250e12,
    "A100": 312e12, "A800": 312e12, "L40S": 362e12,
}  # fmt: skip


class ComputeMeter:
    """Adds up the compute of a run, over resumes too.

    Args:
        devices: of the trainer: GPUs, or cores on a machine without.
        generators: devices that only generate, charged whether they work or wait, as the trainer's then are; 0: they
            take turns with the trainer on its devices, and each is charged the time of its turns.
        parameters: of the policy, embeddings left out: a token costs 2 operations a parameter forward, 4 backward.
        width: of attention, over all heads and layers: a pair of tokens costs 4 operations forward, 8 backward.
        peak: operations a second of one of the trainer's devices; None: not known.
    """

    def __init__(
        self, devices: int, parameters: int, generators: int = 0, width: int = 0, peak: float | None = None
    ) -> None:
        self._width, self._peak = width, peak
        self._devices = devices
        self._generators = generators
        self._parameters = parameters
        self._spent = {"device_seconds": 0.0, "generator_seconds": 0.0, "trainer_seconds": 0.0, "flops": 0.0}
        self._evaluating = 0.0

    def add(self, seconds: Mapping[str, float], row: Mapping[str, float | None]) -> dict[str, float]:
        """Count a step; the totals so far as `compute/…`, device-seconds and operations.

        Args:
            seconds: of each section of the step (`Clock.lap`), `step` being their sum.
            row: the step's metrics; `tokens/generated`, `tokens/injected`, `tokens`, `pairs/generated`, `pairs` and the
                critic's say what was computed. Prompts that are prefilled and passes that only score are not in it.

        Returns:
            Also `mfu`, the share of the peak that updates reached, where the peak is known.
        """
        training = seconds["step"] - sum(seconds.get(name, 0.0) for name in APART)
        self._spent["device_seconds"] += training * (self._devices + self._generators)
        if self._generators:
            self._spent["generator_seconds"] += training * self._generators
            self._spent["trainer_seconds"] += training * self._devices
        else:
            self._spent["generator_seconds"] += sum(seconds.get(name, 0.0) for name in GENERATOR) * self._devices
            self._spent["trainer_seconds"] += sum(seconds.get(name, 0.0) for name in TRAINER) * self._devices
        generating = self._forward(row, ("tokens/generated", "tokens/injected"), ("pairs/generated",))
        updating = 3.0 * self._forward(row, ("tokens", "critic/tokens"), ("pairs", "critic/pairs"))
        self._spent["flops"] += generating + updating
        found = {f"compute/{name}": value for name, value in self._spent.items()}
        if self._peak is not None and seconds.get("update"):
            found["mfu"] = updating / (seconds["update"] * self._devices * self._peak)
        return found

    def _forward(self, row: Mapping[str, float | None], tokens: Sequence[str], pairs: Sequence[str]) -> float:
        """Operations of a forward pass over the tokens and pairs of tokens that these metrics count."""
        through, attended = (sum(row.get(name) or 0.0 for name in names) for names in (tokens, pairs))
        return 2.0 * self._parameters * through + 4.0 * self._width * attended

    def evaluated(self, device_seconds: float) -> dict[str, float]:
        """Count an evaluation, wherever it ran; the total so far, which is no part of the others."""
        self._evaluating += device_seconds
        return {"compute/evaluator_seconds": self._evaluating}

    def evaluated_before(self, total: float | None) -> None:
        """`compute/evaluator_seconds` of an evaluation that came in after the state that `load` took."""
        self._evaluating = max(self._evaluating, total or 0.0)

    def state(self) -> dict[str, float]:
        """JSON-able."""
        return {**self._spent, "evaluator_seconds": self._evaluating}

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from `state()`."""
        self._spent = {name: state[name] for name in self._spent}
        self._evaluating = state["evaluator_seconds"]


def peak_of(device: torch.device, dtype: torch.dtype) -> float | None:
    """Operations a second of the device's matrix products in that type; None where they are not known."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in PEAKS.items() if known in name), None)


def devices_of(device: torch.device) -> int:
    """How many devices one process on `device` keeps busy: a GPU, or the cores torch uses."""
    return 1 if device.type == "cuda" else torch.get_num_threads()
