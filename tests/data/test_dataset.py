"""From problems to prompts: templates, one BOS, the budget, and a held-out split disjoint by question text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import byte_tokenizer
from tokenizers import processors

from strop.base.types import InputError, Message, Problem
from strop.data.generators import ChainSum
from strop.data.loading import assert_disjoint, build_dataset, load_data
from strop.data.rows import JsonLines
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.source import question_key
from strop.data.templates import ChatTemplate, OpenReasonerZero, Plain, encode_prompt, opening

TOKENIZER = byte_tokenizer()
CHATTING = byte_tokenizer(chat=True)
PROBLEM = Problem("a", "1+1=", "2")
CHAT = replace(PROBLEM, prompt=(Message(role="system", content="Be brief."), Message(role="user", content="1+1=")))


def bos_tokenizer(with_eos: bool) -> Any:
    """One that puts `<bos>` in front, and where `with_eos` an EOS at the end."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    tokens = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<bos>", "<eos>")]
    single = "<bos> $A <eos>" if with_eos else "<bos> $A"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
    return tokenizer


def test_plain() -> None:
    ids = Plain(prefix="Q: ", suffix="\nA:")(PROBLEM, TOKENIZER)
    assert ids.dtype == "int32" and TOKENIZER.decode(ids) == "Q: 1+1=\nA:"
    assert Plain().render(CHAT, TOKENIZER) == "Be brief.\n1+1="


@pytest.mark.parametrize("with_eos", [False, True])
@pytest.mark.parametrize("text", ["1+1=", "<bos>1+1="])
def test_one_bos_and_no_eos(with_eos: bool, text: str) -> None:
    tokenizer = bos_tokenizer(with_eos)
    ids = Plain()(replace(PROBLEM, prompt=text), tokenizer).tolist()
    assert ids == [tokenizer.bos_token_id, *tokenizer.encode("1+1=", add_special_tokens=False)]


def test_chat_template_writes_its_own_bos() -> None:
    tokenizer = bos_tokenizer(with_eos=False)
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[go]"
    ids = ChatTemplate(system="S", instruction="Box it.")(PROBLEM, tokenizer).tolist()
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == "[system]S[user]1+1=\nBox it.[go]"


def test_chat_template_asks_for_the_answer() -> None:
    assert CHATTING.decode(ChatTemplate()(CHAT, CHATTING)) == "system: Be brief.\nuser: 1+1=\nassistant: "


def test_chat_template_refusals() -> None:
    with pytest.raises(InputError, match="'a'"):
        ChatTemplate(system="S")(CHAT, CHATTING)
    tokenizer = byte_tokenizer(chat=True)
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(InputError, match="'a'"):
        ChatTemplate()(PROBLEM, tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="data.template"):
        ChatTemplate()(PROBLEM, tokenizer)


def test_open_reasoner_zero() -> None:
    text = OpenReasonerZero(wording="code").render(replace(PROBLEM, prompt=r"{prompt} \boxed{}"), TOKENIZER)
    assert text.startswith("A conversation between User and Assistant. The User asks")
    assert text.endswith("tag.\nThis is the problem:\n{prompt} \\boxed{}\nAssistant: <think>")
    paper = OpenReasonerZero().render(PROBLEM, TOKENIZER)
    assert paper.endswith("tag.\n1+1=\nAssistant: <think>")


@pytest.mark.parametrize(
    ("rendered", "opened"),
    [("go: <think>\n", "<think>"), ("Think in <think>…</think>. go:", ""), ("<think>\n\n</think>\n\n", "")],
)
def test_a_think_block_opened_by_the_prompt(rendered: str, opened: str) -> None:
    assert opening(rendered) == opened


def test_the_opening_reaches_the_verifier() -> None:
    dataset = build_dataset("one", [PROBLEM], OpenReasonerZero(), TOKENIZER, 2000)
    assert dataset[0].problem.extra == {"opening": "<think>"}
    assert build_dataset("one", [PROBLEM], Plain(), TOKENIZER, 2000)[0].problem == PROBLEM


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InputError):
        encode_prompt("", TOKENIZER, add_bos=True)


def test_prompts_over_the_budget_are_left_out_and_reported() -> None:
    problems = [replace(PROBLEM, id=str(length), prompt="1" * length) for length in (3, 9, 4, 10)]
    dataset = build_dataset("ones", problems, Plain(), TOKENIZER, max_prompt_tokens=4)
    assert [example.problem.id for example in dataset] == ["3", "4"]
    assert (dataset.over_budget, dataset.longest_prompt) == (2, 4)
    with pytest.raises(InputError, match=r"in 2 tokens \(data\.max_prompt_tokens"):
        build_dataset("ones", problems, Plain(), TOKENIZER, max_prompt_tokens=2)


