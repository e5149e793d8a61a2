"""`VllmEngine`: the engine protocol over a worker process in which vLLM runs.

    submit → waiting samples ─┐ fewer than `slots` run
                              v
    step:  one message {forget these, take in those} ──▶ worker: vLLM's own step ──▶ a token of every running sample

Every sample is a request of its own to vLLM, with the seed of (request seed, sample). Stop strings, budgets and
versions are kept on this side; vLLM samples. Because it does so only when told to, weights change between two tokens of
all sequences, and `pause` is not to step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, FinishReason, FloatArray, InputError, IntArray, StropError, VersionSpan
from strop.engines.protocol import (
    Capabilities,
    Drawn,
    Health,
    KvMode,
    OpenRequests,
    PauseMode,
    Request,
    Sampling,
    Scores,
    WeightSource,
)
from strop.engines.requests import checked
from strop.engines.sampling import stream_key
from strop.engines.slots import Entry
from strop.engines.stops import StopStrings
from strop.engines.vllm.arguments import arguments_of
from strop.engines.vllm.model_folder import ModelFolder
from strop.engines.vllm.process import VllmProcess
from strop.engines.vllm.settings import Vllm
from strop.engines.vllm.staging import in_memory
from strop.engines.weights import checked as checked_weights
from strop.model.files import DTYPES
from strop.model.location import dtype_name
from strop.model.settings import ModelSettings

_SEED_MASK = (1 << 63) - 1


@dataclass(eq=False)
class _Sample:
    """One sample from its request to its report; `key` is its name at the worker while it runs."""

    entry: Entry
    index: int
    key: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)  # (version, first token)

    def spans(self) -> tuple[VersionSpan, ...]:
        ends = [start for _, start in self.starts[1:]] + [len(self.tokens)]
        return tuple(VersionSpan(version, start, end) for (version, start), end in zip(self.starts, ends, strict=True))


class VllmEngine:
    """An `Engine` on vLLM. See `strop.engines.protocol.Engine` for the methods of the protocol.

    `folder` holds the model as transformers saves it; `model` says how it computes (its type, the float32 head).
    `version` is what the weights in it are. `verify_weights` and `score` have to step vLLM: running sequences may
    advance by a few tokens, which the next `step` reports. Besides it is `Streaming` and `Scoring`.

    Raises:
        InputError: no interpreter, or settings that the model cannot honour.
        StropError: vLLM does not start; the message ends with what it said.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        settings: Vllm,
        model: ModelSettings,
        version: int = 0,
    ) -> None:
        self.settings = settings
        self._folder = ModelFolder.read(folder)
        self._limits = self._folder.limits(tokenizer, settings.max_tokens)
        self._tokenizer = tokenizer
        own = dtype_name(model)
        dtype = own if settings.dtype is None else settings.dtype
        self._dtypes = self._folder.dtypes | {DTYPES[dtype], DTYPES[own]}
        self._version = version
        self._paused = False
        self._failure: str | None = None
        self._strings = StopStrings(tokenizer)
        self._open = OpenRequests()
        self._waiting: deque[_Sample] = deque()
        self._running: dict[int, _Sample] = {}
        self._abort: list[int] = []  # keys that the worker is to forget
        self._keys = 0
        self._reports: list[Completion] = []
        self._process = VllmProcess(settings)
        try:
            self._facts = self._start(arguments_of(settings, folder, model, dtype, self._limits), version)
        except BaseException:
            self._process.end()
            raise

    def _start(self, arguments: dict[str, Any], version: int) -> dict[str, Any]:
        gib = 1.0 if self.settings.kv_cache_gib is None else self.settings.kv_cache_gib
        cpu = {"enforce_eager": True, "kv_cache_memory_bytes": int(gib * 2**30), "block_size": 32}
        fields = {"arguments": arguments, "cpu": cpu, "version": version}
        try:
            facts, _ = self._process.ask("start", fields, (), self.settings.start_seconds)
        except InputError:
            raise
        except StropError as error:
            raise StropError(f"{error}{self._process.end()}; see docs/vllm.md for what it needs") from error
        if facts["vocabulary"] != self._limits.vocabulary:
            raise StropError(f"vLLM knows {facts['vocabulary']} tokens, the model {self._limits.vocabulary}")
        return facts

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(max_tokens=self._limits.max_tokens, interruptions=False)

    @property
    def weight_version(self) -> int:
        return self._version

    @property
    def unfinished(self) -> int:
        return sum(self._open.values())

    @property
    def process(self) -> VllmProcess:
        """The worker, for supervision."""
        return self._process

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself: `vllm` (its version), `platform` and others."""
        return self._facts

    def check(self, sampling: Sampling) -> None:
        """Refuse sampling that no request could have here, before there is one.

        Raises:
            InputError: `Vllm.refuse_unable`; or top-k and top-p where this vLLM is built otherwise than those we know,
                so that log-probs of the whole vocabulary could not be recorded beside them.
        """
        self.settings.refuse_unable(sampling)
        cut = sampling.top_p < 1 or sampling.top_k is not None
        if cut and sampling.temperature > 0 and not self._facts["whole_distribution"]:
            raise InputError(
                f"sampling.top_p={sampling.top_p}, top_k={sampling.top_k}: vLLM {self._facts['vllm']} records the "
                "log-probs of what they leave, not of the whole vocabulary; unset them, or see docs/vllm.md"
            )

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InputError: the engine is paused or failed, the id is in use, or the request is outside its limits.
        """
        self._refuse_if_failed()
        if self._paused:
            raise InputError(f"request {request.id}: the engine is paused; resume() first")
        if request.id in self._open:
            raise InputError(f"request {request.id}: a request of this id is unfinished; use another id")
        self.check(request.sampling)
        entry = checked(request, self._limits, self._tokenizer)
        self._waiting.extend(_Sample(entry, index) for index in range(request.n))
        self._open.begin(request)

    def step(self) -> list[Completion]:
        """Advance every running sequence by a token; the completions that finished (paused: what was cancelled).

        Raises:
            InputError: an earlier step failed.
            StropError: the worker died or hangs, vLLM failed, or a log-prob is not finite.
        """
        self._refuse_if_failed()
        if not self._paused and (self._running or self._waiting or self._abort):
            self._advance()
        reports, self._reports = self._reports, []
        self._open.reported(reports)
        return reports

    def cancel(self, request_id: str) -> None:
        """Forget a request; the next `step` reports its samples, finish_reason `abort`, those never started empty.

        Raises:
            InputError: no unfinished request has this id.
        """
        if request_id not in self._open:
            raise InputError(f"cancel: no unfinished request {request_id!r}")
        for sample in [one for one in self._running.values() if one.entry.request.id == request_id]:
            self._drop(sample)
            self._report(sample, "abort")
        for sample in [one for one in self._waiting if one.entry.request.id == request_id]:
            self._waiting.remove(sample)
            self._report(sample, "abort")

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop stepping; `abort` cancels everything, which the next `step` still reports."""
        self._paused = True
        if mode == "abort":
            for request_id in list(self._open):
                self.cancel(request_id)

    def resume(self) -> None:
        self._paused = False

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        """Swap in every parameter, or none; see the protocol and `engines.weights.stage`.

        Names, shapes, types and values are checked here before the worker hears of them; it checks the hash. A failure
        after that leaves an engine that refuses to go on, never one that serves half of a version.

        Raises:
            InputError: weights that do not fit, or a version below the present one.
            StropError: the worker failed at it.
        """
        self._refuse_if_failed()
        staged = checked_weights(self._folder.in_files(source), self._folder.shapes, self._folder.tied, self._dtypes)
        self._refuse_older(version)
        self._begin_again_unstarted()
        with in_memory(staged) as (path, digest):
            fields = {"path": path, "blake2b": digest, "version": version, "kv": kv, "abort": self._taken_aborts()}
            self._ask("update", fields, ())
        self._version = version

    def _refuse_older(self, version: int) -> None:
        if version < self._version:
            raise InputError(f"weights of version {version} are older than the engine's {self._version}")

    def _begin_again_unstarted(self) -> None:
        """A sequence without a token has at most part of its prompt computed, by the old weights."""
        unstarted = [sample for sample in self._running.values() if not sample.tokens]
        for sample in reversed(unstarted):
            self._drop(sample)
            self._waiting.appendleft(sample)

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of `probe_ids` [L] after the first, temperature 1, from this engine's weights and head.

        Raises:
            InputError: a probe of fewer than two tokens, or of as many as the engine can hold.
        """
        self._refuse_if_failed()
        if not 2 <= len(probe_ids) < self._limits.max_tokens:
            raise InputError(f"a probe of {len(probe_ids)} tokens: give 2 to {self._limits.max_tokens - 1}")
        finished, parts = self._ask("verify", {"abort": self._taken_aborts()}, (_packed(probe_ids),))
        self._record(finished, parts)
        return np.frombuffer(parts[3], np.float32)

    def score(self, sequences: Sequence[IntArray], temperature: float = 1.0, top: int = 0) -> list[Scores]:
        """Log-probs of given tokens; see `protocol.Scoring`. It has to step vLLM, as `verify_weights` does.

        Raises:
            InputError: a sequence is outside the engine's limits (vLLM needs a place after it), or more of the best
                tokens are asked for than vLLM was started to give.
        """
        self._refuse_if_failed()
        for ids in sequences:
            self._limits.refuse_sequence(ids)
            if len(ids) >= self._limits.max_tokens:
                raise InputError(f"a sequence of {len(ids)} tokens: vLLM scores {self._limits.max_tokens - 1} at most")
        if top > self._facts["most_logprobs"]:
            raise InputError(f"the {top} most probable tokens: vLLM gives {self._facts['most_logprobs']} at most")
        top = min(top, self._limits.vocabulary)
        told = tuple(_packed(ids) for ids in sequences if len(ids) > 1)
        parts = [b""] * 6
        if told:
            fields = {"abort": self._taken_aborts(), "temperature": temperature or 1.0, "top": top}
            finished, parts = self._ask("score", fields, told)
            self._record(finished, parts)
        ends = np.cumsum([len(ids) - 1 for ids in sequences])[:-1]
        logprobs = np.frombuffer(parts[3], np.float32)
        ids_of_best = np.frombuffer(parts[4], np.int32).reshape(len(logprobs), top)
        best = np.frombuffer(parts[5], np.float32).reshape(len(logprobs), top)
        parted = zip(*(np.split(column, ends) for column in (logprobs, ids_of_best, best)), strict=True)
        return [Scores(*score) for score in parted][: len(sequences)]

    def drawn(self, since: Mapping[tuple[str, int], int]) -> list[Drawn]:
        """What running samples drew since; see `strop.engines.protocol.Streaming`."""
        found = []
        for sample in self._running.values():
            name, index = sample.entry.request.id, sample.index
            start = since.get((name, index))
            if start is not None and start < len(sample.tokens):
                token_ids = np.array(sample.tokens[start:], np.int32)
                found.append(Drawn(name, index, token_ids, np.array(sample.logprobs[start:], np.float32)))
        return found

    def health(self) -> Health:
        if self._failure is None and not self._process.alive:
            self._failure = f"vLLM's worker has ended{self._process.end()}"
        return Health(self._failure is None, self._failure or "ok", len(self._running), len(self._waiting))

    def close(self) -> None:
        """End the worker; the engine cannot be used any more."""
        self._failure = self._failure or "closed"
        self._waiting.clear()
        self._running.clear()
        self._process.stop()

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise InputError(f"this engine cannot go on ({self._failure}); make a new one")

    def _ask(
        self, command: str, fields: dict[str, Any], blobs: tuple[bytes, ...]
    ) -> tuple[dict[str, Any], list[bytes]]:
        try:
            return self._process.ask(command, fields, blobs, self.settings.reply_seconds)
        except InputError:  # refused: the worker is as it was
            raise
        except BaseException as error:  # an interrupt too leaves an answer behind that belongs to nobody
            self._failure = f"{type(error).__name__}: {error}"
            self._process.end()
            raise

    def _taken_aborts(self) -> list[int]:
        taken, self._abort = self._abort, []
        return taken

    def _advance(self) -> None:
        added: list[dict[str, Any]] = []
        prompts: list[bytes] = []
        while self._waiting and len(self._running) < self.settings.slots:
            sample = self._waiting.popleft()
            self._keys += 1
            sample.key = self._keys
            self._running[sample.key] = sample
            added.append(_asked(sample))
            prompts.append(_packed(sample.entry.ids))
        finished, parts = self._ask("step", {"abort": self._taken_aborts(), "add": added}, tuple(prompts))
        self._record(finished, parts)

    def _record(self, answer: dict[str, Any], parts: list[bytes]) -> None:
        """Note what was sampled, and finish the sequences that end with it."""
        keys, tokens = np.frombuffer(parts[0], np.int64).tolist(), np.frombuffer(parts[1], np.int32).tolist()
        logprobs = np.frombuffer(parts[2], np.float32)
        if not np.isfinite(logprobs).all():
            self._failure = f"weights of version {self._version} have overflowed"
            raise StropError(
                f"a sampled log-prob is not finite: {self._failure}; go back to an earlier checkpoint with a lower "
                "optim.lr"
            )
        for key, token, logprob in zip(keys, tokens, logprobs.tolist(), strict=True):
            sample = self._running.get(key)
            if sample is not None:
                self._append(sample, token, logprob)
        # vLLM ends by the same rules; one that it ended and we did not would wait for ever.
        for key, reason in answer["finished"].items():
            if int(key) in self._running:
                self._failure = f"vLLM ended a sequence as {reason!r} before its end"
                raise StropError(f"{self._failure}; {self._running[int(key)].entry.request.id}")

    def _append(self, sample: _Sample, token: int, logprob: float) -> None:
        if not sample.starts or sample.starts[-1][0] != self._version:
            sample.starts.append((self._version, len(sample.tokens)))
        sample.tokens.append(token)
        sample.logprobs.append(logprob)
        sampling = sample.entry.request.sampling
        full = len(sample.tokens) >= sampling.max_new_tokens
        if token in sample.entry.stop_ids:
            self._end(sample, "stop")
        elif sampling.stop and self._string_found(sample):
            if not full:
                self._abort.append(sample.key or 0)
            self._end(sample, "stop")
        elif full:
            self._end(sample, "length")

    def _string_found(self, sample: _Sample) -> bool:
        stops = sample.entry.request.sampling.stop
        return self._strings.found(stops, sample.tokens[-self._strings.window(stops) :])

    def _end(self, sample: _Sample, reason: FinishReason) -> None:
        assert sample.key is not None
        del self._running[sample.key]
        self._report(sample, reason)

    def _drop(self, sample: _Sample) -> None:
        """Take a running sample from the worker."""
        assert sample.key is not None
        del self._running[sample.key]
        self._abort.append(sample.key)
        sample.key = None

    def _report(self, sample: _Sample, reason: FinishReason) -> None:
        token_ids = np.array(sample.tokens, np.int32)
        self._reports.append(
            Completion(
                request_id=sample.entry.request.id,
                index=sample.index,
                prompt_ids=sample.entry.request.prompt_ids,
                token_ids=token_ids,
                logprobs=np.array(sample.logprobs, np.float32),
                versions=sample.spans() if sample.tokens else (),
                injected=np.zeros(len(token_ids), np.bool_),
                text=self._text(sample.tokens),
                finish_reason=reason,
            )
        )

    def _text(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def _asked(sample: _Sample) -> dict[str, Any]:
    """What the worker is told of a sample."""
    request = sample.entry.request
    return {
        "key": sample.key,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k or 0,
        "seed": stream_key(request.seed, sample.index) & _SEED_MASK,
        "max_tokens": request.sampling.max_new_tokens,
        "stop_token_ids": list(sample.entry.stop_ids),
    }


def _packed(ids: IntArray | np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(ids, np.int32).tobytes()
