"""Training of token classifiers: `TokenTrainer`, and sentences with their labels and those that a model gives them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from longspan.results.parts import BOTH, Parts
from longspan.tasks.token_classification import combining
from longspan.tasks.token_classification.scores import TokenScores
from longspan.training.lengths import LengthTrainer, Rows, ragged_outputs

#: Inputs of models.
READ = ["input_ids", "sentence_ids", "feature_ids"]


class TokenTrainer(LengthTrainer[TokenScores]):
    """A `LengthTrainer` whose examples have a label for each word.

    Whenever it scores the validation split, it chooses the scales of the parts of a model that has a wide one. They are
    chosen before a checkpoint is saved, so each one has its own. No other split changes them. Training does not depend
    on them.

    Args:
        names: the labels, by number.
        plain: whether each word has a label for itself.
        measure: computes scores from labels, and those that the model gave, of each sentence.
        args, kwargs: those of `LengthTrainer`.
    """

    def __init__(
        self,
        *args: Any,
        names: Sequence[str],
        plain: bool,
        measure: Callable[[list[list[str]], list[list[str]]], TokenScores],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, measure=measure, **kwargs)
        self.names = names
        self.plain = plain

    def score(self, dataset: Dataset) -> TokenScores:
        """Return the scores of the labels that the model gives."""
        if self.model.wide is None:
            sentences = labelled(dataset, self.outputs(dataset), self.names)
            return self.measured(sentences)
        words = combining.word_scores(self.model, dataset, self.outputs(dataset, "parts"))
        if dataset is self.eval_dataset:
            self.model.wide.scales.copy_(combining.best_scales(self.model, words))
        found = by_parts(self.model, dataset, words, self.names)
        if dataset is self.eval_dataset:
            score = "accuracy" if self.plain else "f1"
            best = max(reversed(found), key=lambda name: getattr(self.measured(found[name]), score))
            if best != BOTH:
                # Likelihood is no guarantee.
                self.model.wide.scales.copy_(torch.tensor(combining.ALONE[best]))
                found[BOTH] = found[best]
        self.remember_parts(dataset, functools.partial(compared, found, plain=self.plain))
        return self.measured(found[BOTH])

    def measured(self, sentences: Sequence["Sentence"]) -> TokenScores:
        """Return the scores of labelled sentences."""
        return self.measure([each.gold for each in sentences], [each.given for each in sentences])

    def rehearse(self, dataset: Dataset) -> None:
        if self.model.wide is None:
            super().rehearse(dataset)
            return
        words = combining.word_scores(self.model, dataset, self.outputs(dataset, "parts"))
        combining.best_scales(self.model, words)
        for scales in combining.ALONE.values():
            combining.tags(self.model, words, scales)

    def outputs(self, dataset: Dataset, name: str = "") -> Tensor:
        """Return the numbers of the labels that the model gives to all tokens of a data set, or the outputs "parts"."""
        compute = parts_of if name == "parts" else tags_of
        return compute(self.model, self.rows(dataset, READ), dataset["length"][:], **self.scoring(dataset))


def tags_of(model: Any, rows: Rows, lengths: Sequence[int], **options: Any) -> Tensor:
    """Return the numbers of the labels that a model gives to the tokens of rows with `READ`, one after the other."""
    return ragged_outputs(model, rows, sizes=lengths, name="tags", dtype=torch.int64, **options)


def parts_of(model: Any, rows: Rows, lengths: Sequence[int], **options: Any) -> Tensor:
    """Return the scores of both parts of a model for the tokens of rows with `READ`, `(tokens, 2, labels)`."""
    shape = (2, model.config.num_labels)
    return ragged_outputs(model, rows, sizes=lengths, name="parts", shape=shape, **options)


def by_parts(
    model: Any, examples: Dataset, words: combining.WordScores, names: Sequence[str]
) -> dict[str, list["Sentence"]]:
    """Return the sentences of examples with the labels that each part gives them, and both."""
    scales = {**combining.ALONE, BOTH: model.wide.scales.detach().float().cpu()}
    return {name: labelled(examples, combining.tags(model, words, each), names) for name, each in scales.items()}


def compared(found: Mapping[str, Sequence["Sentence"]], *, plain: bool) -> Parts:
    """Compare the parts of a model by the labels that they give to sentences."""
    given: dict[str, Sequence[Sequence[str]]] = {
        name: [each.given for each in sentences] for name, sentences in found.items()
    }
    right = [(each.document, each.gold) for each in found[BOTH]]
    return combining.parts_of(right, given, plain=plain)


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
