"""Loads a run's problems: reads and renders them, and holds some out.

data = load_data(settings, tokenizer)
data.train[3].prompt_ids, data.held_out, data.report()

record = ProblemRecord.of(data)             # kept in the run folder as problems.json
record.held_out_of(problems)                # later: the same held-out problems, found by their questions
record.trained_on(problems)                 # how many of these the run was trained on
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strop.base.progress import doing
from strop.base.seeds import permutation
from strop.base.types import InputError, Problem
from strop.data.dataset import Data, Dataset, make_example
from strop.data.settings import DataSettings
from strop.data.source import question_digest, question_key
from strop.data.templates import Instruction, PromptTemplate, Tokenizer

Instruct = Callable[[Problem], Instruction | None]
Seen = Callable[[Problem], bool]


def no_instruction(problem: Problem) -> Instruction | None:
    """The instruction for verifiers that read any form of an answer: none."""
    return None


def never_seen(problem: Problem) -> bool:
    """`Seen` for a model without known training problems: always false."""
    return False


@doing("reading the problems")
def load_data(
    settings: DataSettings, tokenizer: Tokenizer, instruct: Instruct = no_instruction, seen: Seen = never_seen
) -> Data:
    """Read, render, filter by length and split the problems.

    Args:
        instruct: the verifier's `instruction`.
        seen: whether the model was trained on a problem before; such problems are not held out.

    Raises:
        InputError: a source cannot be read, no problem is left to train on or to hold out, or the held-out count is
            too large.
    """
    problems = settings.source.load(settings.limit)
    loaded = build_dataset(
        settings.source.label, problems, settings.template, tokenizer, settings.max_prompt_tokens, instruct
    )
    held_out, spoilt, cut = _held_out(loaded, settings, tokenizer, instruct, seen)
    if held_out is None:
        return Data(loaded, None, removed=0)
    forbidden = {question_key(example.problem) for example in held_out}
    rest = [index for index, example in enumerate(loaded) if question_key(example.problem) not in forbidden]
    if not rest:
        raise InputError(f"{loaded.name}: all {len(loaded)} problems are held out, none is left to train on")
    train = loaded.subset(rest)
    assert_disjoint(held_out.problems, train.problems)
    splits = settings.held_out is not None and settings.held_out.source is None
    taken = len(held_out) if splits else 0
    removed = len(loaded) - len(train) - taken
    return Data(train, held_out, removed, spoilt=spoilt, cut=cut)


def build_dataset(
    name: str,
    problems: Sequence[Problem],
    template: PromptTemplate,
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
    instruct: Instruct = no_instruction,
) -> Dataset:
    """Render every problem; those whose prompt exceeds `max_prompt_tokens` are left out and counted.

    Raises:
        InputError: none is left.
    """
    examples = [make_example(problem, template, tokenizer, instruct(problem)) for problem in problems]
    fitting = tuple(example for example in examples if len(example.prompt_ids) <= max_prompt_tokens)
    if not fitting:
        shortest = min((len(example.prompt_ids) for example in examples), default=0)
        raise InputError(
            f"{name}: no prompt of {len(examples)} fits in {max_prompt_tokens} tokens (data.max_prompt_tokens, or the "
            f"model's room); the shortest has {shortest}"
        )
    return Dataset(name, fitting, len(examples) - len(fitting), max_prompt_tokens)


def _held_out(
    loaded: Dataset, settings: DataSettings, tokenizer: Tokenizer, instruct: Instruct, seen: Seen
) -> tuple[Dataset | None, int, bool]:
    """The problems that are held out, how many of their source were seen before, and whether it has more of them."""
    held_out = settings.held_out
    if held_out is None:
        return None, 0, False
    if held_out.source is None:
        assert held_out.count is not None  # HeldOutSettings refuses to be without both
        return split_by_question(loaded, held_out.count, held_out.seed, seen), 0, False
    one_more = held_out.source.load(None if held_out.count is None else held_out.count + 1)
    every = one_more[: held_out.count]
    problems = [problem for problem in every if not seen(problem)]
    label = held_out.source.label
    if not problems:
        raise InputError(f"data.held_out.source: the model was trained on all {len(every)} problems of {label} before")
    room = settings.max_prompt_tokens
    chosen = build_dataset(label, problems, settings.template, tokenizer, room, instruct)
    return chosen, len(every) - len(problems), len(every) < len(one_more)


def split_by_question(dataset: Dataset, count: int, seed: int, seen: Seen = never_seen) -> Dataset:
    """Draw `count` unseen examples with different questions by `seed`; they keep the order of the data set.

    Raises:
        InputError: fewer than `count` + 1 different questions, or fewer than `count` that were not seen.
    """
    first_of: dict[str, int] = {}
    for index, example in enumerate(dataset):
        first_of.setdefault(question_key(example.problem), index)
    if count >= len(first_of):
        short = f", {dataset.over_budget} problems with longer prompts left out" if dataset.over_budget else ""
        raise InputError(
            f"data.held_out.count={count} leaves nothing to train on: {dataset.name} has {len(first_of)} different "
            f"questions{short}; lower it, or hold out none with data.held_out=none"
        )
    firsts = [index for index in first_of.values() if not seen(dataset[index].problem)]
    if count > len(firsts):
        raise InputError(
            f"data.held_out.count={count}: the model was trained on all but {len(firsts)} of the {len(first_of)} "
            f"questions of {dataset.name} before; lower it, name other problems with data.held_out.source, or hold "
            "out none with data.held_out=none"
        )
    order = permutation(seed, len(firsts))
    return replace(dataset.subset(sorted(firsts[place] for place in order[:count])), over_budget=0)


def assert_disjoint(held_out: Sequence[Problem], *others: Sequence[Problem]) -> None:
    """Refuse held-out problems whose question, white space aside, is also in one of `others` (RL or SFT problems).

    Raises:
        InputError: names the first such problem.
    """
    asked = {question_key(problem): problem.id for others_of_kind in others for problem in others_of_kind}
    shared = [problem for problem in held_out if question_key(problem) in asked]
    if shared:
        other = asked[question_key(shared[0])]
        raise InputError(
            f"{len(shared)} held-out problems are also trained on, such as {shared[0].id!r} (the question of {other!r})"
        )


PROBLEMS = "problems.json"


@dataclass(frozen=True)
class ProblemRecord:
    """Which questions a run trains on and which it holds out, as digests of 16 hexadecimal digits.

    A problem is identified by its question, not by its id or its place in a file: appending lines to a file, or another
    limit or split, cannot make a trained question a held-out one.

    Attributes:
        trained: questions that the run may train on.
        held_out: questions that it never trains on, in their order; empty where nothing is held out.
        before: questions that the model had been trained on when the run began.
    """

    trained: frozenset[str]
    held_out: tuple[str, ...]
    before: frozenset[str]

    @classmethod
    def of(cls, data: Data, before: frozenset[str] = frozenset()) -> ProblemRecord:
        """The record of a run on `data`; the model was trained on the questions `before`."""
        held_out = () if data.held_out is None else data.held_out.problems
        trained = frozenset(map(question_digest, data.train.problems))
        return cls(trained, tuple(map(question_digest, held_out)), before)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProblemRecord:
        """The record that `to_json` wrote."""
        return cls(frozenset(value["trained"]), tuple(value["held_out"]), frozenset(value["before"]))

    def to_json(self) -> dict[str, Any]:
        """The form in which the run folder keeps it."""
        return {"held_out": list(self.held_out), "trained": sorted(self.trained), "before": sorted(self.before)}

    def held_out_of(self, problems: Iterable[Problem], source: str) -> tuple[Problem, ...]:
        """Find the run's held-out problems among `problems`, in the order of the run.

        If a question occurs several times in the training source, the run holds out its first occurrence. From a
        separate source it holds out all of them.

        Raises:
            InputError: some of them are missing.
        """
        present = tuple(problems)
        known = dict(zip(_numbered(map(question_digest, present)), present, strict=True))
        wanted = tuple(_numbered(self.held_out))
        missing = sum(each not in known for each in wanted)
        if missing:
            raise InputError(
                f"{source}: {missing} of the {len(self.held_out)} problems that the run held out are not in it any "
                "more; restore it, or name other problems with --set data.source=…"
            )
        return tuple(known[each] for each in wanted)

    def trained_on(self, problems: Iterable[Problem]) -> int:
        """How many of these problems the run was trained on."""
        return sum(question_digest(problem) in self.trained for problem in problems)


def _numbered(digests: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each digest with the number of its earlier occurrences."""
    before: Counter[str] = Counter()
    for digest in digests:
        yield digest, before[digest]
        before[digest] += 1
