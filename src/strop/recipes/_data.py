"""The public data sets that the papers name, and how their problems are asked."""

from __future__ import annotations

from strop.data.columns import Columns
from strop.data.generators import Mixture
from strop.data.rows import HubDataset
from strop.data.templates import ChatTemplate
from strop.evaluation import BenchmarkSettings
from strop.verifiers.base import Verifier
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import ByDomain
from strop.verifiers.math_verifier import MathVerifier

# The instruction that the sets of the DeepSeek-R1 family end a question with.
BOXED = ChatTemplate(instruction="Please reason step by step, and put your final answer within \\boxed{}.")
AS_WRITTEN = ChatTemplate()  # without an instruction: for sets whose prompts bring theirs
PROGRAM = "Think step by step, then write the whole program in one ```python block."
LIVECODEBENCH = {"lcb_v5": "livecodebench:v5", "lcb_2025": "livecodebench:2025-01-01..2025-06-30"}
SKYWORK_INSTRUCTION = " Let's think step by step and output the final answer within \\boxed{}."


def polaris_53k() -> HubDataset:
    """Polaris-53K (ScaleRL)."""
    return HubDataset(
        dataset="POLARIS-Project/Polaris-Dataset-53K", columns=Columns(prompt="problem", answer="answer")
    )


def polaris_and_deepcoder() -> Mixture:
    """Polaris-53K and DeepCoder (ScaleRL's run with code), each asked in its own way."""
    polaris = polaris_53k()
    columns = polaris.columns.model_copy(update={"instruction": BOXED.instruction})
    return Mixture(sources=(polaris.model_copy(update={"columns": columns}), deepcoder()), domains=("math", "code"))


def deepcoder() -> Mixture:
    """The training problems of DeepCoder: three of its four subsets; the fourth, codeforces, is a test set."""
    return Mixture(sources=(_deepcoder("primeintellect"), _deepcoder("taco"), _deepcoder("lcbv5")))


def _deepcoder(subset: str) -> HubDataset:
    columns = Columns(prompt="problem", answer="tests", instruction=PROGRAM)
    if subset == "lcbv5":
        columns = columns.model_copy(update={"starter": "starter_code", "function": "metadata.func_name"})
    return HubDataset(
        dataset="agentica-org/DeepCoder-Preview-Dataset", subset=subset, columns=columns, domain="code"
    )


def dapo_17k() -> HubDataset:
    """DAPO-17K with bare questions (DAPO, OPEFO)."""
    return HubDataset(
        dataset="open-r1/DAPO-Math-17k-Processed", subset="all", columns=Columns(prompt="prompt", answer="solution")
    )


def skywork_math(size: str) -> HubDataset:
    """The mathematics of Skywork-OR1's data that DeepSeek-R1-Distill-Qwen of `size` solves 1 to 15 times in 16."""
    return _skywork("math", size)


def skywork_math_and_code(size: str) -> Mixture:
    """Mathematics and programming problems of Skywork-OR1's data for a model of `size`, the programs listed twice."""
    sources = (_skywork("math", size), _skywork("code", size))
    return Mixture(sources=sources, domains=("math", "code"), repeats=(1, 2))


def _skywork(split: str, size: str) -> HubDataset:
    columns = Columns(prompt="prompt", answer="reward_model.ground_truth", answer_json=split == "math")
    where = f'extra_info.model_difficulty."DeepSeek-R1-Distill-Qwen-{size}" BETWEEN 1 AND 15'
    return HubDataset(dataset="Skywork/Skywork-OR1-RL-Data", split=split, columns=columns, domain=split, where=where)


def orz_57k() -> HubDataset:
    """The 57k problems of Open-Reasoner-Zero."""
    return _orz("orz_math_57k_collection")


def orz_13k_hard() -> HubDataset:
    """The 13k hard problems that Open-Reasoner-Zero mined from its 32B run."""
    return _orz("orz_math_13k_collection_hard")


def _orz(name: str) -> HubDataset:
    columns = Columns(prompt="0.value", answer="1.ground_truth.value")
    return HubDataset(dataset=f"Open-Reasoner-Zero/{name}", columns=columns)


def archer_math() -> Mixture:
    """The three sets that Archer's mathematics is drawn from; of Skywork-OR1's what the trained model solves sometimes.

    Skywork-OR1's questions end with an instruction; it is removed, so that all prompts are alike.
    """
    deepscaler = HubDataset(
        dataset="agentica-org/DeepScaleR-Preview-Dataset", columns=Columns(prompt="problem", answer="answer")
    )
    skywork = skywork_math("1.5B")
    bare = skywork.columns.model_copy(update={"without": SKYWORK_INSTRUCTION})
    return Mixture(sources=(deepscaler, skywork.model_copy(update={"columns": bare}), dapo_17k()))


def archer_code() -> HubDataset:
    """The programming problems that Archer published."""
    columns = Columns(prompt="prompt", answer="reward_model.ground_truth")
    return HubDataset(dataset="Fate-Zero/ArcherCodeR-Dataset", columns=columns, domain="code")


def benchmarks(**samples: int) -> tuple[BenchmarkSettings, ...]:
    """Benchmarks that a recipe is measured on where they can be had, each with its samples a problem."""
    return tuple(
        BenchmarkSettings(name=LIVECODEBENCH.get(name, name), samples_per_problem=count, optional=True)
        for name, count in samples.items()
    )


def math_verifier() -> Verifier:
    """Mathematics, the answer in the last box after the thinking."""
    return MathVerifier(extract="boxed")


def math_and_code_verifier(code: Verifier | None = None) -> Verifier:
    """Whichever of the two the problem is of."""
    return ByDomain(members={"math": math_verifier(), "code": code or CodeVerifier()})