def test_load_data_reports() -> None:
    source = ChainSum(count=60, terms=2, digits=1)
    held_out = HeldOutSettings(source=ChainSum(count=40, terms=2, digits=1, seed=9))
    data = load_data(DataSettings(source=source, held_out=held_out), TOKENIZER)
    assert data.held_out is not None and len(data.held_out) == 40
    assert data.removed == 60 - len(data.train) > 0
    assert data.report() == (
        f"train: {len(data.train)} problems of chain sums of 2 terms with 1 digit, prompts up to 4 tokens",
        "held out: 40 problems of chain sums of 2 terms with 1 digit, prompts up to 4 tokens",
        f"train: {data.removed} problems left out, their questions are held out",
    )


@pytest.mark.parametrize(("count", "said"), [(None, False), (40, False), (39, True)])
def test_held_out_problems_that_are_not_taken_are_said(count: int | None, said: bool) -> None:
    source = ChainSum(count=40, terms=3, digits=1, seed=9)
    held_out = HeldOutSettings(source=source, count=count)
    data = load_data(DataSettings(source=ChainSum(count=90, digits=1), held_out=held_out), TOKENIZER)
    assert data.held_out is not None
    assert [problem.id for problem in data.held_out.problems] == [problem.id for problem in source.load(count)]
    assert any("only the first" in line and "data.held_out.count=none" in line for line in data.report()) is said


def test_limit_and_no_held_out() -> None:
    data = load_data(DataSettings(source=ChainSum(count=60), limit=7), TOKENIZER)
    assert len(data.train) == 7 and data.held_out is None and data.removed == 0


@given(
    questions=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([" ", "  ", "\n"])), min_size=2, max_size=40),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_held_out_questions_are_never_trained(questions: list[tuple[int, str]], data: st.DataObject) -> None:
    """Whatever is repeated, with whatever white space."""
    different = len({number for number, _ in questions})
    if different < 2:
        return
    count, seed = data.draw(st.integers(1, different - 1)), data.draw(st.integers(0, 9))
    source = FromTexts(texts=tuple(f"what is{space}{number}?" for number, space in questions))
    loaded = load_data(DataSettings(source=source, held_out=HeldOutSettings(count=count, seed=seed)), TOKENIZER)
    assert loaded.held_out is not None and len(loaded.held_out) == count
    held_out, trained = ({question_key(p) for p in part.problems} for part in (loaded.held_out, loaded.train))
    assert not held_out & trained and len(held_out) == count and len(held_out | trained) == different
    assert len(loaded.train) + len(loaded.held_out) + loaded.removed == len(questions)


class FromTexts(ChainSum):
    """Problems with given texts."""

    texts: tuple[str, ...]

    def problems(self) -> Any:
        return (Problem(str(index), text, "1") for index, text in enumerate(self.texts))


def test_the_split_depends_on_its_own_seed_only() -> None:
    def held_out(source_limit: int | None, seed: int) -> set[str]:
        data = load_data(
            DataSettings(source=ChainSum(count=50), limit=source_limit, held_out=HeldOutSettings(count=9, seed=seed)),
            TOKENIZER,
        )
        assert data.held_out is not None
        return {problem.question for problem in data.held_out.problems}

    assert held_out(None, 0) == held_out(50, 0) != held_out(None, 1)


def test_too_much_held_out() -> None:
    settings = DataSettings(source=ChainSum(count=5), held_out=HeldOutSettings(count=5))
    with pytest.raises(InputError, match="data.held_out.count=5"):
        load_data(settings, TOKENIZER)
    same = DataSettings(source=ChainSum(count=5), held_out=HeldOutSettings(source=ChainSum(count=5)))
    with pytest.raises(InputError):
        load_data(same, TOKENIZER)


def test_assert_disjoint() -> None:
    twin = replace(PROBLEM, id="b", prompt=" 1+1= ")
    assert_disjoint([PROBLEM], [replace(PROBLEM, prompt="1+2=")], [])
    with pytest.raises(InputError, match="'a'.*'b'"):
        assert_disjoint([PROBLEM], [], [twin])


def test_fingerprint_tells_data_apart(tmp_path: Path) -> None:
    def fingerprint(*rows: dict[str, str]) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return load_data(DataSettings(source=JsonLines(path=str(path))), TOKENIZER).train.fingerprint

    one, two, other = ({"prompt": p, "answer": a} for p, a in (("1+1=", "2"), ("2+2=", "4"), ("1+1=", "3")))
    prints = [fingerprint(one, two), fingerprint(two, one), fingerprint(one), fingerprint(other, two)]
    assert len(set(prints)) == 4 and fingerprint(one, two) == prints[0]
