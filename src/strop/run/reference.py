"""The reference policy of a run: the starting policy, or a teacher that the policy is distilled from.

Whatever is called as a policy is, `reference(packed, temperature) -> (logprob [M], entropy [M])`, can be one; it scores
each batch once, see `Learner`. It may read another prompt than the policy: with the solution in it, for example.

    teacher = ScoringServer(ChatEndpoint(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-32B"))    # vLLM's server
    logprob, zeros = teacher(packed, 1.0)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from string import Formatter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from strop.base.endpoint import ChatEndpoint, EndpointClient
from strop.base.seeds import derive
from strop.base.types import Group, InputError, IntArray, Message, Rollout
from strop.base.view import View
from strop.config.schema import RunConfig
from strop.data.dataset import make_example
from strop.model.policy import PackedInputs, Policy, WithoutAdapters, load_policy
from strop.model.settings import ModelSettings
from strop.training.embedded_base import located, tokenizer_of
from strop.training.sharding import Place, sharded_policy

PATH = "algorithm.reference.path"


def references(
    config: RunConfig, policy: Policy, view: View, place: Place | None
) -> dict[str | None, nn.Module]:  # fmt: skip
    """The reference policies, without gradients: of the problems of a domain, and under None of all others.

    There are none where no stage reads one. With a `place` they are sharded.

    Raises:
        InputError: there is no such teacher.
    """
    stages = [stage.algorithm for stage in config.stage_configs()]
    if not any(one.needs_reference for one in stages):
        return {}
    teachers = teacher_settings(config)
    by_path = {one.path: _teacher(one, config, policy, view, place) for one in teachers.values()}
    found: dict[str | None, nn.Module] = {domain: by_path[one.path] for domain, one in teachers.items()}
    if None not in found:
        moves = any(one.reference.reset_every is not None for one in stages)
        if place is not None:
            found[None] = _loaded(config.model.model_copy(update={"lora": None}), config, policy, view, place)
        else:
            found[None] = policy.frozen_copy() if policy.adapters is None or moves else WithoutAdapters(policy)
    return found


def _teacher(settings: ModelSettings, config: RunConfig, policy: Policy, view: View, place: Place | None) -> nn.Module:
    wanted = config.algorithm.reference
    if wanted.url is None:
        return _loaded(settings, config, policy, view, place)
    return ScoringServer(ChatEndpoint(url=wanted.url, model=str(settings.path), api_key_env=wanted.api_key_env))


def _loaded(settings: ModelSettings, config: RunConfig, policy: Policy, view: View, place: Place | None) -> Policy:
    settings = located(settings, config.seed, view, PATH)
    if place is not None:
        return sharded_policy(settings, derive(config.seed, "model"), place).requires_grad_(False)
    return load_policy(settings)[0].to(policy.device).requires_grad_(False)


def teacher_prompts(config: RunConfig) -> Callable[[Group], Group]:
    """Gives the rollouts of a group the prompts that the teacher reads; one whose prompt lacks a part gets none, and is
    not distilled."""
    form = config.algorithm.reference.prompt
    if form is None:
        return lambda group: group
    tokenizer = tokenizer_of(config.model)
    named = {part for _, part, _, _ in Formatter().parse(form) if part is not None}

    def prompt_of(group: Group, rollout: Rollout) -> IntArray | None:
        problem = rollout.problem
        parts = _parts(group, rollout)
        if any(not parts[name] for name in named):
            return None
        text: str = form.format(**parts)
        chat = problem.prompt
        prompt = text if isinstance(chat, str) else (*chat[:-1], Message(role=chat[-1]["role"], content=text))
        problem = replace(problem, prompt=prompt)
        return make_example(problem, config.data.template, tokenizer, config.instruction(problem)).prompt_ids

    def asking(group: Group) -> Group:
        told = (replace(one, teacher_prompt_ids=prompt_of(group, one)) for one in group.rollouts)
        return replace(group, rollouts=tuple(told))

    return asking


def _parts(group: Group, rollout: Rollout) -> dict[str, str]:
    """What a teacher's prompt may have of a completion; empty where there is none."""
    problem = rollout.problem
    answer = problem.reference if isinstance(problem.reference, str) else ""
    right = (one.completion.text for one in group.usable if one is not rollout and one.verdict.score == 1)
    return {
        "question": problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1]["content"],
        "answer": answer,
        "solution": str(problem.extra.get("solution") or answer),
        "feedback": rollout.verdict.detail,
        "success": next(right, ""),
    }


