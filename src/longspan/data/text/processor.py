"""Texts as streams of tokens: `TextProcessor`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column, Text
from longspan.data.familiarity import SAMPLE, Familiarity
from longspan.data.fingerprints import fingerprint
from longspan.data.processor import Encoded, Places, Processor, json_object
from longspan.data.text import encoders
from longspan.data.text.offsets import spans
from longspan.data.text.tokenization import TOKENS_VERSION, build_tokenizer, encode_counted, tokenizer_hash
from longspan.data.text.words import letters, word_starts
from longspan.errors import UserError
from longspan.models.model import LongspanPreTrainedModel
from longspan.models.word_vectors import load_word_vectors

_LEARNED, _ROWS, _COUNTED = 100, 1000, 1_000_000
"""Documents learned from and counted at a time, and number of tokens that are enough."""


@dataclass(frozen=True)
class TextProcessor(Processor):
    """Texts as token ids.

    Attributes:
        tokenizer: Tokenizer that makes them.
        familiarity: What is usual in the training data; None where that was not measured.
    """

    files: ClassVar[tuple[str, ...]] = ("tokenizer_config.json",)
    work: ClassVar[str] = "Tokenising"
    reads_all: ClassVar[bool] = True

    tokenizer: PreTrainedTokenizerBase
    familiarity: Familiarity | None = field(default=None, compare=False, kw_only=True)

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {"input_ids": Stream(fill=self.tokenizer.pad_token_id, mask="attention_mask")}

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return [Text("text", "text_column")]

    @classmethod
    def learned(cls, training: Dataset, data: Any) -> "TextProcessor":
        # A column by itself is read row by row, which takes longer than to count its words.
        batches = training.select_columns("text").with_format("arrow").iter(_LEARNED)
        texts = (text for batch in batches for text in batch["text"].to_pylist())
        return cls(build_tokenizer(data, texts, cache_key=fingerprint(training)))

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        texts = [text or "" for text in rows["text"]]
        return [Encoded({"input_ids": ids}, lost) for ids, lost in encode_counted(self.tokenizer, texts, data)]

    def places(self, values: Mapping[str, Any], encoded: Encoded, data: Any) -> Places:
        text = values["text"]
        ids, found, _ = spans(self.tokenizer, text, data.max_length, data.keep)
        assert np.array_equal(ids, np.asarray(encoded.streams["input_ids"])), "offsets are of other tokens"
        return Places("characters", found, text)

    def placed(self, values: Mapping[str, Any], data: Any) -> tuple[Encoded, Places]:
        own = type(self)
        if own.encode is not TextProcessor.encode or own.places is not TextProcessor.places:
            return super().placed(values, data)
        # Once: with offsets, the tokens are the same.
        text = values["text"]
        ids, found, removed = spans(self.tokenizer, text, data.max_length, data.keep)
        return Encoded({"input_ids": ids}, removed), Places("characters", found, text)

    def problem(self, values: Mapping[str, Any]) -> str:
        return "" if (values.get("text") or "").strip() else "empty document"

    def remark(self, validation: Any) -> str:
        unknown, name = self.tokenizer.unk_token_id, next(iter(self.streams))
        if unknown is None or not isinstance(validation, Dataset) or name not in validation.column_names:
            return ""
        counted = unread = 0
        others = list({*self.tokenizer.all_special_ids} - {unknown})
        for batch in validation.select_columns([name]).with_format("numpy").iter(_ROWS):
            ids = np.concatenate([np.zeros(0, np.int64), *batch[name]])
            ids = ids[~np.isin(ids, others)]
            counted, unread = counted + len(ids), unread + int((ids == unknown).sum())
            if counted > _COUNTED:
                break
        if unread <= counted / 2:
            return ""
        return (
            f"{unread / counted:.0%} of the tokens of the validation split are not in the vocabulary, so the model "
            "cannot tell them apart; set data.tokens=bpe, above all for Chinese, Japanese, Thai and other text without "
            "spaces between words"
        )

    def with_familiarity(self, training: Dataset, validation: Dataset) -> "TextProcessor":
        counts = np.zeros(len(self.tokenizer), np.int64)
        for batch in training.select_columns(list(self.streams)).with_format("arrow").iter(_ROWS):
            for column in batch.columns:
                counts += np.bincount(pc.list_flatten(column).to_numpy(), minlength=len(counts))
        if not counts.any():
            return self
        sampled, held_out = (self._sampled(split) for split in (training, validation))
        known = Familiarity.fitted(sampled, counts, self.tokenizer.unk_token_id, held_out)
        return replace(self, familiarity=known)

    def _sampled(self, split: Dataset) -> list[np.ndarray]:
        """Tokens of examples that are evenly spread over a split."""
        places = np.linspace(0, len(split) - 1, min(len(split), SAMPLE)).astype(int)
        columns = split.select(places).select_columns(list(self.streams)).with_format("numpy")[:]
        return [joined(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def unfamiliar(self, streams: Mapping[str, Any]) -> bool:
        known = self.familiarity
        return known is not None and known.unfamiliar(joined({name: streams[name] for name in self.streams}))

    @property
    def false_alarms(self) -> float:
        return 0.0 if self.familiarity is None else self.familiarity.validation

    def settings(self, model: Mapping[str, Any]) -> dict[str, Any]:
        own = {"vocab_size": len(self.tokenizer), "pad_token_id": self.tokenizer.pad_token_id}
        return own | (encoders.settings(model["encoder"], self.tokenizer) if model.get("encoder") else {})

    @classmethod
    def check(cls, model: Mapping[str, Any], data: Any) -> None:
        if model.get("encoder"):
            encoders.check_tokens(model["encoder"], data.tokens)
            encoders.described_by(model["encoder"])

    def check_continues(self, other: Processor, run: str) -> None:
        own, before = self.tokenizer.get_vocab(), tokenizer_of(other).get_vocab()
        changed = [token for token, number in before.items() if own.get(token) != number]
        if changed:
            raise UserError(
                f"expected data that are read with the tokens of {run!r}, which the model is to start from, got others "
                f"for {len(changed):,} of {len(before):,}, such as {changed[0]!r}; a task takes them from "
                "`longspan.data.text.tokenization.build_tokenizer`."
            )

    def load_vectors(self, model: PreTrainedModel, path: Path) -> int:
        return load_word_vectors(model.get_input_embeddings(), self.tokenizer, path)

    def introduce(self, model: PreTrainedModel) -> None:
        if not isinstance(model, LongspanPreTrainedModel):
            return
        if model.window_encoder is not None:
            encoders.fill(model.window_encoder, model.config.embeddings.encoder)
        if self.tokenizer.is_fast:
            model.read_words(*map(torch.from_numpy, (word_starts(self.tokenizer), letters(self.tokenizer))))

    @property
    def slow(self) -> bool:
        return not self.tokenizer.is_fast

    def facts(self, data: Any) -> Any:
        return [data.max_length, data.keep]

    def fingerprint(self) -> str:
        return f"{TOKENS_VERSION} {tokenizer_hash(self.tokenizer)}"

    def save_pretrained(self, folder: str | Path) -> None:
        self.tokenizer.save_pretrained(str(folder))
        if self.familiarity is not None:
            self.familiarity.save(Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "TextProcessor":
        path = Path(folder, cls.files[0])
        if "auto_map" in json_object(path):
            raise UserError(
                f"expected a tokenizer of transformers in {str(path)!r}, got one with code of its own (auto_map), "
                "which is never run; use another."
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        # For a damaged file, tokenizers raises plain `Exception`, and transformers anything.
        except Exception as error:
            raise UserError(
                f"the tokenizer in {str(folder)!r} is damaged or incomplete; restore tokenizer.json and "
                "tokenizer_config.json as they were saved."
            ) from error
        return cls(tokenizer, familiarity=Familiarity.read(Path(folder)))


def joined(streams: Mapping[str, Any]) -> np.ndarray:
    """Tokens of all streams of an example, one after the other."""
    return np.concatenate([np.asarray(ids) for ids in streams.values()])


def tokenizer_of(processor: Processor) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a processor of text. Raises UserError for another kind of processor."""
    if not isinstance(processor, TextProcessor):
        raise UserError(f"expected a processor of text, got a {type(processor).__name__}; use another task.")
    return processor.tokenizer
