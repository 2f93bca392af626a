"""Document classification: `DocumentClassification`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.columns.literals import list_in
from longspan.data.columns.values import BadCell, joined, number, shown
from longspan.data.sources.loading import Splits, load
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.report.card import Hub
from longspan.tasks.base.classes import ClassificationScores, ClassTask
from longspan.tasks.base.documents import DocumentTask
from longspan.tasks.document_classification.options import ClassificationData

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


class DocumentClassification(ClassTask[ClassificationData], DocumentTask[ClassificationScores, ClassificationData]):
    """One label for each document, of any length."""

    data_config = ClassificationData
    hub = Hub("text-classification", ("long-document",), ("accuracy", "f1"), {"macro_f1": "f1"})
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
