"""The embedded base: a small model made on the spot, that reinforcement learning can sharpen. No download.

`model.path = "embedded"` names it in any configuration. A fresh Qwen3 of about a million parameters is fine-tuned on
chain sums worked by a fallible demonstrator; the result is kept in the cache under its settings and seed, so that it is
made once. Its problems are the `train` part of `ChainSum`; the `held_out` part is never shown to it.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from strop.base.files import cache_folder
from strop.base.metrics import values
from strop.base.pieces import Settings
from strop.base.seeds import derive
from strop.base.types import InputError
from strop.base.view import View
from strop.data.generators import draw_question, part_of, signed_terms
from strop.model.files import EOS, byte_tokenizer, export, load_tokenizer
from strop.model.location import in_folder, locate
from strop.model.policy import load_policy
from strop.model.settings import (
    EMBEDDED,
    EMBEDDED_CALLER,
    EMBEDDED_EXPERTS,
    EMBEDDED_HINTED,
    EMBEDDED_TEACHER,
    FreshModel,
    ModelSettings,
)
from strop.training.settings import AdamW, Cosine, SftSettings
from strop.training.sft import Demonstration, FineTuning

Share = Annotated[float, Field(ge=0, le=1)]


class FallibleDemonstrator(Settings):
    r"""Completions of chain sums by three strategies of different reliability.

    Example, for `3+5-2=` (answer 6): a guess `\boxed{9}`, some steps `3+5=8 \boxed{4}`, every step
    `3+5=8 8-2=6 \boxed{6}`.

    Fields:
        guess: share of answers guessed outright, within `spread` of the truth.
        partial: share that works out some of the steps and guesses the rest; what is left works out every step.
        slip: how often a step's result is off by one.
        spread: how far a guess lies off at most.
    """

    guess: Share = 0.6
    partial: Share = 0.15
    slip: Share = 0.02
    spread: Annotated[int, Field(ge=1)] = 5

    @model_validator(mode="after")
    def _shares_add_up(self) -> FallibleDemonstrator:
        if self.guess + self.partial > 1:
            raise ValueError(f"guess={self.guess} and partial={self.partial} must not exceed 1 together")
        return self

    def turns(self, question: str, rng: random.Random, end: str) -> list[tuple[str, str]]:
        """What was read and written: the question, and one completion."""
        return [(question, self(question, rng))]

    def __call__(self, question: str, rng: random.Random) -> str:
        """One completion."""
        terms = signed_terms(question)
        steps = len(terms) - 1
        total, text = int(terms[0]), ""
        worked = self._steps_worked(steps, rng)
        for term in terms[1 : worked + 1]:
            result = total + int(term)
            if rng.random() < self.slip:
                result = abs(result + rng.choice((-1, 1)))
            text += f"{total}{term}={result} "
            total = result
        if worked < steps:
            rest = sum(int(term) for term in terms[worked + 1 :])
            total = abs(total + rest + rng.randint(-self.spread, self.spread))
        return f"{text}\\boxed{{{total}}}"

    def _steps_worked(self, steps: int, rng: random.Random) -> int:
        draw = rng.random()
        if draw < self.guess:
            return 0
        if draw < self.guess + self.partial and steps > 1:
            return rng.randint(1, steps - 1)
        return steps


class HintedDemonstrator(FallibleDemonstrator):
    r"""A fallible demonstrator that works out every step of a question that has the answer in front.

    Example: `6=3+5-2=` is always `3+5=8 8-2=6 \boxed{6}`, and `3+5-2=` often a guess.

    Fields:
        hinted: share of questions that have it.
    """

    hinted: Share = 0.4

    def turns(self, question: str, rng: random.Random, end: str) -> list[tuple[str, str]]:
        """What was read and written: the question, with a hint or not, and one completion."""
        if rng.random() >= self.hinted:
            return super().turns(question, rng, end)
        answer = sum(int(term) for term in signed_terms(question))
        sure = FallibleDemonstrator(guess=0, partial=0, slip=0)
        return [(f"{answer}={question}", sure(question, rng))]


CALL, CALL_END = '<tool_call>{"name": "calculator", "arguments": {"expression": "', '"}}</tool_call>'


class CallingDemonstrator(Settings):
    r"""Completions of chain sums too long to be worked out: mostly guesses, now and then what a calculator says.

    Example, for `345+678=` (answer 1023): a guess `\boxed{870}`; or a call of the calculator, which answers `1023`, and
    then `\boxed{1023}`.

    Fields:
        calls: share that calls the calculator.
        spread: how far a guess lies off at most.
    """

    calls: Share = 0.15
    spread: Annotated[int, Field(ge=1)] = 500

    def turns(self, question: str, rng: random.Random, end: str) -> list[tuple[str, str]]:
        """What was read and written in each turn, `end` being the token that ends one.

        What the calculator says is read, so that nobody imitates it.
        """
        result = sum(int(term) for term in signed_terms(question))
        if rng.random() >= self.calls:
            return [(question, f"\\boxed{{{abs(result + rng.randint(-self.spread, self.spread))}}}")]
        call = f"{CALL}{question.removesuffix('=')}{CALL_END}"
        return [(question, call), (f"{question}{call}{end}{result}", f"\\boxed{{{result}}}")]


FORMAT = 3  # raise it when the same settings would make another model
WORDS = ("\\boxed{",)
CALLER_WORDS = (*WORDS, CALL, CALL_END)


class EmbeddedBase(Settings):
    """How the embedded base is made: its shape, its teacher and its fine-tuning."""

    seed: Annotated[int, Field(ge=0)] = 0
    terms: Annotated[int, Field(ge=2)] = 5
    digits: Annotated[int, Field(ge=1)] = 1
    demonstrations: Annotated[int, Field(ge=1)] = 40_000
    demonstrator: FallibleDemonstrator | CallingDemonstrator | HintedDemonstrator = FallibleDemonstrator()
    model: FreshModel = FreshModel(
        hidden_size=128, layers=3, heads=8, kv_heads=4, head_dim=32, intermediate_size=384, max_positions=256,
        tie_embeddings=False, rope_theta=100.0, initializer_range=0.08,
    )  # fmt: skip
    training: SftSettings = SftSettings(
        tokens_per_batch=640, max_length=128, steps=1100, tokens_per_microbatch=4096,
        optimizer=AdamW(
            lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01, warmup_steps=50, schedule=Cosine(final_fraction=0.05)
        ),
    )  # fmt: skip

    @property
    def words(self) -> tuple[str, ...]:
        """Strings that are one token each."""
        return CALLER_WORDS if isinstance(self.demonstrator, CallingDemonstrator) else WORDS

    def key(self) -> str:
        """The name of the base in the cache."""
        text = f"{FORMAT} {self.model_dump_json()}"
        return f"base-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def named_base(name: str, seed: int) -> EmbeddedBase | None:
    """The base that a reserved path means; None for any other path."""
    base = EmbeddedBase(seed=seed)
    if name == EMBEDDED_CALLER:
        return base.model_copy(update={"terms": 4, "digits": 3, "demonstrator": CallingDemonstrator()})
    if name == EMBEDDED_TEACHER:  # it hardly ever guesses
        return base.model_copy(update={"demonstrator": FallibleDemonstrator(guess=0.05, partial=0.05)})
    if name == EMBEDDED_HINTED:
        return base.model_copy(update={"demonstrator": HintedDemonstrator()})
    if name == EMBEDDED_EXPERTS:
        return base.model_copy(update={"model": base.model.model_copy(update={"experts": 4, "experts_per_token": 2})})
    return base if name == EMBEDDED else None


def embedded_base(settings: EmbeddedBase, view: View) -> Path:
    """The base's folder; made first where the cache does not hold it."""
    folder = cache_folder() / settings.key()
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise InputError(
            f"cannot keep the base model in {folder.parent}: {error.strerror}; name another folder with STROP_CACHE"
        ) from error
    try:
        _make(settings, partial, view)
        # Another process may have been quicker; what it made is the same.
        if not folder.is_dir():
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _make(settings: EmbeddedBase, folder: Path, view: View) -> None:
    tokenizer = byte_tokenizer(settings.words)
    model = ModelSettings(fresh=settings.model)
    policy, _ = load_policy(model, tokenizer, derive(settings.seed, "model"))
    training = settings.training.model_copy(update={"seed": derive(settings.seed, "shuffle") % 2**32})
    tuning = FineTuning(policy, demonstrations(settings, tokenizer), training)
    view.stage("sft", tuning.total)
    for event in tuning.events():
        view.advance(event.step, values(event.metrics))
    export(policy.model, tokenizer, folder)


