"""The engine contract: what `strop.engines.protocol.Engine` promises, as tests that every engine must pass.

A test module subclasses `EngineContract` and gives it two fixtures:

    subject      an idle engine whose weights are `model(0, tie)`; it may be shared between tests
    disposable   the same, for a test that ends it

Versions are never taken to begin at 0, because an engine that takes long to start is shared. Where a server draws on
its own (`stepwise = False`), a test cannot say how many tokens there are at a moment, only that there are some.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from tests.engines.runs import drain, policy_logprobs, policy_scores, prompts, requests, run
from tests.tiny import byte_tokenizer, tiny_qwen3
from torch import Tensor

from strop.base.types import Completion, FloatArray, InputError, StropError
from strop.engines.protocol import Engine, Interruption, KvMode, Request, Sampling, Streaming
from strop.model.policy import PackedInputs, Policy
from strop.model.settings import FreshModel

EOS = 256
SLOTS = 32
LONG = Sampling(max_new_tokens=40)
LONGER = Sampling(max_new_tokens=400)  # long enough for something to happen to it on its way
PROMPT = np.array([5, 17, 80], np.int32)
TOLERANCE = 1e-4  # nats a token, float32


def model(seed: int, tie: bool) -> Policy:
    """Two layers of 32 with heads of 32, the smallest that every engine computes; 512 positions."""
    fresh = FreshModel(
        hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate_size=48, tie_embeddings=tie,
        max_positions=512, initializer_range=0.3,
    )  # fmt: skip
    return tiny_qwen3(seed, tie=tie, fresh=fresh)


@dataclass
class Subject:
    """An engine and the policy that it should compute."""

    engine: Engine
    policy: Policy
    tie: bool

    def publish(self, policy: Policy, kv: KvMode = "keep") -> int:
        """Give the engine the weights of `policy` as the next version."""
        version = self.engine.weight_version + 1
        self.engine.update_weights(policy.weights(), version, kv)
        self.policy = policy
        return version


def distribution(policy: Policy, ids: np.ndarray, temperature: float = 1.0) -> FloatArray:
    """Log-probs [L, V] of what follows each of `ids`, by transformers' own forward pass."""
    eager = copy.deepcopy(policy.model)
    eager.set_attn_implementation("eager")
    logits = eager(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].double()
    found: FloatArray = (logits / temperature).log_softmax(-1).detach().float().numpy()
    return found


def expected(policy: Policy, probe: np.ndarray) -> FloatArray:
    """The policy's log-probs of a probe's tokens after the first."""
    found: FloatArray = policy(PackedInputs.whole([probe.tolist()]), 1.0)[0].detach().numpy()
    return found


def tokens_of(found: dict[tuple[str, int], Completion]) -> dict[tuple[str, int], list[int]]:
    return {key: completion.token_ids.tolist() for key, completion in found.items()}


LONGEST = np.zeros(500, np.int32)
ONE = np.zeros(1, np.int32)
REFUSED = [
    (LONGEST, Sampling(max_new_tokens=13), 1),
    (ONE[:0], Sampling(), 1),
    (np.zeros((2, 2), np.int32), Sampling(), 1),
    (np.array([258], np.int32), Sampling(), 1),
    (np.array([-1], np.int32), Sampling(), 1),
    (ONE, Sampling(stop_token_ids=(900,)), 1),
    (ONE, Sampling(), 0),
]
MATRIX, HEAD, EMBEDDING = "model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.embed_tokens.weight"


def _with(weights: dict[str, Tensor], name: str, tensor: Tensor) -> dict[str, Tensor]:
    return {**weights, name: tensor}


