"""Which form of the embedded engine serves a policy: slots or pages."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from strop.engines.settings import EngineSettings
from strop.engines.torch.decoder import heads_of, unsupported
from strop.engines.torch.engine import TorchEngine
from strop.engines.torch.kernels import triton_suits
from strop.engines.torch.paged_engine import PagedEngine
from strop.model.policy import Policy


def embedded_engine(
    policy: Policy, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings, version: int = 0
) -> TorchEngine:
    """The embedded engine that `settings.cache` names; `auto`: pages on a GPU where the model allows it.

    Raises:
        InputError: settings that the policy cannot honour.
    """
    paged = settings.cache == "paged" or (
        settings.cache == "auto"
        and policy.device.type == "cuda"
        and unsupported(policy) is None
        and triton_suits(policy.device, heads_of(policy))
    )
    return (PagedEngine if paged else TorchEngine)(policy, tokenizer, settings, version)
