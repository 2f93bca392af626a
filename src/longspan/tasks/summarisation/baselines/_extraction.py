"""Shared parts of baselines whose summaries are parts of the document."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset

from longspan.tasks.base.baselines.retrieval import smoothed
from longspan.tasks.base.task import Baseline, Fitted, Recipe, read_splits
from longspan.tasks.summarisation.reading import UNITS, fill, units
from longspan.tasks.summarisation.scores import ROUGE, SummaryScores, rouge, summary_scores

Setting = Mapping[str, Any]


class SummaryBaseline(Baseline[SummaryScores]):
    """Summaries of as many words as those of the training split have on average, or fewer."""

    @abc.abstractmethod
    def split_summaries(self, splits: Mapping[str, Dataset], words: int) -> tuple[dict[str, list[str]], Setting]:
        """Return the summaries of each split but "train", by its name, and the settings that were chosen.

        Args:
            splits: Documents, with summaries.
            words: Number of words of a summary.
        """

    def fit(self, recipe: Recipe) -> Fitted[SummaryScores]:
        splits = read_splits(recipe)
        words = mean_words(splits["train"])
        made, chosen = self.split_summaries(splits, words)
        scores = {name: summary_scores(texts, *references(splits[name])) for name, texts in made.items()}
        return Fitted(scores, {**chosen, "words": words}, 0)


class Extraction(SummaryBaseline):
    """Summaries whose parts are those of the document.

    The validation split chooses among `settings` by the sum of ROUGE-1, ROUGE-2 and ROUGE-Lsum.
    """

    #: Settings that validation chooses from.
    settings: ClassVar[Sequence[Setting]] = ({},)

    @abc.abstractmethod
    def summaries(self, row: Mapping[str, Any], words: int, settings: Sequence[Setting]) -> Iterator[list[str]]:
        """Yield, for each of some settings, a summary for each question about a document, in sentences or lines.

        Args:
            row: `document`, `questions`, of which there may be none, and `summaries`, which only an oracle may read.
            words: Number of words of a summary.
            settings: The settings.
        """

    def split_summaries(self, splits: Mapping[str, Dataset], words: int) -> tuple[dict[str, list[str]], Setting]:
        tried = self._split(splits["validation"], words, self.settings)
        right, _ = references(splits["validation"])
        means = [dict(zip(ROUGE, rouge(texts, right).mean(0), strict=True)) for texts in tried]
        best = int(np.argmax([one["rouge_1"] + one["rouge_2"] + one["rouge_lsum"] for one in means]))
        found = {"validation": tried[best]}
        for name in [name for name in splits if name not in ("train", "validation")]:
            (found[name],) = self._split(splits[name], words, [self.settings[best]])
        return found, self.settings[best]

    def _split(self, rows: Dataset, words: int, settings: Sequence[Setting]) -> list[list[str]]:
        made: list[list[str]] = [[] for _ in settings]
        for row in rows:
            for found, new in zip(made, self.summaries(row, words, settings), strict=True):
                found += new
        return made


class Ranking(Extraction):
    """The parts of a document that have the highest scores, perhaps with twice the mean of their neighbours' added.

    Validation chooses the kind of parts, the number of words from which one counts as such, and the standard deviation
    of the Gaussian that averages neighbouring parts, in parts; 0 for none.
    """

    settings = tuple(
        {"parts": kind, "shortest": shortest, "spread": spread}
        for kind in UNITS
        for shortest in (1, 10, 20, 30)
        for spread in (0.0, 4.0, 16.0)
    )

    @abc.abstractmethod
    def scores(self, parts: Sequence[str], questions: Sequence[str]) -> np.ndarray:
        """Return (q, p) scores of parts for each question, where "" stands for no question."""

    def summaries(self, row: Mapping[str, Any], words: int, settings: Sequence[Setting]) -> Iterator[list[str]]:
        found: dict[str, tuple[list[str], np.ndarray]] = {}
        for setting in settings:
            kind = setting["parts"]
            if kind not in found:
                parts = units(row["document"], kind)
                found[kind] = parts, self.scores(parts, row["questions"] or [""])
            parts, scores = found[kind]
            # Short parts, such as "Okay.", come last.
            short = np.array([len(part.split()) < setting["shortest"] for part in parts])
            with_near = [one + 2 * smoothed(one, setting["spread"]) for one in scores] if setting["spread"] else scores
            yield ["\n".join(fill(parts, np.lexsort((-one, short)).tolist(), words)) for one in with_near]


def mean_words(rows: Dataset) -> int:
    """Return the mean number of words of the summaries of a split, rounded."""
    return max(1, round(float(np.mean([len(text.split()) for each in rows["summaries"][:] for text in each]))))


def references(rows: Dataset) -> tuple[list[str], list[str]]:
    """Return the summaries of a split, and the document of each."""
    both = [(text, row["document"]) for row in rows for text in row["summaries"]]
    return [text for text, _ in both], [document for _, document in both]
