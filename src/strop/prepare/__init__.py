"""Preparing problems: from raw sets to a Parquet file to train on, and a report that accounts for every row."""

from strop.prepare.config import PrepareConfig, load_config, parse_config
from strop.prepare.deduplicate import Decontaminate, Deduplicate, DeduplicateByEmbedding, Split
from strop.prepare.filters import (
    AnswersAgree,
    EnglishOnly,
    IllustrativeTests,
    LinksAndFigures,
    NoTrivialPrompts,
    ReferenceSolutions,
    StandardTests,
    TraceLength,
    Verifiable,
)
from strop.prepare.pipeline import prepare
from strop.prepare.rating import Difficulty, Judges
from strop.prepare.sources import Source
from strop.prepare.stage import Dropped, FilterStep, Stage, Step

__all__ = [
    "AnswersAgree", "Decontaminate", "Deduplicate", "DeduplicateByEmbedding", "Difficulty", "Dropped", "EnglishOnly",
    "FilterStep", "IllustrativeTests", "Judges", "LinksAndFigures", "NoTrivialPrompts", "PrepareConfig",
    "ReferenceSolutions", "Source", "Split", "Stage", "StandardTests", "Step", "TraceLength", "Verifiable",
    "load_config", "parse_config", "prepare",
]  # fmt: skip
