"""Problems: where they come from, how they become prompts, in which order they are trained on."""

from strop.data.chain_sum import ChainSum
from strop.data.dataset import Data, Dataset, Example, assert_disjoint, build_dataset, load_data
from strop.data.flat_files import CsvFile, JsonFile
from strop.data.gsm8k import Gsm8k
from strop.data.history import (
    DropSolved,
    HardOnly,
    History,
    PassRateBetween,
    ProblemFilter,
    Visit,
    read_pass_rates,
)
from strop.data.mixture import Mixture
from strop.data.names import parse_source
from strop.data.reasoning_gym import ReasoningGym
from strop.data.rows import Columns, HubDataset, JsonLines, ParquetFile
from strop.data.sampler import NoProblemsLeft, Sampler, SamplerState
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.source import ProblemSource, question_key
from strop.data.templates import ChatTemplate, OpenReasonerZero, Plain, PromptTemplate, Tokenizer

__all__ = [
    "ChainSum",
    "ChatTemplate",
    "Columns",
    "CsvFile",
    "Data",
    "DataSettings",
    "Dataset",
    "DropSolved",
    "Example",
    "Gsm8k",
    "HardOnly",
    "HeldOutSettings",
    "History",
    "HubDataset",
    "JsonFile",
    "JsonLines",
    "Mixture",
    "NoProblemsLeft",
    "OpenReasonerZero",
    "ParquetFile",
    "PassRateBetween",
    "Plain",
    "ProblemFilter",
    "ProblemSource",
    "PromptTemplate",
    "ReasoningGym",
    "Sampler",
    "SamplerState",
    "Tokenizer",
    "Visit",
    "assert_disjoint",
    "build_dataset",
    "load_data",
    "parse_source",
    "question_key",
    "read_pass_rates",
]
