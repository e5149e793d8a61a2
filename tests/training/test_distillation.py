"""Distillation: each token's advantage is the reverse KL to a teacher, whatever the split, the packing and the lag."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.algorithms.cases import tokens_of
from tests.made import PROBLEM, completion, rollout
from tests.runs import finished_run, small_config
from tests.training.several import together

from strop.algorithms.advantages import Distillation, GroupRelative, Outcomes
from strop.algorithms.regularizers import KlInReward, TopKl
from strop.base.metrics import values
from strop.base.types import Group, InputError, Rollout
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.model.files import byte_tokenizer, export, fresh_model
from strop.model.policy import load_policy
from strop.model.settings import ModelSettings
from strop.run.assembly import assemble
from strop.run.reference import teacher_prompts
from strop.training.learner import Learner

SETS = (
    "algorithm.advantage=Distillation", "algorithm.kl_in_reward.beta=0.5", "evaluation.every=none",
    "optim.offload=false", "steps=2",
)  # fmt: skip
STILL = (*SETS, "optim.lr=1e-12")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other weights than the policy's."""
    return finished_run(tmp_path_factory, "seed=7", "steps=1", "evaluation.every=none") / "model"


def named(teacher: Path) -> str:
    return f"algorithm.reference.path={teacher}"


def made(*sets: str) -> Learner:
    found = assemble(small_config(*sets), SilentView()).learner
    assert isinstance(found, Learner)
    return found


def forced(ticket: int = 3) -> Group:
    """A right completion with a forced token, sampled by two versions and ending in padding's token; a wrong one."""
    right = completion(4, injected=[1], versions=[(0, 0, 2), (1, 2, 4)])
    eos = replace(right, token_ids=np.array([10, 11, 256, 256], dtype=np.int32))
    first = Rollout(PROBLEM, eos, rollout(1).verdict, 1.0)
    return Group(ticket, PROBLEM, (first, Rollout(PROBLEM, completion(3, index=1), rollout(0).verdict, 0.0)))


def distributions(folder: Path, token_ids: np.ndarray, temperature: float = 1.0) -> torch.Tensor:
    """A stored model's log-probs of every token [L, V], by transformers' own forward pass; row t predicts token t."""
    model = load_policy(ModelSettings(path=str(folder)))[0].model
    model.set_attn_implementation("eager")
    logits = model(torch.from_numpy(token_ids.astype(np.int64))[None]).logits[0].detach().double() / temperature
    return logits.log_softmax(-1).roll(1, 0)


def alone(folder: Path, token_ids: np.ndarray, temperature: float) -> np.ndarray:
    """A stored model's log-probs [L]."""
    ids = torch.from_numpy(token_ids.astype(np.int64))
    return distributions(folder, token_ids, temperature).gather(1, ids[:, None])[:, 0].numpy()


