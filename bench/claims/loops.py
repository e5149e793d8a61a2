"""A base that falls into loops: the embedded base never does, and what a critic makes of loops needs some.

The embedded base of a seed is fine-tuned for a moment on its demonstrator's texts, a share of which get stuck: one step
of the sum, or the first term, is written again and again, for up to more tokens than the limit has. A text that comes
out of its loop goes on as if nothing had been; so some looping completions are correct, and most are cut off.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np

from strop.base.files import cache_folder
from strop.base.seeds import derive
from strop.base.view import SilentView
from strop.data.generators import draw_question, part_of
from strop.model.files import byte_tokenizer, export
from strop.model.policy import load_policy
from strop.model.settings import ModelSettings
from strop.training.embedded_base import WORDS, EmbeddedBase, FallibleDemonstrator, embedded_base
from strop.training.settings import AdamW, SftSettings
from strop.training.sft import Demonstration, FineTuning

FORMAT = 1
LIMIT = 96  # tokens of a completion of the arms on this base
SHARE = 0.4  # of the demonstrations that get stuck
LONGEST = 120  # tokens of a loop at most: beyond the limit
DEMONSTRATIONS, STEPS = 4000, 150


def folder(seed: int) -> Path:
    """Where the looping base of a seed is, or will be."""
    return cache_folder() / f"loops{FORMAT}-{EmbeddedBase(seed=seed).key()}"


def make(seed: int) -> None:
    """Make the looping base of a seed where the cache does not hold it."""
    target = folder(seed)
    if target.is_dir():
        return
    partial = target.with_name(f".{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    origin = embedded_base(EmbeddedBase(seed=seed), SilentView())
    tokenizer = byte_tokenizer(WORDS)
    policy, _ = load_policy(ModelSettings(path=str(origin)), tokenizer, derive(seed, "model"))
    rng = random.Random(derive(seed, "loops"))
    texts = [_text(rng) for _ in range(DEMONSTRATIONS)]
    shown = [_demonstration(tokenizer(question)["input_ids"], tokenizer(text)["input_ids"], tokenizer.eos_token_id)
             for question, text in texts]  # fmt: skip
    settings = SftSettings(
        tokens_per_batch=1280, max_length=160, steps=STEPS, tokens_per_microbatch=4096,
        seed=derive(seed, "sft") % 2**32,
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, warmup_steps=10),
    )  # fmt: skip
    for _ in FineTuning(policy, shown, settings).events():
        pass
    export(policy.model, tokenizer, partial)
    partial.rename(target)


def _text(rng: random.Random) -> tuple[str, str]:
    """A question, and what is written for it."""
    question = draw_question(rng, terms=5, digits=1)
    while part_of(question) != "train":
        question = draw_question(rng, terms=5, digits=1)
    text = FallibleDemonstrator()(question, rng)
    if rng.random() >= SHARE:
        return question, text
    words = text.split(" ")  # the steps of the sum, and the answer
    stuck = rng.randrange(len(words) - 1) if len(words) > 1 else 0
    again = words[stuck] if len(words) > 1 else question[0]
    times = rng.randint(20, LONGEST) // (len(again) + 1) + 1
    return question, " ".join([*words[:stuck], *[again] * times, *words[stuck:]])


def _demonstration(prompt: list[int], completion: list[int], end: int) -> Demonstration:
    """What fits into the limit: a text that does not is cut off, without its end."""
    ids = [*completion, end][:LIMIT]
    return Demonstration(np.array(prompt, dtype=np.int32), np.array(ids, dtype=np.int32))
