"""Judges and difficulty's neighbours against the real endpoint: votes of a model that has learned to vote."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prepare.working import Outcome, questions, run
from tests.serving.running import Running, endpoint
from tests.tiny import byte_tokenizer, tiny_settings

from strop.base.endpoint import ChatEndpoint, EndpointClient, EndpointError, NoRoom, _retry_after
from strop.base.types import InputError
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.policy import Policy, load_policy
from strop.serving import ServeLimits
from strop.training.settings import AdamW, SftSettings
from strop.training.sft import Demonstration, FineTuning

INSTRUCTION = "Judge: "
GOOD = '{"valid": true}'
BAD = '{"good_formatting": false}'
ROWS = [f"good {number}" for number in range(3)] + [f"bad {number}" for number in range(3)]
KEY = "STROP_TEST_JUDGE_KEY"


@pytest.fixture(scope="module")
def voter() -> Policy:
    """A small model that has learned what to say of these problems."""
    tokenizer = byte_tokenizer(chat=True)
    policy, _ = load_policy(tiny_settings(dtype="float32"), tokenizer, 1)
    shown = []
    for row in ROWS:
        prompt = tokenizer.encode(f"user: {INSTRUCTION}{row}\nassistant: ", add_special_tokens=False)
        said = tokenizer.encode(GOOD if "good" in row else BAD, add_special_tokens=False)
        shown.append(Demonstration(np.array(prompt, np.int32), np.array([*said, 256], np.int32)))
    settings = SftSettings(tokens_per_batch=1000, steps=40, optimizer=AdamW(lr=2e-2, warmup_steps=5))
    for _ in FineTuning(policy, shown, settings).events():
        pass
    return policy


def engine(policy: Policy) -> TorchEngine:
    return TorchEngine(policy.eval(), byte_tokenizer(chat=True), EngineSettings(slots=16))


def judged(folder: Path, url: str, rows: list[str], judge: dict[str, Any] | None = None, **more: Any) -> Outcome:
    judges = [{"url": url, "model": "tiny", "backoff": 0.05, "api_key_env": KEY, **(judge or {})}]  # fmt: skip
    step = {"piece": "Judges", "judges": judges, "instruction": INSTRUCTION, "votes": 2, "threshold": 2,
            "temperature": 0.0, "max_tokens": 100, "stop_early": False, **more}  # fmt: skip
    source = folder / "set0.jsonl"
    given: Any = {"path": str(source)} if source.exists() else questions(*rows)
    return run(folder, [given], [step])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "judges-key")


@pytest.fixture(scope="module")
def served(voter: Policy) -> Iterator[Running]:
    with endpoint(key="judges-key", engine=engine(voter)) as running:
        yield running


def test_votes_and_tokens_are_the_endpoints(tmp_path: Path, served: Running) -> None:
    outcome = judged(tmp_path, served.url, ROWS)
    assert sorted(outcome.prompts) == sorted(row for row in ROWS if "good" in row)
    assert outcome.reasons == {"badly formatted": 3}
    prompt = sum(2 * len(f"user: {INSTRUCTION}{row}\nassistant: ") for row in ROWS)
    completion = 6 * (len(GOOD) + 1) + 6 * (len(BAD) + 1)
    counts = outcome.step("judges")["counts"]
    assert (counts["votes"], counts["calls"], counts["unreadable_votes"]) == (12, 12, 0)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (prompt, completion)


def test_a_crowded_endpoint_is_asked_again(tmp_path: Path, voter: Policy) -> None:
    with endpoint(key="judges-key", engine=engine(voter), limits=ServeLimits(requests=1, grace=1.0)) as running:
        outcome = judged(tmp_path, running.url, ROWS[1:5], {"retries": 60}, concurrency=3)
    assert sorted(outcome.prompts) == ["good 1", "good 2"]
    counts = outcome.step("judges")["counts"]
    assert counts["votes"] == 8 and counts["retries"] > 0 and counts["calls"] == 8 + counts["retries"]


def test_an_endpoint_that_goes_and_comes_back_is_gone_on_with(tmp_path: Path, voter: Policy) -> None:
    with endpoint(key="judges-key", engine=engine(voter)) as running:
        url, stop = running.url, running.server.stop

        def kill() -> None:
            votes = tmp_path / "out" / "steps"
            while not any(path.stat().st_size for path in votes.rglob("votes.jsonl")):
                time.sleep(0.005)
            stop()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(EndpointError):
            judged(tmp_path, url, ROWS * 5, {"retries": 1}, concurrency=1)
        killer.join()
    votes = next((tmp_path / "out" / "steps").rglob("votes.jsonl")).read_text().count("\n")
    assert 0 < votes < 60
    with endpoint(key="judges-key", engine=engine(voter)) as again:
        outcome = judged(tmp_path, again.url, [], {"retries": 2}, concurrency=8)  # elsewhere, and asked otherwise
    assert outcome.step("judges")["counts"]["votes"] == 60
    assert again.server.answered == 60 - votes  # what was kept was not asked for again


def test_what_is_too_long_for_a_judge_is_no_vote(tmp_path: Path, served: Running) -> None:
    outcome = judged(tmp_path, served.url, ["good 1", "good " * 200])
    assert outcome.prompts == ["good 1"]
    counts = outcome.step("judges")["counts"]
    assert (counts["votes"], counts["unreadable_votes"]) == (4, 2)
    votes = next((outcome.folder / "steps").rglob("votes.jsonl")).read_text()
    assert "context 512" in votes


def test_refusals_and_time_outs(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def chat(judge: ChatEndpoint, text: str, *arguments: Any) -> None:
        asyncio.run(EndpointClient(judge).chat([{"role": "user", "content": text}], *arguments))

    judge = ChatEndpoint(url=served.url, model="tiny", api_key_env=KEY, retries=1, backoff=0.0)
    with pytest.raises(NoRoom, match="max_tokens"):
        chat(judge, "good 1", 0.0, 5000, 0)
    with pytest.raises(InputError, match="model"):
        chat(judge.model_copy(update={"model": "other"}), "good 1", 0.0, 5, 0)
    monkeypatch.setenv(KEY, "another")
    with pytest.raises(InputError, match="401"):
        chat(judge, "good 1", 0.0, 5, 0)
    monkeypatch.setenv(KEY, "judges-key")
    with pytest.raises(EndpointError):
        chat(judge.model_copy(update={"timeout": 0.02}), "?" * 50, 5.0, 400, 0)


@pytest.mark.parametrize(("header", "seconds"), [("0.5", 0.5), ("600", 60.0), ("-3", 0.0), ("soon", None), ("", None)])
def test_retry_after_is_read(header: str, seconds: float | None) -> None:
    assert _retry_after(header) == seconds
