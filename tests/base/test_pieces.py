"""Pieces: found by name, round trip through JSON, refused in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, SerializeAsAny, ValidationError

import strop.config.schema  # noqa: F401  (defines the families)
import strop.prepare  # noqa: F401
from strop.algorithms.aggregation import Aggregation, ConstantDenominator, PromptMean
from strop.algorithms.losses import Cispo, PolicyLoss, PpoClip
from strop.algorithms.proximal_losses import OffPolicySequenceMask
from strop.base.endpoint import ChatEndpoint
from strop.base.imports import allow_module
from strop.base.pieces import Piece, Settings, StatefulPiece, choices, refused_flag
from strop.data.generators import ChainSum, Mixture, ReasoningGym
from strop.data.rows import CsvFile, HubDataset, JsonFile, JsonLines, ParquetFile
from strop.environments.agent import Agent
from strop.environments.base import FromEnvironment
from strop.environments.tools import Calculator, OpenEnv, OutsideClass
from strop.model.settings import ModelSettings
from strop.prepare.deduplicate import Decontaminate, DeduplicateByEmbedding
from strop.prepare.filters import ReferenceSolutions
from strop.prepare.rating import Difficulty, Judges
from strop.prepare.sources import Source
from strop.verifiers.answer import Answer
from strop.verifiers.combined import ByDomain, WeightedSum
from strop.verifiers.judge_model import JudgeModel
from strop.verifiers.reward_function import PythonFunction, RewardFunction

allow_module("operator")
allow_module("codecs")

EXAMPLES: dict[str, Piece] = {
    "Mixture": Mixture(sources=(ChainSum(), ChainSum(terms=2)), domains=("long", "short")),
    "ConstantDenominator": ConstantDenominator(tokens=100),
    "WeightedSum": WeightedSum(members=(Answer(),)),
    "JudgeModel": JudgeModel(url="http://localhost:8000/v1", model="a"),
    "ByDomain": ByDomain(members={"math": Answer()}),
    "Decontaminate": Decontaminate(against=(Source(path="a.jsonl"),)),
    "DeduplicateByEmbedding": DeduplicateByEmbedding(model="a-folder"),
    "Difficulty": Difficulty(model=ModelSettings(path="embedded")),
    "Judges": Judges(judges=(ChatEndpoint(url="http://localhost:8000/v1", model="a"),)),
    "ReferenceSolutions": ReferenceSolutions(verifier=Answer()),
    "CsvFile": CsvFile(path="a.csv"),
    "JsonFile": JsonFile(path="a.json"),
    "JsonLines": JsonLines(path="a.jsonl"),
    "ParquetFile": ParquetFile(path="a.parquet"),
    "HubDataset": HubDataset(dataset="a/b"),
    "OffPolicySequenceMask": OffPolicySequenceMask(threshold=0.5),
    "ReasoningGym": ReasoningGym(task="chain_sum"),
    "PythonFunction": PythonFunction(function="operator:eq"),
    "FromEnvironment": FromEnvironment(environment=Calculator()),
    "OutsideClass": OutsideClass(cls="codecs:IncrementalEncoder"),
    "Agent": Agent(function="operator:setitem"),
    "OpenEnv": OpenEnv(url="http://localhost:8000"),
    "RewardFunction": RewardFunction(functions=("__main__:brief", "operator:eq"), weights=(0.5, 1.0)),
}


def families() -> list[type[Piece]]:
    return [family for family in Piece.__subclasses__() if family is not StatefulPiece]


def every_piece() -> list[tuple[type[Piece], type[Piece]]]:
    return [
        (family, piece)
        for family in families()
        for name, piece in choices(family).items()
        if piece.__module__.startswith("strop.")
    ]


@pytest.mark.parametrize(("family", "piece"), every_piece(), ids=lambda kind: kind.__name__)
def test_every_piece_survives_json(family: type[Piece], piece: type[Piece]) -> None:
    original = EXAMPLES.get(piece.__name__) or piece()
    written = json.loads(original.model_dump_json())
    assert written["piece"] == piece.piece_name()
    assert family.model_validate(written) == original


class Holder(Settings):
    loss: SerializeAsAny[PolicyLoss]


def test_a_field_of_a_family_keeps_the_whole_piece() -> None:
    holder = Holder(loss=Cispo(max_ratio=3.0))
    assert json.loads(holder.model_dump_json()) == {"loss": {"piece": "Cispo", "max_ratio": 3.0}}
    assert Holder.model_validate_json(holder.model_dump_json()) == holder


def test_a_bare_name_is_the_piece_with_its_defaults() -> None:
    assert Holder.model_validate({"loss": "PpoClip"}).loss == PpoClip()


def test_families_refuse_to_be_made() -> None:
    with pytest.raises(TypeError):
        Aggregation()  # type: ignore[abstract]


def test_pieces_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Cispo().max_ratio = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"piece": "Cipso"}, "did you mean 'Cispo'"),
        ({"piece": "PromptMean"}, "no PolicyLoss is called 'PromptMean'"),
        ({"max_ratio": 5.0}, "say which piece: one of ArcherClip, Cispo"),
        ({"piece": "Cispo", "ratio": 1}, "ratio"),
        ({"piece": "Cispo", "max_ratio": float("inf")}, "finite"),
        ({"piece": 7}, "must be a name"),
        ({"piece": "os:system"}, "allow it with --import os"),
        ({"piece": "games/mine.py:A"}, "names a file; say mine:A, and allow it with --import games/mine.py"),
    ],
)
def test_what_is_not_a_piece_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PolicyLoss.model_validate(value)


def test_a_piece_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_pieces.py").write_text(
        "from strop.algorithms.aggregation import Aggregation\n"
        "class Halved(Aggregation):\n"
        "    share: float = 0.5\n"
        "    def __call__(self, trained, group):\n"
        "        return self.share / trained\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValidationError, match="--import my_pieces"):
        Aggregation.model_validate({"piece": "my_pieces:Halved"})
    assert "my_pieces" not in sys.modules
    allow_module("my_pieces")
    piece = Aggregation.model_validate({"piece": "my_pieces:Halved", "share": 0.25})
    assert json.loads(piece.model_dump_json()) == {"piece": "my_pieces:Halved", "share": 0.25}


class _Flags(Settings):
    level: float = Field(0.9, gt=0, lt=1)
    at_most: Annotated[int, Field(ge=1, le=2000000)] | None = None
    method: Literal["one", "other"] = "one"


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"level": 90}, "--level 90: "),
        ({"at_most": 0}, "--at-most 0: "),
        ({"method": "foo"}, "--method foo: "),
        ({"at_most": "x"}, "--at-most x: "),
    ],
)
def test_a_refused_flag_is_named_with_its_value(given: dict[str, object], flag: str) -> None:
    with pytest.raises(ValidationError) as refused:
        _Flags.model_validate(given)
    assert str(refused_flag(refused.value)).startswith(flag)


def test_equal_pieces_are_equal() -> None:
    assert PromptMean() == PromptMean()
    assert Cispo(max_ratio=4.0) != Cispo()
