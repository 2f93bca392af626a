"""The best constant summary: `Constant`."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from rouge_score.tokenizers import DefaultTokenizer

from longspan.data.sources.loading import load
from longspan.tasks.baselines import Baseline, Fitted
from longspan.tasks.prepared import check_validation
from longspan.tasks.recipe import Recipe
from longspan.tasks.summarisation.baselines._extraction import mean_words, references
from longspan.tasks.summarisation.scores import SummaryScores, summary_scores

#: Training summaries that are tried, and those that they are scored against, at most: evenly spaced.
MOST = 2000


class Constant(Baseline[SummaryScores]):
    """The training summary that agrees best with all of them, for each document.

    It has the highest mean of ROUGE-1 + ROUGE-2 over the training split, at most 2,000 summaries of it. It has at most
    as many words as those have on average.
    """

    packages: ClassVar[tuple[str, ...]] = ("scipy",)

    def fit(self, recipe: Recipe) -> Fitted[SummaryScores]:
        splits = load(recipe.data, recipe.task.columns(recipe.data)).splits
        check_validation(splits)
        words = mean_words(splits["train"])
        known, _ = references(splits["train"])
        chosen = known[:: -(-len(known) // MOST)]
        best = best_of([" ".join(text.split()[:words]) for text in chosen], chosen)
        summary = " ".join(chosen[best].split()[:words])
        scores = {}
        for name in [name for name in splits if name != "train"]:
            right, documents = references(splits[name])
            scores[name] = summary_scores([summary] * len(right), right, documents)
        return Fitted(scores, {"summary": summary, "words": words}, 0)


def best_of(candidates: Sequence[str], known: Sequence[str]) -> int:
    """Return the number of the candidate with the highest mean of ROUGE-1 + ROUGE-2 over the known summaries."""
    split = DefaultTokenizer(use_stemmer=True).tokenize
    tokens = [[split(text) for text in texts] for texts in (candidates, known)]
    total = np.zeros(len(candidates))
    for pairs in (False, True):
        own, other = ([[*pairwise(each)] if pairs else each for each in texts] for texts in tokens)
        shared, sizes = _shared(own, other), [np.array([len(each) for each in texts]) for texts in (own, other)]
        total += (2 * shared / np.maximum(1, sizes[0][:, None] + sizes[1])).sum(1)
    return int(total.argmax())


def _shared(own: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> np.ndarray:
    """Return how many n-grams each of ours shares with each other text, repeated ones as often as both have them."""
    from scipy.sparse import csr_matrix

    # min(a, b) = Σ_k [a >= k][b >= k]: the k-th time that an n-gram occurs is a column of its own.
    columns: dict[Any, int] = {}

    def table(texts: Sequence[Sequence[Any]]) -> tuple[list[int], list[int]]:
        rows, places = [], []
        for number, grams in enumerate(texts):
            for gram, times in Counter(grams).items():
                for time in range(times):
                    rows.append(number)
                    places.append(columns.setdefault((gram, time), len(columns)))
        return rows, places

    ours, others = table(own), table(other)
    left, right = (
        csr_matrix((np.ones(len(rows)), (rows, places)), shape=(count, len(columns)))
        for (rows, places), count in ((ours, len(own)), (others, len(other)))
    )
    found: np.ndarray = (left @ right.T).toarray()
    return found