@pytest.mark.parametrize("sets", [(), ("batch.tokens_per_microbatch=7",), ("model.lora.rank=4",)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_token_is_worth_what_the_teacher_thinks_of_it(teacher: Path, sets: tuple[str, ...], temperature: float):
    learner = made(*STILL, named(teacher), f"sampling.temperature={temperature}", *sets)
    result = learner.learn([forced(), forced(4)], {3, 4}, 0, {})
    assert result is not None and len(result.samples) == 4
    for sample in result.samples:
        wanted = 0.5 * (alone(teacher, sample.token_ids, temperature) - sample.logprobs)
        np.testing.assert_allclose(sample.advantages, np.where(sample.trained, wanted, 0), atol=2e-5)
        assert np.abs(wanted[sample.trained]).min() > 1e-3


def test_each_domain_has_its_teacher(teacher: Path) -> None:
    right = forced()
    problem = replace(PROBLEM, domain="code")
    other = Group(4, problem, tuple(replace(one, problem=problem) for one in right.rollouts))
    result = made(*STILL, f"algorithm.reference.domains={{code='{teacher}'}}").learn([right, other], {3, 4}, 0, {})
    only = made(*STILL, named(teacher)).learn([right, other], {3, 4}, 0, {})
    policy = made(*STILL).learn([right, other], {3, 4}, 0, {})
    assert result is not None and only is not None and policy is not None
    for one, math, code in zip(result.samples, policy.samples, only.samples, strict=True):
        np.testing.assert_array_equal(one.advantages, (math if one.group == 3 else code).advantages)
        assert np.abs(math.advantages - code.advantages).max() > 1e-3


def test_next_to_a_verified_reward_both_advantages_add_up(teacher: Path) -> None:
    without, both = (
        made(*STILL, named(teacher), f"algorithm.advantage.outcome={outcome}").learn([forced()], {3}, 0, {})
        for outcome in ("none", '{piece="GroupRelative", normalization="none"}')
    )
    assert without is not None and both is not None
    for a, b, more in zip(without.samples, both.samples, (0.5, -0.5), strict=True):
        assert (b.advantages - a.advantages)[a.trained] == pytest.approx([more] * a.trained_tokens)


def test_its_expectation_is_the_gradient_of_the_reverse_kl() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 0.4], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.0, 0.5, -2.0, 0.1], dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (wanted,) = torch.autograd.grad((logp.exp() * (logp - teacher)).sum(), logits, retain_graph=True)
    rewards = tuple(
        KlInReward(beta=1.0)(np.array([a], np.float32), np.array([b], np.float32))
        for a, b in zip(logp.tolist(), teacher.tolist(), strict=True)
    )
    ones, group = np.ones(4, np.int32), np.arange(4, dtype=np.int32)
    outcomes = Outcomes(np.ones(4), group, ones, np.ones(4, np.bool_), token_rewards=rewards)
    advantage = torch.tensor([float(one[0]) for one in Distillation()(outcomes)], dtype=torch.float64)
    (found,) = torch.autograd.grad(-(logp.detach().exp() * advantage * logp).sum(), logits)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def coarse(p: torch.Tensor, q: torch.Tensor, top: int) -> torch.Tensor:
    """KL(p ‖ q) [L] of log-probs [L, V], the tokens behind the `top` of q taken together."""
    chosen = q.topk(top).indices
    p, q = p.gather(-1, chosen).exp(), q.gather(-1, chosen).exp()
    if top < p.shape[-1] or float(p.sum(-1).max()) < 1 - 1e-9:
        p, q = (torch.cat((one, 1 - one.sum(-1, keepdim=True)), -1) for one in (p, q))
    return (p * (p.log() - q.log())).sum(-1)


@pytest.mark.parametrize("top", [1, 3, 9])
def test_the_top_ks_kl_and_its_gradient(top: int) -> None:
    torch.manual_seed(top)
    logits, other = torch.randn(5, 9, dtype=torch.float64, requires_grad=True), torch.randn(5, 9, dtype=torch.float64)
    reference = other.log_softmax(-1).topk(top)
    wanted = coarse(logits.log_softmax(-1), other.log_softmax(-1), top)
    asked = reference.values.clone()
    asked[4] = -torch.inf  # it was not asked about the last
    own = logits.log_softmax(-1).gather(1, reference.indices)
    tokens = tokens_of(torch.zeros(5), reference_top=asked, top_logprob=own)
    found = TopKl(beta=1.0, top_k=top)(tokens, own[:, 0], own[:, 0], {})[0]
    torch.testing.assert_close(found[:4], wanted[:4], atol=1e-9, rtol=0)
    assert float(found[4]) == 0
    (mine,) = torch.autograd.grad(found.sum(), logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(wanted[:4].sum(), logits)
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("top", [4, 1000])
def test_a_run_minimises_the_kl_to_its_teachers_top(teacher: Path, tmp_path: Path, top: int) -> None:
    pieces = (f"algorithm.regularizers=[{{piece='TopKl', top_k={top}}}]", "algorithm.kl_in_reward.beta=0")
    norms = []
    for budget in (7, 8192):
        sets = (*pieces, f"batch.tokens_per_microbatch={budget}", "sampling.temperature=0.8")
        learner = made(*SETS, named(teacher), *sets)
        export(learner.policy.model, byte_tokenizer(), tmp_path / str(budget))
        result = learner.learn([forced(), forced(4)], {3, 4}, 0, {})
        assert result is not None
        kl = []
        for sample in result.samples:
            p, q = (distributions(folder, sample.token_ids, 0.8) for folder in (tmp_path / str(budget), teacher))
            kl += coarse(p[sample.trained], q[sample.trained], min(top, 258)).tolist()
        assert values(result.metrics)["kl/top"] == pytest.approx(np.mean(kl), abs=1e-5)
        norms.append(values(result.metrics)["grad_norm"])
        again = learner.learn([forced(), forced(4)], {3, 4}, 1, {})
        assert again is not None and values(again.metrics)["kl/top"] < np.mean(kl) - 0.01
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)  # whatever the split


