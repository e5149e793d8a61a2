"""Distillation: each token's advantage is the reverse KL to a teacher, whatever the split, the packing and the lag."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.made import PROBLEM, completion, rollout
from tests.runs import finished_run, small_config

from strop.algorithms.advantages import Distillation, GroupRelative, Outcomes
from strop.algorithms.regularizers import KlInReward
from strop.base.types import Group, InputError, Rollout
from strop.base.view import SilentView
from strop.model.files import byte_tokenizer, export, fresh_model
from strop.model.policy import load_policy
from strop.model.settings import ModelSettings
from strop.run.assembly import assemble
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


def alone(folder: Path, token_ids: np.ndarray, temperature: float) -> np.ndarray:
    """A stored model's log-probs [L], by transformers' own forward pass in float64."""
    model = load_policy(ModelSettings(path=str(folder)))[0].model
    ids = torch.from_numpy(token_ids.astype(np.int64))
    model.set_attn_implementation("eager")
    logits = model(ids[None]).logits[0, :-1].double() / temperature
    found = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].detach().numpy()
    return np.concatenate([[0.0], found])


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


def test_only_the_outcome_compares_completions() -> None:
    assert not Distillation().compares_group and Distillation(outcome=GroupRelative()).compares_group
    small_config("batch.samples_per_prompt=1", *SETS)


def test_a_prompt_with_what_the_policy_does_not_know(tmp_path: Path) -> None:
    learner = made(*STILL, "data.template=Plain", 'algorithm.reference.prompt="{success}{answer}={question}"')
    result = learner.learn([forced()], {3}, 0, {})
    assert result is not None
    right, wrong = result.samples
    assert not right.advantages.any()  # there is no other right completion to show
    prompt = byte_tokenizer().encode("x2=1+1=")
    found = learner.probe(np.array([*prompt, *wrong.token_ids[2:]], dtype=np.int32))[len(prompt) - 1 :]
    np.testing.assert_allclose(wrong.advantages[2:], 0.5 * (found - wrong.logprobs[2:]), atol=1e-5)


class Scorer(BaseHTTPRequestHandler):
    """A server after vLLM's, by which token i has log-prob −i / 100; `mute` has no log-probs."""

    mute = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/completions" and body["model"].endswith("/model") and body["prompt_logprobs"] == 0
        places = [None, *({str(i): {"logprob": -i / 100}, "0": {"logprob": 0.0}} for i in body["prompt"][1:])]
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
