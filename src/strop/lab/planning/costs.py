"""The costs of a token, an update and a publication, in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from strop.base.pieces import Settings
from strop.base.types import InputError
from strop.config.edits import explain

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Costs(Settings):
    """Seconds, all of them; what is left at 0 costs nothing.

    A decode step of a generator with n running sequences, whose prompts and completions so far have X tokens together,
    takes `decode_step + decode_sequence·n + decode_context·X`; each of them is a token further then. An update of R
    trainer ranks on T tokens takes `train_update + train_token·T / R`.

    Attributes:
        decode_step: a decode step whatever runs in it: weights read, kernels launched.
        decode_sequence: more for each running sequence.
        decode_context: more for each token of their contexts (attention over the KV cache).
        start_sequence: to start a sequence; its share of the prompt's prefill.
        verdict: from a completion's last token to its verdict, beside generation.
        train_step: an update phase whatever it holds (old and reference scores, offloading).
        train_update: each optimizer update.
        train_token: each token, prompts included, on one rank.
        publish: a publication of weights, as the controller waits for it.
        swap: how long each generator stands still to take new weights.
        record_step: what the controller does between two steps: metrics, rollouts, checkpoints.
        record_token: more for each generated token.
    """

    decode_step: Seconds = 0.0
    decode_sequence: Seconds = 0.0
    decode_context: Seconds = 0.0
    start_sequence: Seconds = 0.0
    verdict: Seconds = 0.0
    train_step: Seconds = 0.0
    train_update: Seconds = 0.0
    train_token: Seconds = 0.0
    publish: Seconds = 0.0
    swap: Seconds = 0.0
    record_step: Seconds = 0.0
    record_token: Seconds = 0.0

    def decoding(self, steps: float, running: int, context: float) -> float:
        """Seconds of `steps` decode steps in a row of `running` sequences, `context` tokens together at the first."""
        # The context grows by one token a sequence and step: X·m + n·m(m − 1)/2 over m steps.
        grown = steps * context + running * steps * (steps - 1) / 2
        return steps * (self.decode_step + self.decode_sequence * running) + self.decode_context * grown

    def updating(self, tokens: float, updates: int, ranks: int) -> float:
        """Seconds of `updates` optimizer updates on `tokens` tokens in all."""
        return self.train_step + updates * self.train_update + self.train_token * tokens / ranks

    def recording(self, tokens: float) -> float:
        """Seconds the controller takes to write down a step of `tokens` generated tokens."""
        return self.record_step + self.record_token * tokens

    def edited(self, pairs: Sequence[str]) -> Costs:
        """These costs with `name=seconds` changes.

        Raises:
            InputError: an unknown name, or no number of seconds.
        """
        changes: dict[str, str] = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals:
                raise InputError(f"--cost {pair}: write it as NAME=SECONDS, e.g. decode_step=0.01")
            changes[name.strip()] = value.strip()
        return costs_from(self.model_dump() | changes, "--cost")


def costs_from(data: Mapping[str, object], origin: str) -> Costs:
    """Costs from plain values.

    Raises:
        InputError: naming `origin`, the cost and what would be valid.
    """
    try:
        return Costs.model_validate(dict(data))
    except ValidationError as error:
        known = ", ".join(Costs.model_fields)
        raise InputError(f"{origin}: {explain(error)}; costs are {known}, in seconds") from error
