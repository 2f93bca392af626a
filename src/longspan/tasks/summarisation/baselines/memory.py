"""The summary of the nearest training document: `Memory`."""

from collections.abc import Mapping
from typing import ClassVar

from datasets import Dataset

from longspan.tasks.base.baselines.retrieval import TFIDF_PACKAGES, nearest
from longspan.tasks.summarisation.baselines._extraction import Setting, SummaryBaseline


class Memory(SummaryBaseline):
    """The training summary whose question and document are nearest, by the cosine of TF-IDF vectors of words.

    Where documents have questions, these are compared alone.
    """

    packages: ClassVar[tuple[str, ...]] = TFIDF_PACKAGES

    def split_summaries(self, splits: Mapping[str, Dataset], words: int) -> tuple[dict[str, list[str]], Setting]:
        summaries = [summary for row in splits["train"] for summary in row["summaries"]]
        known = _sources(splits["train"])
        others = {name: _sources(rows) for name, rows in splits.items() if name != "train"}
        found = {name: [summaries[number] for number in nearest(known, texts)] for name, texts in others.items()}
        return {name: [" ".join(text.split()[:words]) for text in texts] for name, texts in found.items()}, {}


def _sources(rows: Dataset) -> list[str]:
    """Question, or else document, of each summary of a split."""
    return [source for row in rows for source in (row["questions"] or [row["document"]] * len(row["summaries"]))]
