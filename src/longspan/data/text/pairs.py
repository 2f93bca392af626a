"""Pairs of texts, such as a text and its translation, as two streams of tokens: `PairProcessor`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from datasets import Dataset
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column, Text
from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.processor import Encoded
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer, encode_counted, token_ids
from longspan.errors import UserError
from longspan.models.losses import IGNORED

#: The kinds of tokens that text can be put together from again; the others lose spaces.
EXACT = ("bpe", "bytes", "characters")


@dataclass(frozen=True)
class PairProcessor(TextProcessor):
    """A source and a target as token ids, each with an end token; both have one vocabulary.

    `input_ids` are those of the source, `labels` those of the target. `data.max_length` cuts sources, never targets.
    """

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {**super().streams, "labels": Stream(fill=IGNORED)}

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return [
            Text("source", "text_column" if data.text_column else "source_column", each_line=True),
            Text("target", "target_column", each_line=True, target=True),
        ]

    @classmethod
    def learned(cls, training: Dataset, data: Any) -> "PairProcessor":
        """Return one whose tokenizer is learned from the sources and the targets of a training split.

        Raises:
            UserError: The kind of tokens loses spaces, or there is no such tokenizer.
        """
        check_exact(data)
        return cls(pair_tokenizer(data, training["source"], training["target"], training._fingerprint))

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        sources = encode_counted(self.tokenizer, [text or "" for text in rows["source"]], data)
        targets = token_ids(self.tokenizer, [text or "" for text in rows["target"]])
        end = self.tokenizer.eos_token_id
        return [
            Encoded({"input_ids": ids, "labels": [*target.tolist(), end]}, lost)
            for (ids, lost), target in zip(sources, targets, strict=True)
        ]

    def problem(self, values: Mapping[str, Any]) -> str:
        return "" if (values.get("source") or "").strip() else "no source"

    def fingerprint(self) -> str:
        return f"pairs {super().fingerprint()}"

    def texts(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Return the texts of rows of token ids, each on one line."""
        found = self.tokenizer.batch_decode(list(rows), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [" ".join(text.splitlines()).strip() for text in found]


def check_exact(data: DataConfig) -> None:
    """Raise UserError unless texts can be put together from the kind of tokens."""
    if data.tokens in TRAINED_TOKENS and data.tokens not in EXACT:
        raise UserError(
            f"expected data.tokens to be {', '.join(EXACT)} or a pretrained tokenizer, as targets are put together "
            f"from tokens, got {data.tokens!r}, which loses their spaces; set another."
        )


def pair_tokenizer(
    data: DataConfig, sources: Iterable[str], targets: Iterable[str], cache_key: str
) -> PreTrainedTokenizerBase:
    """Return the one tokenizer of sources and targets, which ends each text with its end token.

    Raises:
        UserError: See `build_tokenizer`; or the tokenizer is written in Python, which cannot be told to end texts.
    """
    # What is too long for the model still has words.
    whole = replace(data, max_length=0)
    tokenizer = build_tokenizer(whole, _texts(sources, targets), cache_key=f"pairs {cache_key}", end=True)
    if not tokenizer.is_fast:
        raise UserError(
            f"expected a tokenizer with a tokenizer.json, got {data.tokens!r}, which is written in Python; use another."
        )
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    return tokenizer


def _texts(sources: Iterable[str], targets: Iterable[str]) -> Iterator[str]:
    return chain(sources, targets)
