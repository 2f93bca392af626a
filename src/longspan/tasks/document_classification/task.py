"""Document classification: `DocumentClassification`."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.columns.literals import list_in
from longspan.data.columns.values import BadCell, joined, number, shown
from longspan.data.sources.announcements import note
from longspan.data.sources.loading import Splits, load
from longspan.errors import UserError
from longspan.models.wide.classifier import Wide
from longspan.report.card import Hub
from longspan.results.parts import NAMES, Parts, compare_parts
from longspan.tasks.base.classes import ClassificationScores, ClassTask, balanced_weights
from longspan.tasks.base.documents import DocumentTask
from longspan.tasks.base.task import Baseline, Counts, Run, baselines_in
from longspan.tasks.document_classification import baselines
from longspan.tasks.document_classification.baselines.ngrams import Ngrams
from longspan.tasks.document_classification.options import ClassificationData
from longspan.training.lengths import LengthTrainer, targets

#: Integers up to the first number, or with the second number of documents each, may well be classes.
CLASSES, DOCUMENTS = 20, 50


def hint(labels: Mapping[str, int]) -> str:
    """Another recipe that the labels look made for, without a full stop, and the evidence; empty if none.

    Args:
        labels: Number of documents of each label.
    """
    return _of_several(labels) or _of_numbers(labels)


def _of_numbers(labels: Mapping[str, int]) -> str:
    """Numbers are quantities where some are not whole, or where there are many of them and few documents of each."""
    try:
        found = [number(label, BadCell) for label in labels]
    except BadCell:
        return ""
    whole = all(value.is_integer() for value in found)
    if whole and (len(found) <= CLASSES or sum(labels.values()) / len(found) >= DOCUMENTS):
        return ""
    seen = f"{len(found):,} different numbers" + ("" if whole else f" such as {_example(found)}")
    return f"the labels look like quantities ({seen}), which the recipe 'regression' learns to predict"


def _example(values: list[float]) -> str:
    return f"{next(value for value in values if not value.is_integer()):g}"


def _of_several(labels: Mapping[str, int]) -> str:
    if any(list_in(label) is not None for label in labels):
        return "the labels look like lists, which the recipe 'multi-label' reads"
    found = joined(labels)
    if found is None:
        return ""
    setting = "" if found[1] == "," else f" with data.label_separator={found[1]!r}"
    return f"labels such as {shown(found[0])} look like several in one, which the recipe 'multi-label' reads{setting}"


#: Penalty that pulls the scales towards the wide part alone, in nats: documents by the hundred outweigh it. Few are
#: right by chance, all the more for the best of many epochs.
_PRIOR = 20.0


class WideTrainer(LengthTrainer[ClassificationScores]):
    """A `LengthTrainer` that chooses the scales of a model's two parts whenever it scores the validation split.

    They are chosen before a checkpoint is saved, so each one has its own. No other split changes them. Training does
    not depend on them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deep_loss: float | None = None

    def score(self, dataset: Dataset) -> ClassificationScores:
        wide = self.model.wide
        if wide is None:
            return super().score(dataset)
        parts, labels = self.outputs(dataset, "parts"), targets(dataset)
        if dataset is self.eval_dataset:
            wide.scales.copy_(best_scales(parts, labels))
            self._deep_loss = float(cross_entropy(parts[:, 1].double(), labels))
        both = combined(wide, parts)
        right = right_of(parts, both, labels)
        self.remember_parts(dataset, functools.partial(accuracies, right))
        return self.measure(both, labels)

    def losses_as_trained(self) -> dict[str, float]:
        # Training fits the deep part alone.
        return {} if self._deep_loss is None else {"loss_as_trained": self._deep_loss}


def combined(wide: Wide, parts: Tensor) -> Tensor:
    """Return the logits of both parts together, `(n, c)`, from `(n, 2, c)`, on the CPU."""
    scales = wide.scales.detach().float().cpu()
    return (scales[:, None] * parts).sum(1)


def right_of(parts: Tensor, both: Tensor, labels: Tensor) -> np.ndarray:
    """Documents that each part gets right alone, and both together, `(3, n)` bool in the order of `NAMES`."""
    found: np.ndarray = torch.stack([(logits.argmax(-1) == labels) for logits in (*parts.unbind(1), both)]).numpy()
    return found


