"""`strop eval --endpoint`: a served model measured over HTTP is the model measured here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.prepare.test_judges import said, serving
from tests.serving.running import VERSION, Running, endpoint
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base.endpoint import ChatEndpoint, EndpointClient, EndpointError, read_reply
from strop.base.types import InputError
from strop.cli import app
from strop.engines.endpoint import EndpointEngine, EndpointTokenizer
from strop.engines.protocol import Request, Sampling
from strop.model.files import export
from strop.serving import ServeLimits


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with endpoint(key="eval-key") as running:
        yield running


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_ENDPOINT_KEY", "eval-key")


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problems") / "sums.jsonl"
    rows = [{"question": f"{n}+{n}=", "answer": str(2 * n)} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measure(problems: Path, out: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(
        app,
        [
            "eval",
            "--benchmark",
            str(problems),
            "--out",
            str(out),
            "--json",
            "--set",
            "verifier=ExactMatch",
            "--set",
            "sampling.max_new_tokens=20",
            *arguments,
        ],
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return dict(json.loads(done.stdout))


def samples(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "sums").glob("samples-*.parquet"))
    rows: list[dict[str, Any]] = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: (row["ticket"], row["sample"]))


def test_the_samples_are_those_of_the_model_itself(tmp_path: Path, served: Running, problems: Path) -> None:
    export(tiny_qwen3().model, byte_tokenizer(chat=True), tmp_path / "model")
    common = ("--set", "sampling.temperature=0", "--samples", "2", "--set", "data.template.instruct=false")
    out = tmp_path / "out"
    measure(problems, out, f"here={tmp_path / 'model'}", *common)
    remote = ("there=tiny", "--endpoint", served.url, *common)
    report = measure(problems, out, *remote)
    here, there = samples(out / "here"), samples(out / "there")
    assert len(there) == 6
    for mine, theirs in zip(here, there, strict=True):
        for column in ("problem_id", "sample", "completion", "finish_reason", "answer", "status"):
            assert mine[column] == theirs[column]
        assert len(mine["token_ids"]) == len(theirs["token_ids"])  # as many as the endpoint counted
        assert set(theirs["token_ids"]) == {-1} and np.isnan(theirs["logprobs"]).all()
        assert theirs["versions"][0]["version"] == VERSION
    assert {"here", "there"} <= set(str(report).replace("'", " ").split())
    asked = served.health()
    measure(problems, out, *remote)  # everything is kept: nothing is asked for
    assert served.health() == asked


def test_arguments_of_the_chat_template_are_sent(tmp_path: Path, problems: Path) -> None:
    with serving(lambda body, number: said("4")) as server:
        sets = ("--set", "data.template.arguments={enable_thinking=false}", "--samples", "1")
        measure(problems, tmp_path / "out", "tiny", "--endpoint", server.url, *sets)
    assert [body["chat_template_kwargs"] for body in server.bodies] == [{"enable_thinking": False}] * 3


def test_an_endpoint_that_is_not_there_is_told(tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EndpointClient, "_backoff", lambda self, attempt: 0.0)
    with pytest.raises(EndpointError):
        measure(problems, tmp_path / "out", "tiny", "--endpoint", "http://127.0.0.1:9/v1")
    with pytest.raises(InputError, match="https?://"):
        measure(problems, tmp_path / "out2", "tiny", "--endpoint", "localhost:8000")


def test_while_an_endpoint_does_not_answer_the_terminal_says_so(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EndpointClient, "_backoff", lambda self, attempt: 0.2)
    dead = ("--endpoint", "http://127.0.0.1:9/v1", "--benchmark", str(problems), "--set", "verifier=ExactMatch")
    done = CliRunner().invoke(app, ["eval", "tiny", *dead, "--out", str(tmp_path / "out"), "--plain"])
    assert isinstance(done.exception, EndpointError)
    assert done.stderr.count("http://127.0.0.1:9/v1 does not answer (ConnectError: ") == 1


OPENAI = "max_tokens is too large: 20. This model supports at most 8 completion tokens, whereas you provided 20."
VLLM = "This model's maximum context length is 8 tokens. However, you requested 24 tokens (4 in the messages, 20 in the"
OLD = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@pytest.mark.parametrize("refusal", [OPENAI, VLLM])
def test_a_refused_budget_names_its_flag_which_then_serves(tmp_path: Path, problems: Path, refusal: str) -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
        return said("4") if body["max_tokens"] <= 8 else (400, {}, {"error": {"message": refusal, "code": 400}})

    with serving(answer) as server:
        common = ("tiny", "--endpoint", server.url, "--samples", "1")
        with pytest.raises(InputError, match=r"HTTP 400: .*tokens"):
            measure(problems, tmp_path / "out", *common)
        # The same folder, in which no sample lies.
        measure(problems, tmp_path / "out", *common, "--set", "sampling.max_new_tokens=8")
    assert [row["completion"] for row in samples(tmp_path / "out" / "tiny")] == ["4", "4", "4"]


def test_a_parameter_that_is_not_known_is_no_matter_of_the_budget(tmp_path: Path, problems: Path) -> None:
    with (
        serving(lambda body, number: (400, {}, {"error": {"message": OLD}})) as server,
        pytest.raises(InputError, match="max_completion_tokens"),
    ):
        measure(problems, tmp_path / "out", "tiny", "--endpoint", server.url)


def test_a_served_models_limit_names_the_budget(tmp_path: Path, problems: Path) -> None:
    with (
        endpoint(limits=ServeLimits(grace=1.0, new_tokens=8)) as limited,
        pytest.raises(InputError, match=r"HTTP 400: .*tokens"),
    ):
        measure(problems, tmp_path / "out", "tiny", "--endpoint", limited.url)


def test_what_was_sampled_before_an_endpoint_died_is_kept_and_gone_on_with(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EndpointClient, "_backoff", lambda self, attempt: 0.0)
    common = ("tiny", "--samples", "1", "--set", "engine.slots=16")

    def dies(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
        return said("4") if number <= 2 else (503, {}, {})

    with serving(dies) as server:
        with pytest.raises(EndpointError, match="--out"):
            measure(problems, tmp_path / "out", *common, "--endpoint", server.url)
        assert len(server.bodies) == 2 + 6
    with serving(lambda body, number: said("4")) as server:
        measure(problems, tmp_path / "out", *common, "--endpoint", server.url)
        assert len(server.bodies) == 1  # the problem that is missing
    assert [row["completion"] for row in samples(tmp_path / "out" / "tiny")] == ["4", "4", "4"]


def test_a_wrong_key_and_a_wrong_name_are_told(
    tmp_path: Path, served: Running, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="model"):
        measure(problems, tmp_path / "b", "other", "--endpoint", served.url)
    monkeypatch.delenv("STROP_ENDPOINT_KEY")
    with pytest.raises(InputError, match="401"):
        measure(problems, tmp_path / "a", "tiny", "--endpoint", served.url)


def asked(engine: EndpointEngine, text: str, n: int = 1, **sampling: Any) -> list[Any]:
    ids = np.array(EndpointTokenizer().encode(text, add_special_tokens=False), np.int32)
    engine.submit(Request("r", ids, Sampling.model_validate(sampling), 5, n))
    found = []
    while engine.unfinished:
        found += engine.step()
    return sorted(found, key=lambda completion: completion.index)


def test_the_engine_counts_what_it_asks_for(served: Running) -> None:
    engine = EndpointEngine(
        ChatEndpoint(url=served.url, model="tiny", api_key_env="STROP_ENDPOINT_KEY"), 4
    )
    found = asked(engine, "3+é=", n=3, max_new_tokens=9, top_k=50, top_p=0.9)
    assert len({completion.text for completion in found}) == 3  # each sample has a seed of its own
    assert [c.text for c in asked(engine, "3+é=", n=3, max_new_tokens=9, top_k=50, top_p=0.9)] == [
        completion.text for completion in found
    ]
    assert engine.tokens["calls"] == 6 and engine.tokens["prompt"] == 6 * 5
    stop = next(letter for letter in found[0].text[1:] if letter.isascii())
    cut = asked(engine, "3+é=", max_new_tokens=9, top_k=50, top_p=0.9, stop=(stop,))[0]
    assert cut.text.endswith(stop) and found[0].text.startswith(cut.text)  # an engine's text has its stop string
    assert cut.finish_reason == "stop" and engine.weight_version == VERSION
    engine.submit(Request("x", np.array([51], np.int32), Sampling(max_new_tokens=400), 1, 8))
    engine.cancel("x")
    assert {completion.finish_reason for completion in engine.step()} == {"abort"} and engine.unfinished == 0
    with pytest.raises(InputError, match="thinking"):
        asked(engine, "3", thinking_tokens=5)
    engine.close()


def test_answers_of_other_servers_are_read() -> None:
    message = {"content": "4", "reasoning_content": "2 and 2"}
    said = read_reply({"choices": [{"message": message, "finish_reason": "length"}]})
    assert (said.text, said.finish_reason, said.completion_tokens) == ("<think>2 and 2</think>4", "length", 0)
    empty = read_reply({"choices": [{"message": {"content": None}, "finish_reason": "content_filter"}], "usage": None})
    assert (empty.text, empty.finish_reason) == ("", "stop")
    others: list[Any] = [{}, {"choices": []}, [], {"choices": [{"text": 5}]}]
    for broken in others:
        with pytest.raises((ValueError, LookupError, TypeError)):
            read_reply(broken)