def teacher_settings(config: RunConfig) -> dict[str | None, ModelSettings]:
    """The teachers by domain (None: of all others), as models that compute as the policy does."""
    other = {"fresh": None, "revision": None, "lora": None, "replay_routing": False}
    teachers = config.algorithm.reference.teachers.items()
    return {domain: config.model.model_copy(update={**other, "path": path}) for domain, path in teachers}


def refuse_other_tokens(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a teacher that does not know every token of the policy's `tokenizer` by its number.

    Raises:
        InputError: naming a token.
    """
    for teacher in teacher_settings(config).values():
        known = tokenizer_of(teacher, PATH).get_vocab()
        for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            if known.get(token) != number:
                raise InputError(
                    f"{PATH}={teacher.path}: {token!r} is the policy's token {number} and the teacher's "
                    f"{known.get(token, 'none')}; name a teacher with the policy's tokenizer"
                )


# ---------------------------------------------------------------------- a teacher behind a server


AT_ONCE = 64  # requests


class ScoredToken(NamedTuple):
    """What a server says of one token: its log-prob, and the ids and log-probs of the most probable tokens there."""

    logprob: float
    ids: list[int]
    logprobs: list[float]


class ScoringServer(nn.Module):
    """Scores packed tokens through `endpoint`; its errors are those of `EndpointClient`.

    Each sequence is one request to /completions for the log-probs of its prompt, which vLLM gives at temperature 1.
    """

    def __init__(self, endpoint: ChatEndpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._loop = asyncio.new_event_loop()

    def forward(self, packed: PackedInputs, temperature: float, top: int = 0) -> tuple[Tensor, ...]:
        """Log-prob [M] of each target, float32, and zeros [M]; with `top` as `Policy.forward` has it.

        Raises:
            ValueError: the temperature is not 1.
        """
        if temperature != 1:
            raise ValueError(f"temperature {temperature}: a server scores at temperature 1")
        sequences = [ids.tolist() for ids in packed.token_ids.cpu().split(list(packed.lengths))]
        found = self._loop.run_until_complete(self._ask(sequences, top))
        # The token after position t is predicted by row t; after the last of a sequence there is none.
        places = [place for places in found for place in (*places, ScoredToken(0.0, [0] * top, [0.0] * top))]
        rows = [places[row] for row in packed.rows.tolist()]
        logprob = torch.tensor([place.logprob for place in rows], dtype=torch.float32)
        ids = torch.tensor([place.ids for place in rows], dtype=torch.int64).view(len(rows), top)
        logprobs = torch.tensor([place.logprobs for place in rows], dtype=torch.float32).view(len(rows), top)
        scored = (logprob, torch.zeros_like(logprob)) + ((ids, logprobs) if top else ())
        return tuple(column.to(packed.rows.device) for column in scored)

    async def _ask(self, sequences: list[list[int]], top: int) -> list[list[ScoredToken]]:
        client, slots = EndpointClient(self._endpoint), asyncio.Semaphore(AT_ONCE)

        async def one(ids: list[int]) -> list[ScoredToken]:
            if len(ids) < 2:
                return []
            body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": top}
            async with slots:
                found, _ = await client.post("completions", body, lambda answer: _places(answer, ids, top))
            if found is None:
                url = self._endpoint.url
                raise InputError(f"{url} answers without prompt_logprobs, so it cannot score; serve it with vLLM")
            return found

        try:
            return await asyncio.gather(*map(one, sequences))
        finally:
            await client.close()


def _places(answer: Any, ids: list[int], top: int) -> list[ScoredToken] | None:
    """What is said of the tokens `ids` [L] after the first, L - 1 places; None where the answer says nothing."""
    given = answer["choices"][0].get("prompt_logprobs")
    if given is None:
        return None
    places = []
    for known, token in zip(given[1:], ids[1:], strict=True):
        best = sorted(known, key=lambda name: int(known[name]["rank"]))[:top] if top else []
        logprobs = [float(known[name]["logprob"]) for name in best]
        places.append(ScoredToken(float(known[str(token)]["logprob"]), [int(name) for name in best], logprobs))
    return places
