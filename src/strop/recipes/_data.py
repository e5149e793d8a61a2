"""The public data sets that the papers name, and how their problems are asked."""

from __future__ import annotations

from strop.data.mixture import Mixture
from strop.data.rows import Columns, HubDataset
from strop.data.templates import ChatTemplate

# The instruction that the sets of the DeepSeek-R1 family end a question with.
BOXED = ChatTemplate(instruction="Please reason step by step, and put your final answer within \\boxed{}.")
AS_WRITTEN = ChatTemplate()  # sets whose prompts are chats and bring their instruction


def polaris_53k() -> HubDataset:
    """Polaris-53K (ScaleRL)."""
    return HubDataset(
        dataset="POLARIS-Project/Polaris-Dataset-53K", columns=Columns(prompt="problem", answer="answer")
    )


def deepcoder() -> HubDataset:
    """DeepCoder (ScaleRL's runs with code, Archer)."""
    return HubDataset(
        dataset="agentica-org/DeepCoder-Preview-Dataset",
        subset="primeintellect",
        columns=Columns(prompt="problem", answer="tests"),
        domain="code",
    )


def dapo_17k() -> HubDataset:
    """DAPO-17K with bare questions (DAPO, OPEFO)."""
    return HubDataset(
        dataset="open-r1/DAPO-Math-17k-Processed", subset="all", columns=Columns(prompt="prompt", answer="solution")
    )


def skywork_math() -> HubDataset:
    """The mathematics of Skywork-OR1's data."""
    return _skywork("math")


def skywork_code() -> HubDataset:
    """The programming problems of Skywork-OR1's data."""
    return _skywork("code")


def _skywork(split: str) -> HubDataset:
    columns = Columns(prompt="prompt", answer="reward_model.ground_truth", answer_json=split == "math")
    return HubDataset(dataset="Skywork/Skywork-OR1-RL-Data", split=split, columns=columns, domain=split)


def skywork_math_and_code() -> Mixture:
    """Both, in their own proportion."""
    return Mixture(sources=(skywork_math(), skywork_code()), domains=("math", "code"))


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
    """The three sets that Archer's mathematics is drawn from, before its cleaning."""
    deepscaler = HubDataset(
        dataset="agentica-org/DeepScaleR-Preview-Dataset", columns=Columns(prompt="problem", answer="answer")
    )
    return Mixture(sources=(deepscaler, skywork_math(), dapo_17k()))


def archer_code() -> HubDataset:
    """The programming problems that Archer published."""
    columns = Columns(prompt="prompt", answer="reward_model.ground_truth")
    return HubDataset(dataset="Fate-Zero/Archer-Code-1.5B", columns=columns, domain="code")