def test_only_the_outcome_compares_completions() -> None:
    assert not Distillation().compares_group and Distillation(outcome=GroupRelative()).compares_group
    small_config("batch.samples_per_prompt=1", *SETS)


def test_a_prompt_with_what_the_policy_does_not_know(tmp_path: Path) -> None:
    sets = (*STILL, "data.template=Plain", 'algorithm.reference.prompt="{success}{answer}={question}"')
    learner = made(*sets)
    result = learner.learn([teacher_prompts(small_config(*sets))(forced())], {3}, 0, {})
    assert result is not None
    right, wrong = result.samples
    assert not right.advantages.any()  # there is no other right completion to show
    prompt = byte_tokenizer().encode("x2=1+1=")
    found = learner.probe(np.array([*prompt, *wrong.token_ids[2:]], dtype=np.int32))[len(prompt) - 1 :]
    np.testing.assert_allclose(wrong.advantages[2:], 0.5 * (found - wrong.logprobs[2:]), atol=1e-5)


@pytest.mark.parametrize("sets", [(), ("model.lora.rank=4",)])
def test_a_prompt_beyond_the_teachers_context_is_refused(sets: tuple[str, ...]) -> None:
    fits, beyond = (f'algorithm.reference.prompt="{"x" * count}{{answer}}"' for count in (128 - 1 - 4, 128 - 4))
    fitting, longer = ((*STILL, "data.template=Plain", prompt, *sets) for prompt in (fits, beyond))
    assert made(*fitting).learn([teacher_prompts(small_config(*fitting))(forced())], {3}, 0, {}) is not None
    with pytest.raises(InputError, match="problem p: .* 129 tokens, and the teacher has room for 128; shorten"):
        made(*longer).learn([teacher_prompts(small_config(*longer))(forced())], {3}, 0, {})


def learned(config: RunConfig, learner: Learner, rank: int = 0) -> tuple[list[np.ndarray], list[float], np.ndarray]:
    """Two steps: the advantages of each sample, the gradient's norms, and log-probs after them."""
    advantages, norms = [], []
    for step in range(2):
        problem = replace(PROBLEM, domain="code")
        groups = [forced(2 * step), forced(2 * step + 1)]
        groups[1] = Group(2 * step + 1, problem, tuple(replace(one, problem=problem) for one in groups[1].rollouts))
        asked = list(map(teacher_prompts(config), groups))
        result = learner.learn(asked, {group.ticket for group in asked}, step, {})
        assert result is not None
        advantages += [sample.advantages for sample in result.samples]
        norms.append(float(values(result.metrics)["grad_norm"] or 0))
    return advantages, norms, learner.probe(np.arange(9, dtype=np.int32))


