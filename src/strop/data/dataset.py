"""Problems with their prompts as token ids: a run's training and held-out problems.

data = load_data(settings, tokenizer)
data.train[3].prompt_ids, data.held_out, data.report()
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from strop.base.text import counted
from strop.base.types import IntArray, Problem
from strop.data.source import problem_key
from strop.data.templates import Instruction, PromptTemplate, Tokenizer, encode_prompt, opening


@dataclass(frozen=True, eq=False)
class Example:
    """A problem and its prompt: `prompt_ids`, int32 [prompt tokens].

    If the prompt ends with an opened think block, `problem.extra["opening"]` is `<think>`, which verifiers put in front
    of the completion.
    """

    problem: Problem
    prompt_ids: IntArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples in a fixed order.

    Attributes:
        over_budget: number of problems that were left out because of longer prompts than `max_prompt_tokens`.
    """

    name: str
    examples: tuple[Example, ...]
    over_budget: int = 0
    max_prompt_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the examples."""
        return tuple(example.problem for example in self.examples)

    @cached_property
    def different(self) -> int:
        """The number of different problems; a mixture may repeat problems."""
        return len({problem_key(example.problem) for example in self.examples})

    @property
    def size(self) -> str:
        """`60 problems`, or `60 problems (20 different ones)`."""
        listed = counted(len(self), "problems")
        return listed if self.different == len(self) else f"{listed} ({counted(self.different, 'different ones')})"

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt; 0 without examples."""
        return max((len(example.prompt_ids) for example in self.examples), default=0)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of ids, prompts and references in order; a resumed run needs the same one."""
        digest = hashlib.blake2b(digest_size=16)
        for example in self.examples:
            for part in (example.problem.id, example.prompt_ids.tolist(), example.problem.reference):
                digest.update(repr(part).encode() + b"\0")
        return digest.hexdigest()

    def subset(self, indices: Sequence[int]) -> Dataset:
        """The examples at `indices`, in that order."""
        return replace(self, examples=tuple(self.examples[index] for index in indices))


@dataclass(frozen=True, eq=False)
class Data:
    """The training problems and the held-out problems of a run.

    Attributes:
        train: the training problems.
        held_out: None if nothing is held out.
        removed: training problems left out because they ask a held-out question.
        spoilt: problems that were not held out because the model was trained on them before.
        cut: the source of held-out problems has more than `data.held_out.count` takes.
    """

    train: Dataset
    held_out: Dataset | None
    removed: int
    spoilt: int = 0
    cut: bool = False

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt of both."""
        return max(part.longest_prompt for part in (self.train, self.held_out) if part is not None)

    def report(self) -> tuple[str, ...]:
        """Lines with the numbers of problems, and of those left out with the reason."""
        sets = [("train", self.train), *([("held out", self.held_out)] if self.held_out is not None else [])]
        lines = [
            f"{role}: {data.size} of {data.name}, prompts up to {data.longest_prompt} tokens" for role, data in sets
        ]
        lines += [
            f"{role}: {counted(data.over_budget, 'problems')} left out, their prompts exceed "
            f"{data.max_prompt_tokens} tokens"
            for role, data in sets
            if data.over_budget
        ]
        if self.removed:
            lines.append(f"train: {counted(self.removed, 'problems')} left out, their questions are held out")
        if self.cut and self.held_out is not None:
            lines.append(f"held out: only the first of {self.held_out.name}; data.held_out.count=none takes all")
        if self.spoilt:
            lines.append(f"held out: {counted(self.spoilt, 'problems')} left out, the model was trained on them before")
        return tuple(lines)


def make_example(
    problem: Problem, template: PromptTemplate, tokenizer: Tokenizer, instruction: Instruction | None = None
) -> Example:
    """Render a problem; `instruction` comes from its verifier."""
    template = template.resolved(problem, tokenizer, instruction)
    text = template.render(problem, tokenizer)
    begun = opening(text)
    if begun:
        problem = replace(problem, extra={**problem.extra, "opening": begun})
    return Example(problem, encode_prompt(text, tokenizer, template.adds_bos))
