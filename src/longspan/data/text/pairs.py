"""Pairs of texts, such as a text and its translation, as two streams of tokens: `PairProcessor`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column, Text
from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.fingerprints import fingerprint
from longspan.data.processor import Encoded, Processor
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer, encode_counted, token_ids, tokenizer_hash
from longspan.errors import UserError
from longspan.models.parts.losses import IGNORED

#: The folder of the tokenizer of targets in that of a run, where source and target have two vocabularies.
TARGET = "target_tokenizer"

#: The kinds of tokens that text can be put together from again; the others lose spaces.
EXACT = ("bpe", "bytes", "characters")


@dataclass(frozen=True)
class PairProcessor(TextProcessor):
    """A source and a target as token ids, each with an end token.

    `input_ids` are those of the source, `labels` those of the target. `data.max_length` cuts sources, never targets.

    Attributes:
        own_target: The tokenizer of targets, saved in the folder `TARGET`; None if it is that of sources.
    """

    own_target: PreTrainedTokenizerBase | None = None

    @property
    def target_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of targets."""
        return self.tokenizer if self.own_target is None else self.own_target

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {**super().streams, "labels": Stream(fill=IGNORED)}

    @property
    def source_streams(self) -> Mapping[str, Stream]:
        """The streams of a source without its target."""
        return super().streams

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return [
            Text("source", "text_column" if data.text_column else "source_column", each_line=True),
            Text("target", "target_column", each_line=True, target=True),
        ]

    @classmethod
    def learned(cls, training: Dataset, data: Any) -> "PairProcessor":
        """Return one whose tokenizer is learned from the sources and the targets of a training split, or one of each.

        Raises:
            UserError: The kind of tokens loses spaces, or there is no such tokenizer.
        """
        check_exact(data)
        key, sources, targets = fingerprint(training), training["source"], training["target"]
        if data.shared_vocabulary:
            return cls(pair_tokenizer(data, chain(sources, targets), f"pairs {key}"))
        source = pair_tokenizer(data, sources, f"sources {key}")
        folder = Path(data.tokenizer_from).expanduser() / TARGET
        known = str(folder) if data.tokenizer_from and folder.is_dir() else ""
        other = replace(data, vocab_size=data.target_vocab_size or data.vocab_size, tokenizer_from=known)
        target = pair_tokenizer(other, targets, f"targets {key}")
        if source.pad_token_id != target.pad_token_id:
            raise UserError(
                "expected tokenizers with the same number for padding with data.shared_vocabulary=false, got "
                f"{source.pad_token_id} for sources and {target.pad_token_id} for targets; leave out "
                "data.tokenizer_from."
            )
        return cls(source, target)

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        sources = encode_counted(self.tokenizer, [text or "" for text in rows["source"]], data)
        targets = token_ids(self.target_tokenizer, [text or "" for text in rows["target"]])
        end = self.target_tokenizer.eos_token_id
        return [
            Encoded({"input_ids": ids, "labels": [*target.tolist(), end]}, lost)
            for (ids, lost), target in zip(sources, targets, strict=True)
        ]

    def problem(self, values: Mapping[str, Any]) -> str:
        return "" if (values.get("source") or "").strip() else "no source"

    def settings(self, model: Mapping[str, Any]) -> dict[str, Any]:
        found = super().settings(model)
        if self.own_target is not None:
            found |= {"shared_vocabulary": False, "target_vocab_size": len(self.own_target)}
        return found

    def check_continues(self, other: Processor, run: str) -> None:
        super().check_continues(other, run)
        if not isinstance(other, PairProcessor):
            return
        own, before = (None if one.own_target is None else one.own_target.get_vocab() for one in (self, other))
        if own != before:
            wanted, got = ("one vocabulary" if one is None else "a target with its own" for one in (before, own))
            got = got if (own is None) != (before is None) else "other tokens of the target"
            raise UserError(
                f"expected {wanted} as in {run!r}, from which the model is to start, got {got}; leave out "
                "data.shared_vocabulary."
            )

    def fingerprint(self) -> str:
        target = "" if self.own_target is None else f" {tokenizer_hash(self.own_target)}"
        return f"pairs {super().fingerprint()}{target}"

    def save_pretrained(self, folder: str | Path) -> None:
        super().save_pretrained(folder)
        if self.own_target is not None:
            TextProcessor(self.own_target).save_pretrained(Path(folder, TARGET))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "PairProcessor":
        tokenizer, target = TextProcessor.from_pretrained(folder).tokenizer, Path(folder, TARGET)
        return cls(tokenizer, TextProcessor.from_pretrained(target).tokenizer if target.is_dir() else None)

    def texts(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Return the texts of rows of token ids, each on one line."""
        tokenizer = self.target_tokenizer
        found = tokenizer.batch_decode(list(rows), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [" ".join(text.splitlines()).strip() for text in found]


def check_exact(data: DataConfig) -> None:
    """Raise UserError unless texts can be put together from the kind of tokens."""
    if data.tokens in TRAINED_TOKENS and data.tokens not in EXACT:
        raise UserError(
            f"expected data.tokens to be {', '.join(EXACT)} or a pretrained tokenizer, as targets are put together "
            f"from tokens, got {data.tokens!r}, which loses their spaces; set another."
        )


def pair_tokenizer(data: DataConfig, texts: Iterable[str], cache_key: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer learned from texts, which ends each text with its end token.

    Raises:
        UserError: See `build_tokenizer`; or the tokenizer is written in Python, which cannot be told to end texts.
    """
    # What is too long for the model still has words.
    whole = replace(data, max_length=0)
    tokenizer = build_tokenizer(whole, texts, cache_key=cache_key, end=True)
    if not tokenizer.is_fast:
        raise UserError(
            f"expected a tokenizer with a tokenizer.json, got {data.tokens!r}, which is written in Python; use another."
        )
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    return tokenizer