def accuracies(right: np.ndarray) -> Parts:
    """Compare the accuracies of both parts, given which documents they get right: see `right_of`."""
    examples = {name: np.stack([row, np.ones_like(row)], -1) for name, row in zip(NAMES, right, strict=True)}
    score = ClassificationScores.headline()
    higher = ClassificationScores.higher_is_better()
    return compare_parts(score, higher, examples, lambda sums: sums[..., 0] / sums[..., 1])


def best_scales(parts: Tensor, labels: Tensor) -> Tensor:
    """Factors of the logits of both parts, `(2,)` float32, at least 0.

    They have the lowest cross-entropy on the validation split. A penalty on what the deep part adds pulls them towards
    the wide part alone, so that confidence alone does not raise the deep part's scale. Where the sum would get fewer
    documents right than the wide part, by more than chance does, that counts alone.

    Args:
        parts: `(n, 2, c)` logits of the wide and the deep part.
        labels: `(n,)` class numbers.
    """
    logits, alone = parts.double(), torch.tensor([1.0, 0.0], dtype=torch.float64)
    scales = alone.clone().requires_grad_()
    # How far two classes' logits are apart. A part that is hardly sure of anything is not to be blown up.
    apart = (2 * logits[:, 1].var(-1)).mean().sqrt().clamp_min(1)
    units = torch.stack([torch.ones_like(apart), apart])
    optimizer = torch.optim.LBFGS([scales], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = cross_entropy((scales[:, None] * logits).sum(1), labels, reduction="sum")
        found = found + _PRIOR * (units * (scales - alone)).square().sum()
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)
    # A part that speaks against itself has nothing to say.
    both = scales.detach().clamp_min(0)
    counting, summed = ((each[:, None] * logits).sum(1).argmax(-1) == labels for each in (alone, both))
    lost, won = int((counting & ~summed).sum()), int((summed & ~counting).sum())
    # Were both alike, the difference would have the variance lost + won (McNemar 1947).
    return (alone if lost - won > 2 * (lost + won) ** 0.5 else both).float()


class DocumentClassification(ClassTask[ClassificationData], DocumentTask[ClassificationScores, ClassificationData]):
    """One label for each document, of any length."""

    data_config = ClassificationData
    hub = Hub("text-classification", ("long-document",), ("accuracy", "f1"), {"macro_f1": "f1"})
    trainer_class = WideTrainer
    unused = DocumentTask.unused

    def columns(self, data: ClassificationData) -> Sequence[Column]:
        lists = "train the recipe 'multi-label', which reads lists of labels"
        return [Text("text", "text_column"), Label("label", "label_column", lists=lists)]

    def load(self, data: ClassificationData) -> Splits:
        try:
            loaded = super().load(data)
        except UserError as error:
            if meant := self._recipe_hint(data):
                raise UserError(f"{str(error).removesuffix('.')}; {meant}.") from None
            raise
        if meant := hint(Counter(loaded.splits["train"]["label"][:])):
            note(meant)
        return loaded

    def _recipe_hint(self, data: ClassificationData) -> str:
        """Hint at another recipe where the labels cannot be split; empty if they cannot be read either."""
        whole = replace(data, validation="", test="", validation_fraction=0.0, test_fraction=0.0, skip_bad_rows=True)
        try:
            return hint(Counter(load(whole, self.columns(data), training=False).splits["train"]["label"][:]))
        except (UserError, KeyError):
            return ""

    def head(self, training: Dataset, data: ClassificationData) -> dict[str, Any]:
        balanced = data.class_weights == "balanced"
        weights = {"class_weights": balanced_weights(training["label"][:])} if balanced else {}
        return super().head(training, data) | weights

    def logits(self, run: Run, targets: Tensor, outputs: Callable[[str], Tensor]) -> tuple[Tensor, dict[str, Any]]:
        if run.model.wide is None:
            return super().logits(run, targets, outputs)
        parts = outputs("parts")
        both = combined(run.model.wide, parts)
        return both, {"parts": accuracies(right_of(parts, both, targets)).to_dict()}

    def baselines(self) -> Mapping[str, type[Baseline[ClassificationScores]]]:
        return baselines_in(baselines)

    def counts(self) -> type[Counts[ClassificationScores]]:
        return Ngrams