def _nan(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    changed = weights[MATRIX].clone()
    changed[3, 4] = torch.nan
    return _with(weights, MATRIX, changed)


BROKEN: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "shape": lambda w: _with(w, MATRIX, w[MATRIX][1:]),
    "dtype": lambda w: _with(w, MATRIX, w[MATRIX].double()),
    "finite": _nan,
    "missing": lambda w: {name: tensor for name, tensor in w.items() if name != MATRIX},
    "unknown": lambda w: _with(w, MATRIX.replace("1", "7"), w[MATRIX]),
    "twice": lambda w: [*w.items(), *list(w.items())[:1]],
    # A tied head that differs from its embedding; an untied one of another vocabulary.
    "head": lambda w: _with(w, HEAD, w.get(HEAD, w[EMBEDDING])[:-1] + 1),
}


class EngineContract:
    """See the module.

    Attributes:
        stepwise: a step draws a token for every running sequence, and nothing is drawn without one.
    """

    stepwise = True

    @property
    def long(self) -> Sampling:
        """Of requests that something happens to on their way."""
        return LONG if self.stepwise else LONGER

    def underway(
        self, engine: Engine, todo: Sequence[Request], tokens: int, of: str | None = None
    ) -> list[Completion]:
        """Submit requests and go on until what runs (`of` one of them) has so many tokens, or some; what has finished.

        An engine that draws on its own may be done before this process gets to look: then it is tried again.
        """
        assert isinstance(engine, Streaming)
        since = {(request.id, index): 0 for request in todo for index in range(request.n) if of in (None, request.id)}
        for _ in range(5):
            found: list[Completion] = []
            for request in todo:
                engine.submit(request)
            if self.stepwise:
                return [completion for _ in range(tokens) for completion in engine.step()]
            while engine.unfinished:
                if len(engine.drawn(since)) >= SLOTS // 4:
                    return found
                found += engine.step()
        raise AssertionError("five times everything was drawn before anything could be seen of it")

    # ------------------------------------------------------------------ what is sampled

    def test_tokens_and_logprobs_are_the_policys_at_the_sampling_temperature(self, subject: Subject) -> None:
        version = subject.engine.weight_version
        ids = prompts(10)
        found = run(subject.engine, requests(ids, Sampling(temperature=0.8, max_new_tokens=80), n=3))
        assert len(found) == 30
        for (name, _), completion in found.items():
            wanted, entropies = policy_scores(subject.policy, completion, 0.8)
            np.testing.assert_allclose(completion.logprobs, wanted, atol=TOLERANCE)
            if completion.entropies is not None:
                np.testing.assert_allclose(completion.entropies, entropies, atol=1e-4)
            assert completion.logprobs.dtype == np.float32 and completion.token_ids.dtype == np.int32
            assert completion.prompt_ids.tolist() == ids[int(name)].tolist()
            assert completion.versions == ((version, 0, len(completion.token_ids)),)
            assert not completion.injected.any() and completion.interrupted_at is None
            ended = completion.token_ids[-1] == EOS
            assert completion.finish_reason == ("stop" if ended else "length") and EOS not in completion.token_ids[:-1]
            assert ended or len(completion.token_ids) == 80
            assert "<eos>" not in completion.text
        assert {completion.finish_reason for completion in found.values()} == {"stop", "length"}

    def test_greedy_takes_the_most_probable_token(self, subject: Subject) -> None:
        found = run(subject.engine, requests(prompts(8), Sampling(temperature=0, max_new_tokens=12)))
        for completion in found.values():
            ids = np.concatenate((completion.prompt_ids, completion.token_ids))
            whole = distribution(subject.policy, ids)[len(completion.prompt_ids) - 1 : -1]
            assert completion.token_ids.tolist() == whole.argmax(-1).tolist()
            np.testing.assert_allclose(completion.logprobs, whole.max(-1), atol=TOLERANCE)

    def test_greedy_beside_sampled_ones_changes_neither(self, subject: Subject) -> None:
        kinds = [Sampling(temperature=0, max_new_tokens=9), Sampling(temperature=0.7, max_new_tokens=15), LONG]
        todo = [Request(f"{i}-{j}", ids, kinds[j], seed=i) for i, ids in enumerate(prompts(4)) for j in range(3)]
        together = tokens_of(run(subject.engine, todo))
        assert together == {key: ids for one in todo for key, ids in tokens_of(run(subject.engine, [one])).items()}

    def test_frequencies_are_the_models_probabilities(self, subject: Subject) -> None:
        count = 2000 if self.stepwise else 400  # each of them is a request of a server
        for temperature in (1.0, 0.5):
            sampling = Sampling(temperature=temperature, max_new_tokens=1)
            found = run(subject.engine, [Request("x", PROMPT, sampling, seed=7, n=count)])
            drawn = np.bincount([int(c.token_ids[0]) for c in found.values()], minlength=258)
            wanted = np.exp(distribution(subject.policy, PROMPT, temperature)[-1].astype(np.float64)) * count
            often = wanted >= 5
            seen, hoped = np.append(drawn[often], drawn[~often].sum()), np.append(wanted[often], wanted[~often].sum())
            assert stats.chisquare(seen, hoped * seen.sum() / hoped.sum()).pvalue > 1e-4

    def test_samples_are_reported_one_by_one_with_their_index(self, subject: Subject) -> None:
        engine = subject.engine
        engine.submit(Request("x", PROMPT, LONG, seed=3, n=SLOTS + 6))  # more than run at once
        assert engine.unfinished == SLOTS + 6
        found: list[Completion] = []
        while engine.unfinished:
            found += engine.step()
            assert engine.unfinished == SLOTS + 6 - len(found)
        assert sorted(completion.index for completion in found) == list(range(SLOTS + 6))
        assert len({tuple(completion.token_ids.tolist()) for completion in found}) > SLOTS
        assert engine.step() == []

    def test_the_same_request_gives_the_same_tokens(self, subject: Subject) -> None:
        todo = requests(prompts(10), Sampling(max_new_tokens=16), n=3)
        first = tokens_of(run(subject.engine, todo))
        assert tokens_of(run(subject.engine, todo[::-1])) == first
        alone = {key: ids for one in todo[:4] for key, ids in tokens_of(run(subject.engine, [one])).items()}
        assert alone == {key: first[key] for key in alone}
        others = tokens_of(run(subject.engine, [Request(r.id, r.prompt_ids, r.sampling, r.seed + 1, 3) for r in todo]))
        assert sum(others[key] == first[key] for key in first) <= 2

    def test_top_k_and_top_p_bound_the_support_but_not_the_recorded_logprob(self, subject: Subject) -> None:
        for temperature in (1.0, 0.7):
            logprobs = distribution(subject.policy, PROMPT, temperature)[-1]
            order = np.argsort(-logprobs, kind="stable")
            nucleus = order[: int((np.exp(logprobs[order]).cumsum() < 0.6).sum()) + 1].tolist()
            cases = [
                (Sampling(temperature=temperature, top_k=3, max_new_tokens=1), set(order[:3].tolist())),
                (Sampling(temperature=temperature, top_p=0.6, max_new_tokens=1), set(nucleus)),
                (Sampling(temperature=temperature, top_k=1, max_new_tokens=1), {int(order[0])}),
            ]
            todo = [Request(str(i), PROMPT, sampling, seed=i, n=300) for i, (sampling, _) in enumerate(cases)]
            found = run(subject.engine, todo)
            for i, (_, support) in enumerate(cases):
                mine = [c for (name, _), c in found.items() if name == str(i)]
                assert {int(c.token_ids[0]) for c in mine} == support
                for completion in mine:
                    wanted = float(logprobs[completion.token_ids[0]])
                    if not subject.engine.capabilities.whole_logprobs:
                        wanted = np.nan
                    assert completion.logprobs[0] == pytest.approx(wanted, abs=TOLERANCE, nan_ok=True)

    # ------------------------------------------------------------------ where it ends

    def test_stop_ids_and_the_budget(self, subject: Subject) -> None:
        free = run(subject.engine, [Request("a", PROMPT, LONG, seed=4, n=4)])
        longest = max(free, key=lambda key: len(free[key].token_ids))
        ids = free[longest].token_ids.tolist()
        assert len(ids) > 6
        end = ids.index(ids[6])
        sampling = Sampling(max_new_tokens=40, stop_token_ids=(ids[6],))
        stopped = run(subject.engine, [Request("a", PROMPT, sampling, seed=4, n=4)])[longest]
        assert stopped.token_ids.tolist() == ids[: end + 1] and stopped.finish_reason == "stop"
        short = run(subject.engine, [Request("a", PROMPT, Sampling(max_new_tokens=5), seed=4, n=4)])[longest]
        assert short.token_ids.tolist() == ids[:5] and short.finish_reason == "length" and short.truncated

    def test_stop_strings_span_tokens_and_are_kept(self, subject: Subject) -> None:
        tokenizer = byte_tokenizer()
        plain = set(tokenizer("".join(map(chr, range(33, 127)))).input_ids)
        free = run(subject.engine, requests(prompts(12), LONG, n=2))
        tried = 0
        for (name, index), completion in free.items():
            ids = completion.token_ids.tolist()
            pairs = [t for t in range(1, len(ids)) if ids[t] in plain and ids[t - 1] in plain]
            if not pairs or tried == 3:
                continue
            tried += 1
            stop = str(tokenizer.decode(ids[pairs[-1] - 1 : pairs[-1] + 1]))
            end = next(t + 1 for t in range(1, len(ids)) if tokenizer.decode(ids[t - 1 : t + 1]) == stop)
            sampling = Sampling(max_new_tokens=40, stop=("never to be seen", stop))
            request = Request("s", completion.prompt_ids, sampling, seed=1000 + int(name), n=index + 1)
            found = run(subject.engine, [request])["s", index]
            assert found.token_ids.tolist() == ids[:end]
            assert found.finish_reason == "stop" and found.text.endswith(stop)
        assert tried == 3

    def test_the_longest_request_fits_exactly(self, subject: Subject) -> None:
        assert subject.engine.capabilities.max_tokens == 512
        found = run(subject.engine, [Request("x", LONGEST, Sampling(max_new_tokens=12), seed=0)])
        assert len(found["x", 0].token_ids) == 12

    # ------------------------------------------------------------------ what is refused

    @pytest.mark.parametrize(("ids", "sampling", "n"), REFUSED)
    def test_requests_outside_the_limits_are_refused(
        self, subject: Subject, ids: np.ndarray, sampling: Sampling, n: int
    ) -> None:
        with pytest.raises(InputError, match="^request x: "):
            subject.engine.submit(Request("x", ids, sampling, seed=0, n=n))
        assert subject.engine.unfinished == 0 and subject.engine.step() == []

    def test_it_interrupts(self, subject: Subject) -> None:
        thinking = Sampling(max_new_tokens=60, interruption=Interruption(after=(4, 4), phrase="x"))
        request = Request("x", PROMPT, thinking, seed=1)
        assert run(subject.engine, [request])["x", 0].token_ids[4] == byte_tokenizer()("x").input_ids[0]

    def test_an_id_is_unique_while_unfinished(self, subject: Subject) -> None:
        request = Request("x", PROMPT, Sampling(max_new_tokens=2), seed=0)
        subject.engine.submit(request)
        with pytest.raises(InputError, match="^request x: "):
            subject.engine.submit(request)
        drain(subject.engine)
        subject.engine.submit(request)
        assert len(drain(subject.engine)) == 1

    # ------------------------------------------------------------------ under control

    def test_cancel_reports_what_was_sampled_and_what_never_started(self, subject: Subject) -> None:
        engine, todo = subject.engine, requests(prompts(3), self.long, n=20)
        reference = run(engine, todo)
        early = self.underway(engine, todo, 3, of="1")
        assert engine.unfinished == 60 - len(early)
        engine.cancel("1")
        found = engine.step()
        reported = [completion for completion in found if completion.request_id == "1"]
        assert len([c for c in early if c.request_id == "1"]) + len(reported) == 20
        # An engine may learn of an end a few steps late, and then reports it as what it was.
        ended = [c for c in reported if c.finish_reason != "abort"]
        assert all(c.token_ids[-1] == EOS or len(c.token_ids) == self.long.max_new_tokens for c in ended)
        lengths = {len(completion.token_ids) for completion in reported if completion.finish_reason == "abort"}
        assert lengths >= {0, 3} if self.stepwise else max(lengths) > 0
        for completion in reported:
            whole = reference["1", completion.index].token_ids[: len(completion.token_ids)]
            assert completion.token_ids.tolist() == whole.tolist()
        engine.cancel("1")  # it is no more
        rest = [c for c in [*early, *found, *drain(engine)] if c.request_id != "1"]
        assert len(rest) == 40 and engine.unfinished == 0
        for completion in rest:
            whole = reference[completion.request_id, completion.index].token_ids
            assert completion.token_ids.tolist() == whole.tolist()

    # ------------------------------------------------------------------ weights

    @pytest.mark.parametrize("form", ["mapping", "pairs", "with the tied head"])
    def test_an_update_is_what_the_trainer_has(self, subject: Subject, form: str) -> None:
        engine, trainer, probe = subject.engine, model(1, subject.tie), prompts(2, longest=30)[1]
        assert not np.allclose(engine.verify_weights(probe), expected(trainer, probe), atol=1e-2)
        source = trainer.model.state_dict() if form == "with the tied head" else trainer.weights()
        version = engine.weight_version + 1
        engine.update_weights(iter(source.items()) if form == "pairs" else source, version)
        np.testing.assert_allclose(engine.verify_weights(probe), expected(trainer, probe), atol=TOLERANCE)
        assert engine.weight_version == version
        for completion in run(engine, requests(prompts(4), LONG)).values():
            np.testing.assert_allclose(completion.logprobs, policy_logprobs(trainer, completion), atol=TOLERANCE)

    def test_every_parameter_arrives(self, subject: Subject) -> None:
        """One parameter at a time is changed: none may be left as it was, the head and the embedding least of all."""
        probe = prompts(2, longest=30)[1]
        trainer, generator = model(0, subject.tie), torch.Generator().manual_seed(1)
        before = expected(trainer, probe)
        for name, parameter in trainer.model.named_parameters():
            with torch.no_grad():  # not by a factor, which a norm may take out again
                parameter.mul_(1 + 0.5 * torch.randn(parameter.shape, generator=generator))
            subject.publish(trainer)
            after = expected(trainer, probe)
            assert np.abs(after - before).max() > 10 * TOLERANCE, name
            np.testing.assert_allclose(subject.engine.verify_weights(probe), after, atol=TOLERANCE, err_msg=name)
            before = after

    def test_verifying_disturbs_nobody(self, subject: Subject) -> None:
        engine, todo, probe = subject.engine, requests(prompts(6), self.long, n=4), prompts(2, longest=30)[1]
        reference = run(engine, todo)
        for request in todo:
            engine.submit(request)
        found = []
        for _ in range(5):
            found += engine.step()
            np.testing.assert_allclose(engine.verify_weights(probe), expected(subject.policy, probe), atol=TOLERANCE)
        found += drain(engine)
        assert tokens_of({(c.request_id, c.index): c for c in found}) == tokens_of(reference)

    @pytest.mark.parametrize("what", [*BROKEN, "version"])
    def test_a_bad_update_changes_nothing(self, subject: Subject, what: str) -> None:
        engine, probe = subject.engine, prompts(2, longest=30)[1]
        version = subject.publish(subject.policy)
        before = engine.verify_weights(probe)
        good = model(1, subject.tie).weights()
        engine.submit(Request("x", PROMPT, LONG, seed=3))
        with pytest.raises(InputError, match="^weights"):
            source = good if what == "version" else BROKEN[what](good)
            engine.update_weights(source, version - 1 if what == "version" else version + 1)  # type: ignore[arg-type]
        assert engine.weight_version == version and engine.health().ok
        assert np.array_equal(engine.verify_weights(probe), before)
        (completion,) = drain(engine)
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(subject.policy, completion), atol=TOLERANCE)

    @pytest.mark.parametrize("kv", ["keep", "recompute"])
    def test_weights_change_between_two_tokens(self, subject: Subject, kv: KvMode) -> None:
        engine, old, new = subject.engine, subject.policy, model(1, subject.tie)
        count = 2 if self.stepwise else 5
        for _ in range(5):  # what draws on its own may be done between the look and the update
            first = subject.publish(old)
            found = self.underway(engine, requests(prompts(6), self.long, n=count), 7)
            second = subject.publish(new, kv)
            found += drain(engine)
            spanning = [completion for completion in found if len(completion.versions) > 1]
            assert len(found) == 6 * count
            if self.stepwise or len(spanning) > 4:
                break
        assert len(spanning) > 4
        gaps = []
        for completion in spanning:
            swapped = completion.versions[0].end
            assert swapped == 7 or not self.stepwise
            assert completion.versions == ((first, 0, swapped), (second, swapped, len(completion.token_ids)))
            logprobs = completion.logprobs
            before, after = policy_logprobs(old, completion), policy_logprobs(new, completion)
            np.testing.assert_allclose(logprobs[:swapped], before[:swapped], atol=TOLERANCE)
            gaps.append(np.abs(logprobs[swapped:] - after[swapped:]).max())
        assert max(gaps) < TOLERANCE if kv == "recompute" else max(gaps) > 1e-2

    def test_prompts_are_never_shared_across_versions(self, subject: Subject) -> None:
        engine, new = subject.engine, model(1, subject.tie)
        prompt = np.random.default_rng(5).integers(0, 256, 100).astype(np.int32)  # several blocks of a paged cache
        found = self.underway(engine, [Request("x", prompt, self.long, seed=3, n=SLOTS + 20)], 5)
        version = subject.publish(new)
        found += drain(engine)
        late = [completion for completion in found if completion.versions[0].version == version]
        assert len(found) == SLOTS + 20 and len(late) >= 10
        late += run(engine, [Request("y", prompt, LONG, seed=3)]).values()
        for completion in late:
            np.testing.assert_allclose(completion.logprobs, policy_logprobs(new, completion), atol=TOLERANCE)

    def test_updates_before_the_first_token_and_in_a_row_leave_no_empty_span(self, subject: Subject) -> None:
        engine, start = subject.engine, subject.engine.weight_version
        engine.submit(Request("0", PROMPT, Sampling(max_new_tokens=6 if self.stepwise else 250), seed=1000))
        weights = subject.policy.weights()
        engine.update_weights(weights, start + 1)
        found = engine.step()
        for version in (start + 2, start + 2, start + 3):
            engine.update_weights(weights, version)
        found += engine.step()
        assert not (found and self.stepwise)
        engine.update_weights(weights, start + 3)
        (completion,) = found + drain(engine)
        spans, length = completion.versions, len(completion.token_ids)
        assert all(span.end > span.start for span in spans) and spans[-1].end == length
        drawn_by = [span.version for span in spans]
        assert drawn_by == sorted(set(drawn_by)) and set(drawn_by) <= {start, start + 1, start + 2, start + 3}
        assert spans == ((start + 1, 0, 1), (start + 3, 1, length)) or not self.stepwise

    # ------------------------------------------------------------------ its end

    def test_overflow_ends_it_loudly(self, disposable: Subject) -> None:
        engine = disposable.engine
        weights = {name: tensor.clone() for name, tensor in disposable.policy.weights().items()}
        weights["model.norm.weight"].fill_(torch.finfo(torch.float32).max)  # finite, but the logits are not
        engine.update_weights(weights, engine.weight_version + 1)
        engine.submit(Request("x", PROMPT, LONG, seed=1))
        with pytest.raises(StropError):
            drain(engine)
        assert not engine.health().ok
        with pytest.raises(InputError):
            engine.step()
        engine.close()

    # ------------------------------------------------------------------ what an engine may offer besides

    def test_a_probe_is_scored_and_running_samples_are_not_touched(self, subject: Subject) -> None:
        engine = subject.engine
        running = Request("greedy", PROMPT, Sampling(temperature=0, max_new_tokens=30), seed=1)
        engine.submit(running)
        found = engine.step()
        for ids in prompts(7, seed=3, longest=40):
            wanted = distribution(subject.policy, ids, 1.0)[:-1]
            logprobs = engine.verify_weights(ids)
            np.testing.assert_allclose(logprobs, wanted[np.arange(len(ids) - 1), ids[1:]], atol=TOLERANCE)
        (completion,) = found + drain(engine)
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(subject.policy, completion), atol=TOLERANCE)

    @pytest.mark.parametrize("ids", [[], [1] * 600, [1, 999]])
    def test_a_probe_outside_the_limits_is_refused(self, subject: Subject, ids: list[int]) -> None:
        with pytest.raises(InputError):
            subject.engine.verify_weights(np.array(ids, np.int32))

    def test_what_was_drawn_adds_up_to_the_completions(self, subject: Subject) -> None:
        engine = subject.engine
        assert isinstance(engine, Streaming)
        asked = Request("a", PROMPT, self.long, seed=1, n=SLOTS + 2, watched=True)
        engine.submit(asked)  # two of them wait
        engine.submit(Request("b", PROMPT, Sampling(max_new_tokens=9), seed=2))
        since = {("a", index): 0 for index in range(SLOTS + 2)}
        seen: dict[tuple[str, int], list[tuple[int, float]]] = {key: [] for key in since}
        done: dict[tuple[str, int], Completion] = {}
        while engine.unfinished:
            done |= {(c.request_id, c.index): c for c in engine.step()}
            for drawn in engine.drawn(since):
                key = drawn.request_id, drawn.index
                assert key in since and len(drawn.token_ids) == len(drawn.logprobs) > 0
                assert len(drawn.token_ids) == 1 or not self.stepwise
                seen[key] += zip(drawn.token_ids.tolist(), drawn.logprobs.tolist(), strict=True)
                since[key] += len(drawn.token_ids)
        assert any(len(pairs) > 2 for pairs in seen.values())
        for key, pairs in seen.items():  # the last token of a step comes with the completion
            last = len(done[key].token_ids) - 1
            assert len(pairs) == last or not self.stepwise
            whole = list(zip(done[key].token_ids.tolist(), done[key].logprobs.tolist(), strict=True))
            assert pairs == whole[: len(pairs)]
        assert engine.drawn(since) == []

    def test_health_and_close(self, disposable: Subject) -> None:
        engine = disposable.engine
        for request in requests(prompts(3), LONG, n=30):
            engine.submit(request)
        health = engine.health()
        assert health.running + health.waiting == 90 and health.running == 0 or not self.stepwise
        finished = len(engine.step())
        health = engine.health()
        assert health.ok and health.running + health.waiting == 90 - finished
        assert health.running <= SLOTS and (health.waiting == 90 - SLOTS or not self.stepwise)
        engine.close()
        assert not engine.health().ok
        for forbidden in (engine.step, lambda: engine.submit(Request("late", PROMPT, LONG, seed=0))):
            with pytest.raises(InputError):
                forbidden()
        engine.close()  # once more is no harm