def demonstrations(settings: EmbeddedBase, tokenizer: PreTrainedTokenizerFast) -> list[Demonstration]:
    """Completions by the demonstrator for questions of the training part; a question may come more than once."""
    rng = random.Random(derive(settings.seed, "demonstrations"))
    questions: list[str] = []
    completions: list[str] = []
    while len(questions) < settings.demonstrations:
        question = draw_question(rng, settings.terms, settings.digits)
        if part_of(question) == "train":
            for prompt, completion in settings.demonstrator.turns(question, rng, EOS):
                questions.append(prompt)
                completions.append(completion)
    core, end = tokenizer.backend_tokenizer, tokenizer.eos_token_id  # calling `tokenizer` itself takes far longer
    prompts, written = (core.encode_batch_fast(texts, add_special_tokens=False) for texts in (questions, completions))
    return [
        Demonstration(np.array(prompt.ids, dtype=np.int32), np.array([*completion.ids, end], dtype=np.int32))
        for prompt, completion in zip(prompts, written, strict=True)
    ]


def tokenizer_of(model: ModelSettings, key: str = "model.path") -> PreTrainedTokenizerBase:
    """The tokenizer of a model, which is neither loaded nor made for it. Errors call its path by `key`.

    Raises:
        InputError: there is no such model.
        OSError, ValueError: it has no tokenizer that transformers can load.
    """
    if model.path is None:
        return byte_tokenizer()
    base = named_base(model.path, 0)
    if base is not None:
        return byte_tokenizer(base.words)
    place = locate(model, key)
    return load_tokenizer(place.source, model.revision, model.trust_remote_code, place.cached_only)


def located(model: ModelSettings, seed: int, view: View, key: str = "model.path") -> ModelSettings:
    """`model` with its path replaced by a folder: that of the embedded base of this seed, or of the hub's cache.

    Errors call the path by `key`.

    Raises:
        InputError: there is no such model.
    """
    base = None if model.path is None else named_base(model.path, seed)
    return in_folder(model, key) if base is None else model.model_copy(update={"path": str(embedded_base(base, view))})
