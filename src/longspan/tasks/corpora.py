"""Documents without labels, read from their beginning to their end: what the tasks that learn from them share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from longspan.data.columns.kinds import Column, Text
from longspan.data.sources.loading import Splits, load
from longspan.data.text.long_documents import pieces, summary, tokenize_documents
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.report import count, table
from longspan.tasks.base import Recipe
from longspan.tasks.excerpts import excerpt
from longspan.tasks.options import CorpusData, CorpusTrainingOptions

DATA_HINT = (
    "data.path=FILE (a text file, a folder of text files, or a csv, tsv, jsonl or parquet file), or data.train=FILE"
)
"""What to give such a task."""


@dataclass(frozen=True)
class Corpus:
    """Documents as tokens.

    Attributes:
        splits: The results of `longspan.data.text.long_documents.tokenize_documents` by split.
        tokenizer: What made them.
        table: What `documents_table` shows, with the rows left out under "skipped" and encodings under "encodings".
    """

    splits: dict[str, Dataset]
    tokenizer: PreTrainedTokenizerBase
    table: dict[str, Any]


def text_column(data: CorpusData) -> Sequence[Column]:
    """Return the one column that is read."""
    return [Text("text", "text_column", lines=data.join_rows)]


def read_corpus(recipe: Recipe[CorpusData, CorpusTrainingOptions], *, end: bool = False, mask: bool = False) -> Corpus:
    """Read, split and tokenise the documents of a recipe.

    Args:
        recipe: The recipe.
        end: Whether the tokenizer needs a token that ends documents, which is then one of the targets of each.
        mask: Whether it needs a mask token.

    Raises:
        UserError: For whatever is wrong with the data.
    """
    data, task = recipe.data, recipe.task
    if data.max_length:
        raise UserError(
            f"data.max_length={data.max_length} cuts documents, but {task.name.replace('_', ' ')} reads them in full, "
            "training.segment_length tokens at a time; leave it out."
        )
    loaded = load(data, task.columns(data))
    training = loaded.splits["train"]
    tokenizer = build_tokenizer(data, pieces(training, data), cache_key=training._fingerprint, end=end, mask=mask)
    return tokenised(recipe, loaded, tokenizer)


def tokenised(recipe: Recipe[Any, Any], loaded: Splits, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """Tokenise documents that are read; the recipe has `CorpusData` and `ExcerptTrainingOptions`."""
    splits = {
        name: tokenize_documents(split, tokenizer, recipe.data, f"Tokenising {name}")
        for name, split in loaded.splits.items()
    }
    facts: dict[str, Any] = {name: summary(split) for name, split in splits.items()}
    for name, split in splits.items():
        scored = int(scored_lengths(split, recipe.options.max_eval_tokens).sum())
        if name != "train" and scored < facts[name]["tokens"]:
            facts[name]["scored"] = scored
    return Corpus(splits, tokenizer, {**facts, **loaded.notices()})


def scored_lengths(tokens: Dataset, most: int) -> np.ndarray:
    """Return how many tokens of each document are scored, from its beginning, `most` at most of all; 0 for no limit."""
    lengths = np.asarray(tokens["length"][:])
    return np.minimum(lengths, excerpt(lengths, most))


def documents_table(data: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of splits: documents and their tokens, characters and bytes, and what was scored of them."""
    splits = {name: row for name, row in data.items() if isinstance(row, Mapping) and "documents" in row}
    headers = ["split", "documents", "tokens", "unknown tokens", "characters", "bytes", "longest (tokens)"]
    keys = ["documents", "tokens", "unknown", "characters", "bytes", "longest"]
    rows = ([name, *(count(row.get(key)) for key in keys)] for name, row in splits.items())
    told = [
        f"{name}: scored {count(row['scored'])} of {count(row['tokens'])} tokens (training.max_eval_tokens); "
        f"`longspan evaluate RUN --split {name}` scores all"
        for name, row in splits.items()
        if "scored" in row
    ]
    return "\n\n".join([table(headers, rows, style), *told])
