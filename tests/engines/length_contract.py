"""The part of the engine contract that is about thinking: budgets, interruptions, and what stop strings may not see."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
from tests.engines.contract import EOS, PROMPT, TOLERANCE, Subject
from tests.engines.runs import policy_logprobs, prompts, requests, run
from tests.tiny import byte_tokenizer

from strop.base.types import Completion
from strop.engines.protocol import Request, Sampling

TOKENIZER = byte_tokenizer()
PHRASE = "Enough. </think>"
COUNT = 24


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER(text).input_ids)


def interrupted(first: int, last: int, phrase: str = PHRASE, **more: object) -> Sampling:
    given = {"max_new_tokens": 60, "interruption": {"after": (first, last), "phrase": phrase}, **more}
    return Sampling.model_validate(given)


def thinking_ends(tokens: list[int], marker: str) -> int | None:
    """How many tokens it takes until the text holds the marker, read anew from the start for every token."""
    return next((t for t in range(1, len(tokens) + 1) if marker in str(TOKENIZER.decode(tokens[:t]))), None)


class LengthContract:
    """Mixed into the tests of an engine with a `subject`, beside `EngineContract`."""

    def check(self, subject: Subject, completion: Completion, free: Completion, phrase: str = PHRASE) -> int:
        """Where the phrase is, after everything that must hold around it has been checked."""
        at = completion.interrupted_at
        assert at is not None
        ids, end = ids_of(phrase), at + len(ids_of(phrase))
        assert completion.token_ids[:at].tolist() == free.token_ids[:at].tolist()
        assert completion.token_ids[at:end].tolist() == ids
        assert completion.injected.nonzero()[0].tolist() == list(range(at, end))
        assert not completion.logprobs[at:end].any()
        own = ~completion.injected
        wanted = policy_logprobs(subject.policy, completion)
        np.testing.assert_allclose(completion.logprobs[own], wanted[own], atol=TOLERANCE)
        assert completion.versions == ((subject.engine.weight_version, 0, len(completion.token_ids)),)
        return at

    def test_interruptions_come_where_they_may_and_change_nothing_before(self, subject: Subject) -> None:
        asked = [Request("x", PROMPT, interrupted(3, 7, answer_tokens=4), seed=5, n=COUNT)]
        found = run(subject.engine, asked)
        free = run(subject.engine, [Request("x", PROMPT, Sampling(max_new_tokens=7), seed=5, n=COUNT)])
        positions = set()
        for key, completion in found.items():
            if completion.interrupted_at is None:  # the model ended it first
                assert completion.finish_reason == "stop" and len(completion.token_ids) <= 7
                continue
            at = self.check(subject, completion, free[key])
            answer = len(completion.token_ids) - at - len(ids_of(PHRASE))
            assert answer == 4 or (1 <= answer < 4 and completion.token_ids[-1] == EOS)
            assert (completion.finish_reason == "length") == (completion.token_ids[-1] != EOS)
            positions.add(at)
        assert positions >= {3, 4, 5, 6, 7}
        again = run(subject.engine, asked)
        assert all(again[key].token_ids.tolist() == found[key].token_ids.tolist() for key in found)

    def test_greedy_goes_on_as_from_a_prompt_that_holds_the_phrase(self, subject: Subject) -> None:
        todo = requests(prompts(4), interrupted(0, 9, temperature=0.0))
        found = run(subject.engine, todo)
        free = run(subject.engine, requests(prompts(4), Sampling(temperature=0, max_new_tokens=60)))
        for request in todo:
            completion = found[request.id, 0]
            end = self.check(subject, completion, free[request.id, 0]) + len(ids_of(PHRASE))
            prompt = np.concatenate((request.prompt_ids, completion.token_ids[:end])).astype(np.int32)
            rest = Sampling(temperature=0, max_new_tokens=60 - end)
            again = run(subject.engine, [Request("again", prompt, rest, seed=0)])["again", 0]
            assert completion.token_ids[end:].tolist() == again.token_ids.tolist()

    def test_an_interruption_before_the_first_token(self, subject: Subject) -> None:
        found = run(subject.engine, [Request("x", PROMPT, interrupted(0, 0, answer_tokens=5), seed=2, n=3)])
        for completion in found.values():
            assert self.check(subject, completion, completion) == 0
            assert len(completion.token_ids) <= len(ids_of(PHRASE)) + 5

    def test_budgets_of_thinking_and_answer(self, subject: Subject) -> None:
        """Against a reading of the free completions; what is drawn after the marker may be of another stream."""
        free = run(subject.engine, [Request("x", PROMPT, Sampling(max_new_tokens=40), seed=3, n=COUNT)])
        text = "".join(completion.text for completion in free.values())
        letters = Counter(letter for letter in text if letter.isascii() and letter.isalnum())
        (often, _), (less, _) = letters.most_common(2)
        ended = 0
        for thinking, answer, marker in ((20, 9, often), (30, None, less), (None, 5, often), (7, 3, "never")):
            asked = Sampling(
                max_new_tokens=40, thinking_tokens=thinking, answer_tokens=answer, end_of_thinking=marker
            )
            found = run(subject.engine, [Request("x", PROMPT, asked, seed=3, n=COUNT)])
            for key, completion in found.items():
                tokens, own = free[key].token_ids.tolist(), completion.token_ids.tolist()
                end = thinking_ends(tokens[: thinking or 40], marker)
                before = len(own) if end is None else end
                assert own[:before] == tokens[:before] and not completion.injected.any()
                limit = (thinking or 40) if end is None else min(40, end + (answer or 40))
                assert len(own) == limit or (len(own) < limit and own[-1] == EOS)
                assert completion.finish_reason == ("stop" if own[-1] == EOS else "length")
                ended += end is not None
        assert ended > 8

    def test_thinking_that_ends_by_itself_is_not_interrupted(self, subject: Subject) -> None:
        free = run(subject.engine, requests(prompts(5), Sampling(max_new_tokens=60), n=4))
        tried = 0
        for (name, index), completion in free.items():
            tokens = completion.token_ids.tolist()
            texts = [str(TOKENIZER.decode(tokens[t : t + 2])) for t in range(2, len(tokens) - 1)]
            marker = next((text for text in texts if len(text) == 2 and text.isascii() and text.isprintable()), None)
            end = None if marker is None else thinking_ends(tokens, marker)
            if end is None or len(tokens) < end + 6 or tried == 3:
                continue
            tried += 1
            for position, own in ((end, True), (end + 1, True), (end - 1, False)):
                asked = interrupted(position, position, end_of_thinking=marker, answer_tokens=3)
                todo = [Request("x", completion.prompt_ids, asked, 1000 + int(name), index + 1)]
                found = run(subject.engine, todo)["x", index]
                if own:
                    assert found.interrupted_at is None and not found.injected.any()
                    assert found.token_ids[:end].tolist() == tokens[:end]
                    assert len(found.token_ids) == end + 3 or found.token_ids[-1] == EOS
                else:
                    assert self.check(subject, found, completion) == end - 1
        assert tried == 3

    def test_stop_strings_are_not_looked_for_in_or_across_a_phrase(self, subject: Subject) -> None:
        free = run(subject.engine, [Request("x", PROMPT, interrupted(4, 4, "abc"), seed=1, n=6)])
        plain = next(c for c in free.values() if len(c.token_ids) > 12)
        stops = ["abc", "bc", "c" + str(TOKENIZER.decode(plain.token_ids[7:8]))]
        request = Request("x", PROMPT, interrupted(4, 4, "abc", stop=tuple(stops)), seed=1, n=plain.index + 1)
        same = run(subject.engine, [request])["x", plain.index]
        assert same.token_ids.tolist() == plain.token_ids.tolist()
        after = str(TOKENIZER.decode(plain.token_ids[8:10]))
        stopping = dataclasses.replace(request, sampling=interrupted(4, 4, "abc", stop=after))
        ended = run(subject.engine, [stopping])["x", plain.index]
        assert ended.finish_reason == "stop" and ended.text.endswith(after) and len(ended.token_ids) <= 10
