"""Models and tokenizers in and out of Hugging Face folders, and fresh small ones; safetensors only, never pickles."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging

from strop.base.files import writing
from strop.base.progress import doing
from strop.base.types import InputError, StropError, first_line
from strop.model.attention import NAME
from strop.model.endings import end_ids
from strop.model.location import dtype_name, locate, refuse_kind
from strop.model.settings import AUTO, DTypeName, FreshModel, ModelSettings

CHECKPOINTED_FROM = 1_000_000_000  # parameters, where model.gradient_checkpointing is left to strop
# Model types whose text model transformers would load with the one for pictures around it, and its names in the files.
_HOLDS_TEXT_MODEL = frozenset({"gemma3"})
_WITHIN = r"^(model\.)?language_model\.(model\.)?"
DTYPES: dict[DTypeName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Types of an export; no model is trained in float16.
EXPORTED = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}


def load_pretrained(settings: ModelSettings) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer at `settings.path`, with strop's attention.

    Raises:
        InputError: there is no such folder or hub name, or it holds no causal LM in safetensors.
    """
    path, (source, cached_only) = settings.path, locate(settings)
    try:
        tokenizer = load_tokenizer(source, settings.revision, settings.trust_remote_code, cached_only)
        with without_progress_bars():
            config = AutoConfig.from_pretrained(
                source, revision=settings.revision, trust_remote_code=settings.trust_remote_code,
                local_files_only=cached_only,
            )  # fmt: skip
            refuse_kind(f"model.path {path}", config.to_dict())
            text = text_config(config)
            within: dict[str, Any] = {} if text is config else {"config": text, "key_mapping": {_WITHIN: "model."}}
            model, report = AutoModelForCausalLM.from_pretrained(
                source,
                **within,
                revision=settings.revision,
                trust_remote_code=settings.trust_remote_code,
                dtype=DTYPES[dtype_name(settings)],
                attn_implementation=NAME,
                use_safetensors=True,
                output_loading_info=True,
                local_files_only=cached_only,
            )
    except (OSError, ValueError, AssertionError, SafetensorError) as error:
        what = "cannot" if Path(source).is_dir() else "there is no folder of this name, and as a hub model it cannot"
        raise InputError(f"model.path {path}: {what} be loaded: {first_line(error)}") from error
    refuse_incomplete(f"model.path {path}", report)
    if text is not config:
        vars(model).pop("_weight_conversions", None)  # by which an export would get the names of the whole back
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        raise InputError(
            f"model.path {path}: the tokenizer has {len(tokenizer)} tokens, the model embeddings for "
            f"{model.get_input_embeddings().weight.shape[0]}; they do not belong together"
        )
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model.path {path}: {type(model).__name__} is not a transformers model")
    return model, tokenizer


def empty_model(config: PreTrainedConfig, settings: ModelSettings) -> PreTrainedModel:
    """The model of a configuration on the meta device, without any memory, with strop's attention."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[dtype_name(settings)], attn_implementation=NAME,
            trust_remote_code=settings.trust_remote_code,
        )  # fmt: skip
    assert isinstance(model, PreTrainedModel)
    return model


def stored_model(settings: ModelSettings) -> PreTrainedModel:
    """The model at `settings.path` on the meta device; only its configuration file is read.

    Raises:
        InputError: there is no such folder or hub name, or no causal LM that transformers knows.
    """
    source, cached_only = locate(settings)
    try:
        config = AutoConfig.from_pretrained(
            source, revision=settings.revision, trust_remote_code=settings.trust_remote_code,
            local_files_only=cached_only,
        )  # fmt: skip
        refuse_kind(f"model.path {settings.path}", config.to_dict())
        return empty_model(text_config(config), settings)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"model.path {settings.path}: cannot be loaded: {first_line(error)}") from error


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the causal language model that is loaded: the text model of Gemma 3 with pictures."""
    return config.get_text_config() if config.model_type in _HOLDS_TEXT_MODEL else config


