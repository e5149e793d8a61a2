"""The critic: a separate network that predicts the return of each state.

    critic = Critic.from_policy(policy, seed=7)                   # before the policy is trained
    trainer = Trainer(critic, ValueLoss(), AdamW(lr=5e-6), total_updates=12_000)
    values = trainer.score(update)                                # [(V [M], zeros [M])] of each micro-batch
    trainer.update(update)                                        # tokens.value and tokens.value_target are filled

An exported critic is a Hugging Face folder of the base model (`AutoModel.from_pretrained` loads it) with the tokenizer
and `value_head.safetensors`, which holds `weight` float32 [1, E]: V = hidden · weightᵀ.

Shapes: N packed tokens, M trained tokens of a micro-batch, E hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from strop.base.types import InputError, first_line
from strop.model.attention import NAME, PackedContext, leave_rows_to_strop
from strop.model.attention_kinds import layer_reaches
from strop.model.files import (
    DTYPES,
    checkpoint_layers,
    refuse_incomplete,
    replacing_folder,
    without_progress_bars,
)
from strop.model.location import dtype_name
from strop.model.lora import without_adapters
from strop.model.policy import PackedInputs, Policy, base_of, copy_parameters, last_hidden, switch_off_dropout
from strop.model.sequence_parallel import SequenceParallel
from strop.model.settings import ModelSettings

HEAD_FILE = "value_head.safetensors"


class Critic(nn.Module):
    """A transformers base model with strop's attention and a value head: linear, no bias, always float32.

    Raises:
        InputError: the model has layers that strop does not compute; see `attention_kinds.layer_reaches`.
    """

    def __init__(self, model: PreTrainedModel, settings: ModelSettings, seed: int) -> None:
        """`model` is a base model (no language-model head), from now on the critic's own.

        The head starts normal with mean 0 and standard deviation 1 / (E + 1), drawn from `seed`.
        """
        super().__init__()
        layer_reaches(model.config)
        switch_off_dropout(model)
        leave_rows_to_strop(model)
        if model.config._attn_implementation != NAME:
            model.set_attn_implementation(NAME)
        self.settings = settings
        self.sequence: SequenceParallel | None = None
        self.checkpoints_layers = checkpoint_layers(model, settings)
        self.model = model.requires_grad_(True)
        hidden = int(model.config.hidden_size)
        self.value_head = nn.Linear(hidden, 1, bias=False, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            self.value_head.weight.copy_(initial_head(hidden, seed))
        self.value_head.to(next(model.parameters()).device)
        self.eval()

    @classmethod
    def from_policy(cls, policy: Policy, seed: int) -> Critic:
        """A critic that starts from the policy's parameters as they are now; it shares none of them, nor adapters."""
        return cls(without_adapters(copy.deepcopy(base_of(policy.model))), policy.settings, seed)

    @classmethod
    def load(cls, folder: Path, settings: ModelSettings) -> Critic:
        """An exported critic; `settings` say its dtype and whether gradients are checkpointed, `path` is not read.

        Raises:
            InputError: the folder holds no critic, or not a whole one.
        """
        if not (folder / HEAD_FILE).is_file():
            raise InputError(f"critic {folder}: no {HEAD_FILE} in it; name a folder that a critic was exported to")
        try:
            head = load_file(folder / HEAD_FILE)["weight"]
            with without_progress_bars():
                model, report = AutoModel.from_pretrained(
                    folder, dtype=DTYPES[dtype_name(settings)], attn_implementation=NAME, use_safetensors=True,
                    output_loading_info=True,
                )  # fmt: skip
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise InputError(f"critic {folder}: cannot be loaded: {first_line(error)}") from error
        refuse_incomplete(f"critic {folder}", report)
        critic = cls(model, settings, seed=0)
        if head.shape != critic.value_head.weight.shape:
            raise InputError(
                f"critic {folder}: the value head is {tuple(head.shape)}, the model's hidden size "
                f"{critic.value_head.in_features}; they do not belong together"
            )
        with torch.no_grad():
            critic.value_head.weight.copy_(head)
        return critic

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a folder that `load` reads; it is filled under a temporary name and then renamed.

        Raises:
            StropError: it cannot be written.
        """
        with replacing_folder(folder) as partial:
            self.model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            save_file({"weight": self.value_head.weight.detach().cpu().contiguous()}, partial / HEAD_FILE)

    def weights(self) -> dict[str, Tensor]:
        """Every parameter by name (`model.…` and `value_head.weight`), detached."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take back what `weights` gave.

        Raises:
            InputError: names or shapes are those of another model.
        """
        copy_parameters(self, weights)

    def forward(self, packed: PackedInputs, temperature: float) -> tuple[Tensor, Tensor]:
        """V(s_t) [M] of the state in which each target was chosen, float32 with gradient, and zeros [M].

        The state of target t is the sequence before it: the hidden state of `packed.rows`. The zeros stand where a
        policy gives entropies; the temperature has no part in it.
        """
        if self.checkpoints_layers and self.model.training != torch.is_grad_enabled():
            self.model.train(torch.is_grad_enabled())  # transformers checkpoints in training mode only
        part = None if self.sequence is None else self.sequence.part(*packed.sequences)
        if part is None:
            context = PackedContext(packed.lengths, packed.token_ids.device)
            hidden = last_hidden(self.model, packed.token_ids, packed.positions, context)[packed.rows]
        else:
            hidden = last_hidden(self.model, part.token_ids, part.positions, part.context)[part.rows]
        # A copy: a sharded module hangs its backward on what it returns, which must not be a view.
        value = self.value_head(hidden.to(self.value_head.weight.dtype))[:, 0].clone()
        value = value if part is None else part.whole(value)
        return value, torch.zeros_like(value)


def initial_head(hidden: int, seed: int) -> Tensor:
    """The weight [1, E] that a value head starts with, float32 on the CPU."""
    return torch.empty(1, hidden).normal_(0.0, 1 / (hidden + 1), generator=torch.Generator().manual_seed(seed))
