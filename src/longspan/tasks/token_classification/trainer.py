"""Training of token classifiers: `TokenTrainer`, and sentences with their labels and those that a model gives them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from longspan.data.batches.streams import Stream
from longspan.tasks.token_classification.scores import TokenScores
from longspan.training.lengths import LengthTrainer, Rows, ragged_outputs, scoring_batches

#: What models read.
READ = ["input_ids", "sentence_ids", "feature_ids"]


class TokenTrainer(LengthTrainer[TokenScores]):
    """A `LengthTrainer` whose examples have a label for each word.

    Args:
        names: the labels, by number.
        measure: computes scores from labels, and those that the model gave, of each sentence.
        args, kwargs: those of `LengthTrainer`.
    """

    def __init__(
        self,
        *args: Any,
        names: Sequence[str],
        measure: Callable[[list[list[str]], list[list[str]]], TokenScores],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, measure=measure, **kwargs)
        self.names = names

    def score(self, dataset: Dataset) -> TokenScores:
        """Return the scores of the labels that the model gives."""
        sentences = labelled(dataset, self.outputs(dataset), self.names)
        return self.measure([each.gold for each in sentences], [each.given for each in sentences])

    def outputs(self, dataset: Dataset, name: str = "") -> Tensor:
        """Return the numbers of the labels that the model gives to all tokens of a data set."""
        lengths = dataset["length"][:]
        return tags_of(
            self.model,
            self.rows(dataset, READ),
            lengths,
            scoring_batches(lengths, self.args.eval_batch_size, self.batch_tokens),
            streams=self.streams,
            progress=not self.args.disable_tqdm and self.is_world_process_zero(),
            after_batch=self._scored_a_batch,
        )


def tags_of(
    model: Any,
    rows: Rows,
    lengths: Sequence[int],
    batches: Sequence[Sequence[int]],
    *,
    streams: Mapping[str, Stream],
    **options: Any,
) -> Tensor:
    """Return the numbers of the labels that a model gives to the tokens of rows with `READ`, one after the other."""
    return ragged_outputs(
        model,
        rows,
        batches,
        lengths,
        name="tags",
        streams=streams,
        dtype=torch.int64,
        **options,
    )


@dataclass(frozen=True)
class Sentence:
    """A sentence with its labels and those that a model gave.

    Attributes:
        document: The number of its document.
        number: Which sentence of the document it is, from 0.
        gold: Its labels.
        given: The labels that the model gave.
    """

    document: int
    number: int
    gold: list[str]
    given: list[str]


def labelled(examples: Dataset, tags: Tensor, names: Sequence[str]) -> list[Sentence]:
    """Return the sentences of examples, put together from the windows in which their words were labelled."""
    columns = examples.with_format("arrow")[:]
    kept = columns["kept"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    numbers = columns["sentence_ids"].combine_chunks().flatten().to_numpy()[kept]
    documents = np.repeat(columns["document"].to_numpy(), columns["length"].to_numpy())[kept]
    gold = columns["gold"].combine_chunks().flatten().to_pylist()
    given = [names[number] for number in tags.numpy()[kept]]
    changed = np.flatnonzero((np.diff(numbers) != 0) | (np.diff(documents) != 0)) + 1
    return [
        Sentence(int(documents[start]), int(numbers[start]), gold[start:end], given[start:end])
        for start, end in pairwise([0, *changed.tolist(), len(given)])
        if start < end
    ]
