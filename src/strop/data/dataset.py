"""Problems with their prompts as token ids, and the split into training and held-out problems.

data = load_data(settings, tokenizer)
data.train[3].prompt_ids, data.held_out, data.report()
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from strop.base.seeds import permutation
from strop.base.text import counted
from strop.base.types import InputError, IntArray, Problem
from strop.data.history import EARLIER, Visit, recalled
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.source import problem_key, question_key
from strop.data.templates import Instruction, PromptTemplate, Tokenizer, encode_prompt, opening


@dataclass(frozen=True, eq=False)
class Example:
    """A problem as the policy gets it: `prompt_ids`, int32 [prompt tokens].

    Where the prompt ends with an opened think block, `problem.extra["opening"]` holds `<think>`, which verifiers read
    in front of the completion.
    """

    problem: Problem
    prompt_ids: IntArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples in a fixed order, how many problems their prompt budget kept out, and what earlier runs found of them.

    `visits` are by the problem's place; a `subset` has none.
    """

    name: str
    examples: tuple[Example, ...]
    over_budget: int = 0
    max_prompt_tokens: int | None = None
    visits: Mapping[int, Sequence[Visit]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems alone."""
        return tuple(example.problem for example in self.examples)

    @cached_property
    def different(self) -> int:
        """How many different problems there are: a mixture's `repeats` list them more than once."""
        return len({problem_key(example.problem) for example in self.examples})

    @property
    def size(self) -> str:
        """`60 problems`, or `60 problems (20 different ones)`."""
        listed = counted(len(self), "problems")
        return listed if self.different == len(self) else f"{listed} ({counted(self.different, 'different ones')})"

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt; 0 where there is none."""
        return max((len(example.prompt_ids) for example in self.examples), default=0)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of ids, prompts and references in order: equal fingerprints are the same data for a resumed run."""
        digest = hashlib.blake2b(digest_size=16)
        for example in self.examples:
            for part in (example.problem.id, example.prompt_ids.tolist(), example.problem.reference):
                digest.update(repr(part).encode() + b"\0")
        return digest.hexdigest()

    def subset(self, indices: Sequence[int]) -> Dataset:
        """The examples at `indices`, in that order."""
        return replace(self, examples=tuple(self.examples[index] for index in indices), visits={})


@dataclass(frozen=True, eq=False)
class Data:
    """The training problems and the held-out problems of a run.

    Attributes:
        train: the training problems.
        held_out: None where nothing is held out.
        removed: training problems left out because they ask a held-out question.
        spoilt: problems that were not held out because the model was trained on them before.
        deselected: training problems that `data.select` left out.
    """

    train: Dataset
    held_out: Dataset | None
    removed: int
    deselected: int = 0
    spoilt: int = 0

    def report(self) -> tuple[str, ...]:
        """Lines for the user: how many problems there are, and how many were left out and why."""
        sets = [("train", self.train), *([("held out", self.held_out)] if self.held_out is not None else [])]
        lines = [
            f"{role}: {data.size} of {data.name}, prompts up to {data.longest_prompt} tokens"
            for role, data in sets
        ]
        lines += [
            f"{role}: {counted(data.over_budget, 'problems')} left out, their prompts exceed "
            f"{data.max_prompt_tokens} tokens"
            for role, data in sets
            if data.over_budget
        ]
        if self.removed:
            lines.append(f"train: {counted(self.removed, 'problems')} left out, their questions are held out")
        if self.spoilt:
            lines.append(f"held out: {counted(self.spoilt, 'problems')} left out, the model was trained on them before")
        if self.deselected:
            lines.append(f"train: {counted(self.deselected, 'problems')} left out by data.select")
        if self.train.visits:
            lines.append(f"train: {len(self.train.visits)} of {len(self.train)} problems are known from earlier runs")
        return tuple(lines)


Instruct = Callable[[Problem], Instruction | None]
Seen = Callable[[Problem], bool]


def no_instruction(problem: Problem) -> Instruction | None:
    """For verifiers that read any form of an answer."""
    return None


def never_seen(problem: Problem) -> bool:
    """Of a model that was trained on nothing known."""
    return False


def load_data(
    settings: DataSettings, tokenizer: Tokenizer, instruct: Instruct = no_instruction, seen: Seen = never_seen
) -> Data:
    """Read, render, filter by length and split, as `settings` say.

    Args:
        instruct: the verifier's `instruction`.
        seen: whether the model was trained on a problem before; such a one is not held out.

    Raises:
        InputError: a source cannot be read, nothing is left to train on or to hold out, or the held-out count is too
            large.
    """
    problems = settings.source.load(settings.limit)
    loaded = build_dataset(
        settings.source.label, problems, settings.template, tokenizer, settings.max_prompt_tokens, instruct
    )
    held_out, spoilt = _held_out(loaded, settings, tokenizer, instruct, seen)
    if held_out is None:
        return _with_history(Data(loaded, None, removed=0), settings)
    forbidden = {question_key(example.problem) for example in held_out}
    rest = [index for index, example in enumerate(loaded) if question_key(example.problem) not in forbidden]
    if not rest:
        raise InputError(f"{loaded.name}: all {len(loaded)} problems are held out, none is left to train on")
    train = loaded.subset(rest)
    assert_disjoint(held_out.problems, train.problems)
    taken = len(held_out) if _splits_source(settings.held_out) else 0
    removed = len(loaded) - len(train) - taken
    return _with_history(Data(train, held_out, removed, spoilt=spoilt), settings)


def _with_history(data: Data, settings: DataSettings) -> Data:
    """The data with what earlier runs found, and without the training problems that `settings.select` drops by it."""
    if not settings.history:
        return data
    visits = recalled(settings.history, data.train.problems)
    if settings.select is None:
        return replace(data, train=replace(data.train, visits=visits))
    # As in a stage that follows the earlier run: a filter that asks for the stage before finds that run.
    before = {index: [visit._replace(stage=EARLIER) for visit in found] for index, found in visits.items()}
    kept = [i for i in range(len(data.train)) if settings.select(before.get(i, ()), EARLIER + 1)]
    if not kept:
        raise InputError(
            f"data.select={settings.select.piece_name()} keeps none of {len(data.train)} training problems; loosen it"
        )
    visits = {place: visits[index] for place, index in enumerate(kept) if index in visits}
    train = replace(data.train.subset(kept), visits=visits)
    return replace(data, train=train, deselected=len(data.train) - len(kept))


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
            f"{name}: no prompt of {len(examples)} fits in data.max_prompt_tokens={max_prompt_tokens}; "
            f"the shortest has {shortest} tokens"
        )
    return Dataset(name, fitting, len(examples) - len(fitting), max_prompt_tokens)


