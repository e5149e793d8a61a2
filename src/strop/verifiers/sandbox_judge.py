"""Judging programs beside generating: threads wait for the sandbox while the engine goes on."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from strop.base.types import Completion, Problem, Verdict
from strop.verifiers.base import response
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.judge import Judge, Key
from strop_verify.verdict import Status


class SandboxJudge(Judge):
    """A `Judge` for a `CodeVerifier`, with a sandbox of its own.

    Args:
        verifier: how programs are judged.

    Raises:
        NoIsolation: this machine cannot isolate foreign programs.
    """

    def __init__(self, verifier: CodeVerifier) -> None:
        self._verifier = verifier
        self._sandbox = verifier.open_sandbox()
        self._threads = ThreadPoolExecutor(self._sandbox.workers, thread_name_prefix="strop-sandbox")
        self._running: dict[Key, Future[Verdict]] = {}

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        return len(self._running)

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Queue a completion; returns at once.

        Raises:
            ValueError: a completion of this key is being judged already.
        """
        if key in self._running:
            raise ValueError(f"completion {key} is being judged already")
        self._running[key] = self._threads.submit(self._judge, problem, completion)

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that have come in since; never waits."""
        done = [key for key, future in self._running.items() if future.done()]
        return [(key, self._running.pop(key).result()) for key in done]

    def wait(self, seconds: float) -> None:
        """Sleep until a verdict is there, at most `seconds`."""
        if self._running:
            wait(self._running.values(), seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Drop what is queued, kill what runs, leave nothing behind."""
        for future in self._running.values():
            future.cancel()
        self._sandbox.close()
        self._threads.shutdown()
        self._running.clear()

    def _judge(self, problem: Problem, completion: Completion) -> Verdict:
        verifier = self._verifier
        if completion.truncated and verifier.require_stop:
            return Verdict(0.0, Status.UNPARSED, "truncated")
        return verifier.judge_in(self._sandbox, problem, response(problem, completion.text))
