"""Document classification: `DocumentClassification`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from datasets import Dataset
from torch import Tensor

from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.sources.announcements import note
from longspan.data.sources.loading import Splits, load
from longspan.errors import UserError
from longspan.report.card import CardParts
from longspan.results import TrainingResult
from longspan.tasks.base import Baseline, Recipe, Run
from longspan.tasks.baselines import baselines_in
from longspan.tasks.class_scores import ClassificationScores
from longspan.tasks.classes import ClassTask, balanced_weights
from longspan.tasks.counts import Counts
from longspan.tasks.document_classification import baselines, report
from longspan.tasks.document_classification.baselines.ngrams import Ngrams
from longspan.tasks.document_classification.hints import hint
from longspan.tasks.document_classification.options import ClassificationData
from longspan.tasks.document_classification.trainer import WideTrainer, accuracies, combined, right_of
from longspan.tasks.documents import DocumentTask


class DocumentClassification(ClassTask[ClassificationData], DocumentTask[ClassificationScores, ClassificationData]):
    """One label for each document, of any length."""

    data_config = ClassificationData
    trainer_class = WideTrainer
    unused = DocumentTask.unused

    def columns(self, data: ClassificationData) -> Sequence[Column]:
        lists = "train the recipe 'multi-label', which reads lists of labels"
        return [Text("text", "text_column"), Label("label", "label_column", lists=lists)]

    def load(self, data: ClassificationData) -> Splits:
        try:
            loaded = super().load(data)
        except UserError as error:
            if meant := self._meant(data):
                raise UserError(f"{str(error).removesuffix('.')}; {meant}.") from None
            raise
        if meant := hint(Counter(loaded.splits["train"]["label"][:])):
            note(meant)
        return loaded

    def _meant(self, data: ClassificationData) -> str:
        """Return what the labels look like where they cannot be split; empty if they cannot be read either."""
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

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe, result.details["labels"], result.details.get("parts"))