def make_example(
    problem: Problem, template: PromptTemplate, tokenizer: Tokenizer, instruction: Instruction | None = None
) -> Example:
    """One problem, rendered; `instruction` is what its verifier asks for."""
    template = template.resolved(problem, tokenizer, instruction)
    text = template.render(problem, tokenizer)
    begun = opening(text)
    if begun:
        problem = replace(problem, extra={**problem.extra, "opening": begun})
    return Example(problem, encode_prompt(text, tokenizer, template.adds_bos))


def _short_enough(dataset: Dataset) -> str:
    """Words after a number of problems, where others were left out because their prompts are too long."""
    if not dataset.over_budget:
        return ""
    limit = f"data.max_prompt_tokens={dataset.max_prompt_tokens}"
    return f" of at most {limit} tokens, and {dataset.over_budget} longer ones"


def split_by_question(dataset: Dataset, count: int, seed: int, seen: Seen = never_seen) -> Dataset:
    """`count` examples with different questions that were not `seen`, drawn by `seed`, in the order of the data set.

    Raises:
        InputError: fewer than `count` + 1 different questions, or fewer than `count` that were not seen.
    """
    first_of: dict[str, int] = {}
    for index, example in enumerate(dataset):
        first_of.setdefault(question_key(example.problem), index)
    if count >= len(first_of):
        questions = "a single question" if len(first_of) == 1 else f"{len(first_of)} different questions"
        raise InputError(
            f"data.held_out.count={count} leaves nothing to train on: {dataset.name} has {questions}"
            f"{_short_enough(dataset)}; lower it, or hold out none with data.held_out=none"
        )
    firsts = [index for index in first_of.values() if not seen(dataset[index].problem)]
    if count > len(firsts):
        left = f"all but {len(firsts)}" if firsts else "every one"
        lower = "lower it, " if firsts else ""
        raise InputError(
            f"data.held_out.count={count}: the model was trained on {left} of the {len(first_of)} questions of "
            f"{dataset.name} before; {lower}name other problems with data.held_out.source, or hold out none with "
            "data.held_out=none"
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


def _splits_source(settings: HeldOutSettings | None) -> bool:
    return settings is not None and settings.source is None


def _held_out(
    loaded: Dataset, settings: DataSettings, tokenizer: Tokenizer, instruct: Instruct, seen: Seen
) -> tuple[Dataset | None, int]:
    """The problems that are held out, and how many of their source were seen before."""
    held_out = settings.held_out
    if held_out is None:
        return None, 0
    if held_out.source is None:
        assert held_out.count is not None  # HeldOutSettings refuses to be without both
        return split_by_question(loaded, held_out.count, held_out.seed, seen), 0
    every = held_out.source.load(held_out.count)
    problems = [problem for problem in every if not seen(problem)]
    label = held_out.source.label
    if not problems:
        raise InputError(f"data.held_out.source: the model was trained on all {len(every)} problems of {label} before")
    room = settings.max_prompt_tokens
    chosen = build_dataset(label, problems, settings.template, tokenizer, room, instruct)
    return chosen, len(every) - len(problems)