def refuse_incomplete(what: str, report: Mapping[str, Any]) -> None:
    """transformers fills what the files lack with random numbers; a policy made of those would train in silence.

    Raises:
        InputError: naming `what` was loaded and a weight that it lacks.
    """
    for kind in ("missing_keys", "mismatched_keys"):
        names = sorted(str(name) for name in report.get(kind) or ())
        if names:
            state = f"{len(names)} weights are {kind.removesuffix('_keys')}"
            raise InputError(f"{what}: {state}, such as {names[0]}; get a whole model")


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers draws a bar for every load, which would tear our own view."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@doing("reading the tokenizer")
def load_tokenizer(
    path: str, revision: str | None = None, trust_remote_code: bool = False, cached_only: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer at a hub name or folder. Raises `OSError` or `ValueError` where there is none."""
    tokenizer = AutoTokenizer.from_pretrained(
        path, revision=revision, trust_remote_code=trust_remote_code, local_files_only=cached_only
    )
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def fresh_model(
    fresh: FreshModel, tokenizer: PreTrainedTokenizerBase, seed: int, dtype: DTypeName = "float32"
) -> PreTrainedModel:
    """A new Qwen3, or Qwen3-MoE, whose parameters depend only on `seed`; the global random state does not change."""
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": fresh.hidden_size,
        "intermediate_size": fresh.intermediate_size,
        "num_hidden_layers": fresh.layers,
        "num_attention_heads": fresh.heads,
        "num_key_value_heads": fresh.kv_heads,
        "head_dim": fresh.head_dim,
        "max_position_embeddings": fresh.max_positions,
        "tie_word_embeddings": fresh.tie_embeddings,
        "initializer_range": fresh.initializer_range,
        "rope_parameters": {"rope_type": "default", "rope_theta": fresh.rope_theta},
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "attn_implementation": NAME,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel
        if fresh.experts is None:
            model = Qwen3ForCausalLM(Qwen3Config(**shape))
        else:
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **_expert_shape(fresh)))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    cast_parameters(model, DTYPES[dtype])
    return model


def _expert_shape(fresh: FreshModel) -> dict[str, Any]:
    return {
        "num_experts": fresh.experts,
        "num_experts_per_tok": fresh.experts_per_token,
        "moe_intermediate_size": fresh.intermediate_size // fresh.experts_per_token,
        # As the released models have it; but the share of a single expert would be 1 whatever the router says, and the
        # router would have no gradient.
        "norm_topk_prob": fresh.experts_per_token > 1,
    }


def checkpoint_layers(model: PreTrainedModel, settings: ModelSettings) -> bool:
    """Have layers compute again in backward where `model.gradient_checkpointing` wants it; whether they now do."""
    wanted = settings.gradient_checkpointing
    if wanted == AUTO:
        wanted = sum(parameter.numel() for parameter in model.parameters()) >= CHECKPOINTED_FROM
    if wanted:
        with warnings.catch_warnings():  # the name that every transformers 5 knows; newer ones have another besides
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return wanted


def cast_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters in place and leave buffers: rotary frequencies stay float32, as a loaded model has them."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


@doing("writing the model")
def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load.

    Its generation configuration names every id that ends a completion here, so that it ends everywhere else.

    Raises:
        StropError: it cannot be written.
    """
    generation = model.generation_config
    if generation is not None and len(ends := end_ids(generation.eos_token_id, tokenizer)) > 1:
        generation.eos_token_id = list(ends)
    with replacing_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A new folder next to `folder`; replaces it at the end, so that a kill leaves either the old or the new one.

    Raises:
        StropError: it cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with writing(folder), without_progress_bars():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
        except SafetensorError as error:
            raise StropError(f"cannot write {folder}: {error}; is the disk full?") from error
        if folder.is_dir():
            shutil.rmtree(folder)
        partial.rename(folder)


EOS, PAD = "<eos>", "<pad>"


def byte_tokenizer(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """One token a byte, then one for each of `words` (frequent strings such as `\\boxed{`), then EOS and PAD.

    Ids follow the byte-level alphabet's order; the id of an ASCII letter is not its code point.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(word, normalized=False) for word in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )
