"""Deduplication by the similarity of embeddings (Skywork-OR1, code problems), where an embedding model is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strop.base.types import FloatArray, InputError, first_line
from strop.model.location import locate
from strop.model.settings import ModelSettings
from strop.prepare.deduplicate import Duplicate, Share, write
from strop.prepare.stage import Stage, Step
from strop.prepare.text import normalize

BLOCK = 2048  # rows of the similarity matrix that exist at once
LACKS = ("missing_keys", "mismatched_keys")


class DeduplicateByEmbedding(Step):
    """Keeps the first of problems whose questions have a cosine similarity of at least `similarity`.

    Every question is compared with every kept one, by blocks: right for tens of thousands of problems.

    Fields:
        model: the folder (or hub name) of an encoder; the mean of its last hidden states is the embedding.
        same_numbers: questions whose numbers differ are different, however similar.
        max_tokens: of a question that are read.
        batch: questions encoded at once.
    """

    model: str
    similarity: Share = 0.95
    same_numbers: bool = True
    max_tokens: Annotated[int, Field(ge=8)] = 512
    batch: Annotated[int, Field(ge=1)] = 32

    def run(self, stage: Stage) -> None:
        """Encode, compare, write.

        Raises:
            InputError: the model cannot be loaded.
        """
        encoder = TextEncoder(self.model, self.max_tokens)
        vectors: list[FloatArray] = []
        numbers: list[tuple[str, ...]] = []
        texts: list[str] = []
        for problem in stage.problems(f"{stage.name}: encoding"):
            numbers.append(normalize(problem.question).numbers)
            texts.append(problem.question)
            if len(texts) == self.batch:
                vectors.append(encoder(texts))
                texts = []
        if texts:
            vectors.append(encoder(texts))
        matrix = np.concatenate(vectors) if vectors else np.zeros((0, 1), dtype=np.float32)
        duplicates: dict[int, Duplicate] = {}
        for earlier, later, similarity in self._pairs(matrix):
            if earlier in duplicates or later in duplicates:
                continue  # pairs come by their later row, so that it is known of the earlier one whether it is kept
            if not self.same_numbers or numbers[earlier] == numbers[later]:
                duplicates[later] = Duplicate(earlier, similarity, "embedding")
        write(stage, duplicates)

    def _pairs(self, matrix: FloatArray) -> Iterator[tuple[int, int, float]]:
        """Pairs that are similar enough, sorted by the later row."""
        for start in range(0, len(matrix), BLOCK):
            block = matrix[start : start + BLOCK]
            similar: NDArray[np.float32] = block @ matrix[: start + len(block)].T
            later, earlier = np.nonzero(similar >= self.similarity)
            for place, row in zip(later.tolist(), earlier.tolist(), strict=True):
                if row < start + place:
                    yield row, start + place, float(similar[place, row])


@contextmanager
def _quietly() -> Iterator[None]:
    """Without bars and the table of weights that the files have and an encoder has no use for (a head, as a rule)."""
    from transformers.utils import logging

    from strop.model.files import without_progress_bars

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_progress_bars():
            yield
    finally:
        logging.set_verbosity(level)


class TextEncoder:
    """An encoder of transformers; embeddings are of unit length."""

    def __init__(self, path: str, max_tokens: int) -> None:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModel

        from strop.model.files import load_tokenizer, refuse_incomplete

        source, cached_only = locate(ModelSettings(path=path), "embedding model", made=None)
        try:
            self._tokenizer: Any = load_tokenizer(source, cached_only=cached_only)
            with _quietly():
                self._model, report = AutoModel.from_pretrained(
                    source, local_files_only=cached_only, trust_remote_code=False, use_safetensors=True,
                    output_loading_info=True,
                )  # fmt: skip
        except (OSError, ValueError, AssertionError, SafetensorError) as error:
            raise InputError(f"embedding model {path}: cannot be loaded ({first_line(error)})") from error
        # The pooler of an encoder comes after the hidden states, and is often not stored.
        lacks = {kind: [name for name in report[kind] if "pooler" not in str(name)] for kind in LACKS}
        refuse_incomplete(f"embedding model {path}", lacks)
        self._model.eval()
        self._torch, self._max_tokens = torch, max_tokens
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    def __call__(self, texts: list[str]) -> FloatArray:
        """float32 [texts, hidden]."""
        batch = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt", padding_side="right"
        )
        mask = batch["attention_mask"]
        with self._torch.no_grad():
            hidden = self._model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state.float()
        weight = mask[..., None].float()
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        unit = mean / mean.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return np.asarray(unit.numpy(), dtype=np.float32)
