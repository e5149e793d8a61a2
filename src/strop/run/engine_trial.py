"""Which engine generates quicker with a model on this machine: each is asked a run's own problems for ten seconds.

    findings = try_engines(config, data, view)      # tokens a second of each, and the setting that takes the quicker
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from strop.base.seeds import derive
from strop.base.types import StropError, first_line
from strop.base.view import View
from strop.config.schema import RunConfig
from strop.data.dataset import Data
from strop.engines.build import embedded_settings, own_engine
from strop.engines.protocol import Engine, Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.vllm.settings import Vllm
from strop.evaluation.evaluate import fitted
from strop.model.settings import ModelSettings
from strop.run.accelerators import Finding
from strop.training.embedded_base import located

SECONDS = 10.0  # that an engine generates for
_OF_THINKING = ("thinking_tokens", "answer_tokens", "interruption")
FIRST = 16  # new tokens of a completion in the round before, which warms up and tells how many tokens take that long


def try_engines(config: RunConfig, data: Data, view: View) -> list[Finding]:
    """Tokens a second of the embedded engine and of vLLM's server, starting and warming up not counted.

    Both run as many sequences at once as `engine.slots` says, with the run's prompts, temperature and stops; no more
    tokens of each than take about ten seconds. An engine that cannot be tried is named with the reason.
    """
    model = located(config.model, config.seed, view)
    findings: list[Finding] = []
    rates: dict[str, float] = {}
    for settings in _candidates(config.engine):
        name = settings.piece_name()
        view.note(f"engine={name} is started and generates for ten seconds")
        try:
            rates[name] = _tokens_a_second(config, settings, model, data, view)
        except StropError as error:
            findings.append(Finding(f"engine {name}", "note", "not tried", first_line(error)))
        else:
            findings.append(Finding(f"engine {name}", "ok", f"{rates[name]:,.0f} tokens a second"))
    if len(rates) < 2:
        return findings
    quicker, slower = sorted(rates, key=lambda name: -rates[name])
    found = f"{quicker} is {rates[quicker] / rates[slower]:.1f} times as quick as {slower}"
    own = config.engine.piece_name()
    advice = "" if quicker == own else f"take it with engine={quicker}"
    return [*findings, Finding("engine", "note" if advice else "ok", found, advice)]


def _candidates(settings: EngineSettings) -> Sequence[EngineSettings]:
    """The embedded engine and vLLM's, both with the bounds of `settings`."""
    if isinstance(settings, Vllm):
        return embedded_settings(settings), settings
    return settings, Vllm(slots=settings.slots, max_tokens=settings.max_tokens, dtype=settings.dtype)


def _tokens_a_second(
    config: RunConfig, settings: EngineSettings, model: ModelSettings, data: Data, view: View
) -> float:
    engine = own_engine(settings, model, derive(config.seed, "model"), config.device)
    try:
        engine.capabilities.refuse_unable(config.sampling)
        # Budgets of thinking may need more tokens than a round has, and what they inject is not generated.
        free = config.sampling.model_copy(update=dict.fromkeys(_OF_THINKING))
        sampling = fitted(free, data.train, engine.capabilities.max_tokens, view.note)
        first = min(FIRST, sampling.max_new_tokens)
        _round(config, engine, data, sampling, first, 0)
        tokens, seconds = _round(config, engine, data, sampling, first, 1)
        longest = max(int(SECONDS * tokens / seconds) // config.engine.slots, 1)
        tokens, seconds, number = 0, 0.0, 2
        while seconds < SECONDS / 2:  # several rounds of completions that end sooner
            more = _round(config, engine, data, sampling, min(longest, sampling.max_new_tokens), number)
            tokens, seconds, number = tokens + more[0], seconds + more[1], number + 1
    finally:
        engine.close()
    return tokens / seconds


def _round(
    config: RunConfig, engine: Engine, data: Data, sampling: Sampling, longest: int, number: int
) -> tuple[int, float]:
    """Completion tokens of as many sequences as the engine has slots, of `longest` each at most, and their seconds."""
    group = config.batch.samples_per_prompt
    own = sampling.model_copy(update={"max_new_tokens": longest})
    begin = time.perf_counter()
    for place in range(-(-config.engine.slots // group)):
        example = data.train[(number * config.engine.slots + place) % len(data.train)]
        seed = derive(config.seed, "trial", number, place)
        engine.submit(Request(f"{number}-{place}", example.prompt_ids, own, seed, group))
    tokens = 0
    while engine.unfinished:
        tokens += sum(len(completion.token_ids) for completion in engine.step())
    return tokens, time.perf_counter() - begin
