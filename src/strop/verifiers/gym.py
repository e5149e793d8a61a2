"""The scorers that reasoning-gym's tasks bring (extra `gym`)."""

from __future__ import annotations

from strop.base.types import Problem, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Verifier, instruction_for, response, scored
from strop_verify.extract import Where, canonical, extract_answer
from strop_verify.verdict import Status, shortened


class ReasoningGymScorer(Verifier):
    """Asks the task that made the problem (`data.ReasoningGym`) to score the answer.

    Fields:
        extract: where the answer stands in the response (see `extract_answer`).
        partial_credit: keep the task's scores between 0 and 1; else anything short of 1 is worth 0.
    """

    extract: Where = "any"
    partial_credit: bool = False

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The task's verdict; an exception of its scorer is an error, never a reward.

        Raises:
            InputError: the package is absent.
        """
        from strop.data.reasoning_gym import open_entry, open_task

        found = extract_answer(text, self.extract)
        if found is None:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        extra = problem.extra
        if "task" not in extra or "index" not in extra:
            return Verdict(0.0, Status.ERROR, f"problem {problem.id} does not come from reasoning-gym")
        dataset = open_task(extra["task"], extra["size"], extra["seed"], extra["parameters"])
        entry = open_entry(dataset, extra["index"])
        if entry["question"] != problem.prompt:
            return Verdict(0.0, Status.ERROR, f"reasoning-gym no longer makes problem {problem.id} as it did")
        try:
            score = float(dataset.score_answer(answer=found, entry=entry))
        except Exception as error:  # a scorer may raise anything; it becomes a verdict that says so
            return Verdict(0.0, Status.ERROR, f"{type(error).__name__} in {extra['task']}: {shortened(str(error))}")
        return scored(score, shortened(found), self.partial_credit)

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return instruction_for(self.extract)

    def answer(self, problem: Problem, text: str) -> str | None:
        """The canonical form of the answer that a completion gives."""
        found = extract_answer(response(problem, text), self.extract)
        return None if found is None else canonical(found)
