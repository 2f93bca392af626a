"""Documents without labels, read from their beginning to their end: what the tasks that learn from them share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from longspan.data.columns.kinds import Column, Text
from longspan.data.config import OF_THE_TOKENIZER, UnlabelledData
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.loading import Splits, load
from longspan.data.sources.shards import Streamed
from longspan.data.text.long_documents import pieces, summary, tokenize_documents
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer, token_ids
from longspan.errors import UserError
from longspan.report import count, scores_table, table
from longspan.results import Evaluation
from longspan.tasks.base.options import CorpusData, CorpusTrainingOptions
from longspan.tasks.base.task import Recipe, Run

#: Characters of a document that are read where a part of it will do: a few thousand tokens.
_CHARACTERS = 100_000


@dataclass(frozen=True)
class Corpus:
    """Documents as tokens.

    Attributes:
        splits: The results of `longspan.data.text.long_documents.tokenize_documents` by split.
        tokenizer: Tokenizer that made them.
        table: Data of `documents_table`, with the rows left out under "skipped" and encodings under "encodings".
        stream: All training rows, where the split "train" is a sample of them.
    """

    splits: dict[str, Dataset]
    tokenizer: PreTrainedTokenizerBase
    table: dict[str, Any]
    stream: Streamed | None = None


def text_column(data: CorpusData) -> Sequence[Column]:
    """Return the one column that is read."""
    return [Text("text", "text_column", lines=data.join_rows)]


class CorpusTask:
    """What all tasks of documents without labels share: a base class of theirs, before `PipelineTask`."""

    data_hint: ClassVar[str] = (
        "data.path=FILE (a text file, a folder of text files, or a csv, tsv, jsonl or parquet file), or data.train=FILE"
    )

    def columns(self, data: Any) -> Sequence[Column]:
        return text_column(data)

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        return documents_table(data, style)

    def sections(self, evaluation: Evaluation) -> list[str]:
        split = evaluation.split
        return [documents_table({split: evaluation.details}), scores_table({split: evaluation.scores})]


def token_rows(run: Run[Any, Any, TextProcessor], examples: Dataset) -> list[list[int]]:
    """Return the first tokens of documents, without their ends; see `Task.token_rows`."""
    texts = [text[:_CHARACTERS] for text in examples["text"][:]]
    return [ids.tolist() for ids in token_ids(run.processor.tokenizer, texts)]


def unlabelled_texts(data: UnlabelledData) -> CorpusData:
    """Settings with which the texts without labels of a task are read; those without content are left out."""
    column = "text" if data.text_column == "tokens" else data.text_column
    names = ("encoding", "delimiter", "quoting", "header", "tokenizer_from", *OF_THE_TOKENIZER)
    own = {name: getattr(data, name) for name in names}
    return CorpusData(path=data.unlabelled, text_column=column, skip_bad_rows=True, validation_fraction=0, **own)


def starting_from(recipe: Recipe[Any, Any], run: str) -> Recipe[Any, Any]:
    """Recipe of texts that starts from a run: with its tokens, embeddings and layers."""
    return replace(recipe, start_from=run, data=replace(recipe.data, tokenizer_from=run))


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
    tokenizer = build_tokenizer(data, pieces(training, data), cache_key=fingerprint(training), end=end, mask=mask)
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
    return Corpus(splits, tokenizer, {**facts, **loaded.notices()}, loaded.stream)


def scored_lengths(tokens: Dataset, most: int) -> np.ndarray:
    """Number of tokens of each document that are scored, from its beginning, `most` at most of all; 0 for no limit."""
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


CUT = 16_384
"""No document is cut shorter than this, as tokens near its beginning, with little before them, are hard to predict."""


def excerpt(lengths: Sequence[int] | np.ndarray, most: int) -> np.ndarray:
    """Choose what to score of documents: the same each time, and as representative as can be of all of it.

    Documents are read from their beginning, with the states that go with it. So what is scored of each is its
    beginning: all of short documents, and equally much of all longer ones. If `most` is not enough for `CUT` targets of
    each document, evenly spaced documents are chosen. The longest documents count for less than in the whole.

    Args:
        lengths: `(d,)` documents' lengths in tokens without the end, which is a target, too.
        most: The maximum number of targets; 0 means all.

    Returns:
        `(d,)` how many targets of each document are scored, from its first one on; in all no more than `most`.
    """
    targets = np.asarray(lengths, dtype=np.int64) + 1
    if not most or targets.sum() <= most:
        return targets
    cut = np.minimum(targets, max(_water_level(targets, most), min(CUT, most)))
    total = int(cut.sum())
    if total <= most:
        return cut
    marks = np.arange(len(cut) + 1) * most // total
    chosen = np.where(np.diff(marks) > 0, cut, 0)
    # Those chosen may be longer than others.
    return np.clip(most - (np.cumsum(chosen) - chosen), 0, chosen)


def _water_level(targets: np.ndarray, most: int) -> int:
    """Return the largest number so that documents cut to it have at most `most` targets, of which there are more."""
    heights = np.sort(targets)
    levels = (most - (np.cumsum(heights) - heights)) // np.arange(len(heights), 0, -1)
    return int(levels[np.argmax(heights > levels)])


def mean_nats(nats: float, count: float, *, tokens: str, source: str) -> float:
    """Return the mean loss per token.

    Args:
        nats: Sum of the losses.
        count: Number of tokens.
        tokens: Name of the tokens in messages, such as "masked tokens".
        source: Content that a document needs for any of them, such as "words to mask".

    Raises:
        UserError: There are no tokens, or losses are not finite, as after a training run that diverged.
    """
    if not count:
        raise UserError(f"expected at least one document with {source}, got none; choose other data.")
    if not math.isfinite(nats):
        raise UserError(
            f"expected finite losses of {count:,.0f} {tokens}, got some that are not, as after a training run that "
            "diverged; lower training.learning_rate."
        )
    return nats / count


def perplexity(loss: float) -> float:
    """Return e to the power of a mean loss in nats; infinity from 700 nats, near the largest float."""
    return math.exp(loss) if loss < 700 else math.inf