@pytest.mark.parametrize("form", ["by domain", "the policy with a solution", "top k", "a server"])
def test_two_ranks_distil_as_one_does(form: str, teacher: Path, server: str, tmp_path: Path) -> None:
    sets = {
        "by domain": (f"algorithm.reference.domains={{code='{teacher}'}}",),
        "the policy with a solution": ('algorithm.reference.prompt="{answer}={question}"', "data.template=Plain"),
        "top k": (named(teacher), "algorithm.regularizers=[{piece='TopKl', top_k=3}]"),
        "a server": (server,),
    }[form]
    sets = (*SETS, *sets, "optim.lr=1e-3", "optim.eps=1e-4", "batch.tokens_per_microbatch=16")
    work = partial(learned, small_config(*sets))
    wanted = work(made(*sets))
    assert any(np.abs(advantages).max() > 1e-2 for advantages in wanted[0])
    for found in together(small_config(*sets), 2, tmp_path, work):
        for one, other in zip(found[0], wanted[0], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        assert found[1] == pytest.approx(wanted[1], rel=1e-3)
        np.testing.assert_allclose(found[2], wanted[2], atol=1e-4)


class Scorer(BaseHTTPRequestHandler):
    """A server after vLLM's, by which token i has log-prob −i / 100; `mute` has no log-probs."""

    mute = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/completions" and body["model"].endswith("/model") and body["prompt_logprobs"] in (0, 2)
        top = {"0": {"logprob": -0.5, "rank": 1}, "3": {"logprob": -1.5, "rank": 2}}
        places = [None, *({str(i): {"logprob": -i / 100, "rank": 9}, **top} for i in body["prompt"][1:])]
        answer = json.dumps({"choices": [{"text": "", **({} if self.mute else {"prompt_logprobs": places})}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(teacher: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Scorer) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"algorithm.reference={{path='{teacher}', url='http://127.0.0.1:{http.server_port}/v1'}}"
        http.shutdown()


def test_a_server_scores_in_the_place_of_a_model(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = (*STILL, server, "batch.tokens_per_microbatch=7")
    result = made(*sets).learn([forced()], {3}, 0, {})
    assert result is not None
    for sample in result.samples:
        wanted = np.where(sample.trained, 0.5 * (-sample.token_ids / 100 - sample.logprobs), 0)
        np.testing.assert_allclose(sample.advantages, wanted, atol=1e-6)
    more = made(*sets, "algorithm.regularizers=[{piece='TopKl', top_k=2}]").learn([forced()], {3}, 0, {})
    assert more is not None
    for sample in more.samples:
        assert sample.reference_top_ids is not None and sample.reference_top_logprobs is not None
        assert {tuple(row) for row in sample.reference_top_ids[sample.trained]} == {(0, 3)}
        assert {tuple(row) for row in sample.reference_top_logprobs[sample.trained]} == {(-0.5, -1.5)}
    monkeypatch.setattr(Scorer, "mute", True)
    with pytest.raises(InputError, match="answers without prompt_logprobs"):
        made(*sets).learn([forced()], {3}, 0, {})
    with pytest.raises(InputError, match="scores tokens at temperature 1"):
        small_config(*sets, "sampling.temperature=0.7")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("algorithm.kl_in_reward=none",), "algorithm.kl_in_reward is not set"),
        (("algorithm.advantage.outcome=Gae",), "outcome=Gae needs a critic"),
        (("algorithm.reference={path='a', reset_every=2}",), "a teacher .* is never reset"),
        (("algorithm.kl_in_reward=none", "algorithm.advantage=GroupRelative", "algorithm.reference.path=a"),
         "nothing reads a reference policy"),
        (("algorithm.reference.url=http://a/v1",), "serves a teacher; name it with path"),
        (("algorithm.reference.prompt='{reference}'",), "prompt has {reference}; it may have {question}"),
        (("stages=[{steps=1}, {set={'algorithm.reference.path'='a'}}]",), "cannot change during a run"),
    ],
)  # fmt: skip
def test_refused_settings(sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        small_config(*SETS, *sets)


def test_a_teacher_with_other_tokens_is_refused(tmp_path: Path) -> None:
    words = byte_tokenizer(("\\boxed{",))
    fresh = small_config().model.fresh
    assert fresh is not None
    export(fresh_model(fresh, words, 0, "float32"), words, tmp_path / "other")
    with pytest.raises(InputError, match="is the policy's token .* and the teacher's"):
        assemble(small_config(*SETS, named(tmp_path / "other")), SilentView())
    with pytest.raises(InputError, match="algorithm.reference.path .*: no such folder"):
        assemble(small_config(*SETS, named(tmp_path / "none/at/all")), SilentView())
