"""Reward functions in the forms that TRL, verl and verifiers call. None of them imports the trainer.

    GRPOTrainer(reward_funcs=trl_reward("math"), ...)                                       # TRL
    reward.custom_reward_function.path=pkg://strop_verify.adapters  (name: compute_score)   # verl
    vf.Rubric(funcs=[rubric_reward("math")])                                                # verifiers up to 0.3
    [taskset.task.rewards.math]  fn = "strop_verify.adapters:task_reward"                   # verifiers from 0.4

All of them use the shared worker processes and sandboxes of `strop_verify.math` and `strop_verify.code`. A failure of
the verifier is never a reward: each adapter reports it in the way that its trainer offers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal

from strop_verify import code, math
from strop_verify.code import ProgramSettings
from strop_verify.code.tests import read_tests
from strop_verify.math import MathSettings
from strop_verify.math.settings import stated_form, stated_settings
from strop_verify.verdict import Verdict, VerifyError

Domain = Literal["math", "code"]
COLUMNS: dict[Domain, tuple[str, ...]] = {"math": ("solution", "answer"), "code": ("tests",)}


class VerifierFailed(VerifyError):
    """The verifier gave no verdict, for instance because a worker died twice; the response did not cause it."""


def trl_reward(
    domain: Domain, column: str | None = None, math_settings: MathSettings | None = None,
    program_settings: ProgramSettings | None = None,
) -> Callable[..., list[float | None]]:  # fmt: skip
    """A reward function for TRL's trainers. It returns None where the verifier failed, and TRL leaves the sample out.

    Args:
        domain: `math` or `code`.
        column: the data set's column of answers or tests; by default `solution` or `answer`, and `tests`.
        math_settings: see `strop_verify.math.verify`.
        program_settings: see `strop_verify.code.verify`.
    """

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        references = _first(columns, (column,) if column else COLUMNS[domain])
        pairs = [(reference, _text(one)) for reference, one in zip(references, completions, strict=True)]
        rewards: list[float | None] = [None] * len(pairs)
        found = (
            math.verify_all(pairs, math_settings) if domain == "math" else code.verify_all(pairs, program_settings)
        )
        for place, verdict in found:
            rewards[place] = verdict.score if verdict.usable else None
        return rewards

    reward.__name__ = f"{domain}_reward"  # TRL logs under this name
    return reward


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, domain: Domain | None = None,
    **_: Any,
) -> dict[str, float]:  # fmt: skip
    """verl's reward function: `score`, `acc`, and `verifier_failed`, which is 1 where the score of 0 is no verdict.

    Args:
        data_source: given by verl and not used: what a ground truth is, it says itself.
        extra_info: its `question` and the columns that say what an answer is (`math.settings.FORM`) count.
        solution_str: the response.
        ground_truth: an answer, or the tests of a program, as JSON text too.
        domain: `math` or `code`, set with `custom_reward_function.reward_kwargs`; by default a ground truth that can be
            read as tests is code.
    """
    chosen = domain or ("code" if _is_tests(ground_truth) else "math")
    said = extra_info if isinstance(extra_info, Mapping) else {}
    settings = stated_settings(MathSettings(), str(said.get("question", "")), stated_form(said))
    verdict = _verify(chosen, ground_truth, solution_str, settings)
    return {"score": verdict.score, "acc": float(verdict.passed), "verifier_failed": float(not verdict.usable)}


def rubric_reward(
    domain: Domain, math_settings: MathSettings | None = None, program_settings: ProgramSettings | None = None
) -> Callable[..., Coroutine[Any, Any, float]]:
    """A reward function for a `Rubric` of verifiers; the answer or the tests are the data set's column `answer`.

    It raises `VerifierFailed` where there is no verdict; the rubric logs that and counts 0.
    """

    async def reward(completion: Any, answer: Any, **_: Any) -> float:
        return await _score(domain, answer, _text(completion), math_settings, program_settings)

    reward.__name__ = f"{domain}_reward"
    return reward


async def task_reward(task: Any, trace: Any) -> float:
    """A reward for tasks of `verifiers.v1` whose data have the field `tests` (programs) or `answer` (mathematics).

    Raises:
        VerifierFailed: there is no verdict; verifiers then counts the rollout as failed.
        VerifyError: the task's data have neither field.
    """
    if (tests := getattr(task, "tests", None)) is not None:
        return await _score("code", tests, trace.last_reply)
    if (answer := getattr(task, "answer", None)) is not None:
        return await _score("math", answer, trace.last_reply)
    raise VerifyError("the task's data have neither 'answer' nor 'tests'")


async def _score(
    domain: Domain, reference: Any, response: str, math_settings: MathSettings | None = None,
    program_settings: ProgramSettings | None = None,
) -> float:  # fmt: skip
    verdict = await asyncio.to_thread(_verify, domain, reference, response, math_settings, program_settings)
    if not verdict.usable:
        raise VerifierFailed(verdict.detail)
    return verdict.score


def _verify(
    domain: Domain, reference: Any, response: str, math_settings: MathSettings | None = None,
    program_settings: ProgramSettings | None = None,
) -> Verdict:  # fmt: skip
    if domain == "code":
        return code.verify(reference, response, program_settings)
    return math.verify(str(reference), response, math_settings)


def _first(columns: dict[str, Any], names: Sequence[str]) -> Sequence[Any]:
    for name in names:
        if columns.get(name) is not None:
            found: Sequence[Any] = columns[name]
            return found
    raise VerifyError(f"the data set has no column {' or '.join(map(repr, names))}")


def _text(completion: Any) -> str:
    """The text of a completion: it is a text, or a list of messages of which the last one counts."""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else ""
    content = last.get("content") if isinstance(last, dict) else getattr(last, "content", last)
    if isinstance(content, list):  # parts, of which some are texts
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _is_tests(ground_truth: Any) -> bool:
    if isinstance(ground_truth, str) and not ground_truth.lstrip().startswith(("{", "[")):
        return False
    try:
        read_tests(ground_truth)
    except (ValueError, TypeError, KeyError):
        return False
    return True
