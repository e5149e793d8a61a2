"""A tokenizer made on the spot: one token a byte, so that a fresh model needs no download and can write any text."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

EOS, PAD = "<eos>", "<pad>"

# Roles as plain text; `strop` asks for the generation prompt, which ends where the assistant begins to write.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(
    words: Sequence[str] = (), pad_is_eos: bool = False, chat: bool = False
) -> PreTrainedTokenizerFast:
    """One token a byte, then one for each of `words` (frequent strings such as `\\boxed{`), then EOS and PAD.

    Ids follow the byte-level alphabet's order; the id of an ASCII letter is not its code point. With `chat` it has a
    chat template, which a model must have been trained on to make sense of it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(word, normalized=False) for word in words])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=EOS if pad_is_eos else PAD,
        clean_up_tokenization_spaces=False,
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
