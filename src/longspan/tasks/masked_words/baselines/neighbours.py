"""Counting which tokens stand between two others: `Neighbours`."""

import numpy as np

from longspan.data.text.long_documents import token_arrays
from longspan.data.text.processor import tokenizer_of
from longspan.tasks.base.corpora import scored_lengths
from longspan.tasks.base.options import CorpusData
from longspan.tasks.base.task import Baseline, Fitted, Recipe, check_validation
from longspan.tasks.masked_words.masking import Masking
from longspan.tasks.masked_words.options import TrainingOptions
from longspan.tasks.masked_words.rows import fixed_rows
from longspan.tasks.masked_words.scores import MaskedScores, masked_scores

#: Discounts of counts that validation tries.
DISCOUNTS = (0.5, 0.75, 0.9)


class Neighbours(Baseline[MaskedScores]):
    """The most frequent token between the two neighbours, else after the one or before the other, else of all.

    Probabilities are interpolated with an absolute discount D, which the validation split chooses (Ney et al. 1994):
    with counts c in a context, of n different tokens,
        p(w | l, r) = (max(c(l w r) - D, 0) + D n(l r) p'(w | l, r)) / c(l r)
    where p' is the mean of p(w | l) and p(w | r), which back off to p(w) in the same way, and that to a uniform one. A
    neighbour that is masked, too, or lies in another document, is none that was counted.
    """

    def fit(self, recipe: Recipe[CorpusData, TrainingOptions]) -> Fitted[MaskedScores]:
        prepared, options = recipe.task.prepare(recipe), recipe.options
        check_validation(prepared.splits)
        size = len(tokenizer_of(prepared.processor))
        counts = _Counts(token_arrays(prepared.splits["train"]), size)
        masking = Masking(tokenizer_of(prepared.processor), options.masking, options.masked_share)
        asked = {}
        for name, split in prepared.splits.items():
            if name != "train":
                scored = scored_lengths(split, options.max_eval_tokens)
                rows = fixed_rows(token_arrays(split), scored, options.segment_length, masking)
                asked[name] = _questions([{key: value.numpy() for key, value in row.items()} for row in rows], size)
        found = [
            {name: counts.scores(*questions, discount) for name, questions in asked.items()} for discount in DISCOUNTS
        ]
        best = min(range(len(found)), key=lambda number: found[number]["validation"].loss)
        return Fitted(found[best], {"discount": DISCOUNTS[best]}, counts.parameters)


class _Table:
    """Counts of tokens in contexts, numbers below 2^63 / `base`."""

    def __init__(self, contexts: np.ndarray, tokens: np.ndarray, base: int) -> None:
        self.base = base
        self.keys, self.counts = np.unique(contexts * base + tokens, return_counts=True)
        self.contexts, starts = np.unique(self.keys // base, return_index=True)
        self.totals = np.add.reduceat(self.counts, starts)
        self.different = np.diff(starts, append=len(self.keys))
        # The first of the most frequent ones of each context.
        owner = np.repeat(np.arange(len(starts)), self.different)
        order = np.lexsort((-self.counts, owner))
        self.best = self.keys[order[starts]] % base

    def share(self, contexts: np.ndarray, tokens: np.ndarray, lower: np.ndarray, discount: float) -> np.ndarray:
        """Return the interpolated probabilities, given those of the `lower` order, which unseen contexts keep."""
        place, seen = _find(self.contexts, contexts)
        pair, known = _find(self.keys, contexts * self.base + tokens)
        times = np.where(known, self.counts[pair], 0)
        found = np.maximum(times - discount, 0) + discount * self.different[place] * lower
        return np.where(seen, found / self.totals[place], lower)

    def likeliest(self, contexts: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        """Return the most frequent token of each context, or `otherwise`."""
        place, seen = _find(self.contexts, contexts)
        return np.where(seen, self.best[place], otherwise)


def _find(known: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return place, known[place] == wanted


class _Counts:
    """Counts of tokens between two others, after one, before one, and alone, in documents of at least one token."""

    def __init__(self, documents: list[np.ndarray], size: int) -> None:
        # Beyond all tokens: the edge of a document, and what is not known.
        self.size, self.base = size, size + 2
        stream = np.concatenate([[size], *(np.append(document, size) for document in documents)]).astype(np.int64)
        inside = np.flatnonzero(stream[1:-1] != size) + 1
        before, tokens, after = stream[inside - 1], stream[inside], stream[inside + 1]
        self.both = _Table(before * self.base + after, tokens, self.base)
        self.before = _Table(before, tokens, self.base)
        self.after = _Table(after, tokens, self.base)
        self.alone = _Table(np.zeros_like(tokens), tokens, self.base)
        self.parameters = sum(len(table.keys) for table in (self.both, self.before, self.after, self.alone))

    def scores(self, before: np.ndarray, tokens: np.ndarray, after: np.ndarray, discount: float) -> MaskedScores:
        """Return the scores of predicting tokens from their neighbours."""
        nothing, pair = np.zeros_like(tokens), before * self.base + after
        shares = self.alone.share(nothing, tokens, np.full(len(tokens), 1 / self.size), discount)
        one, other = (
            table.share(context, tokens, shares, discount)
            for table, context in ((self.before, before), (self.after, after))
        )
        shares = self.both.share(pair, tokens, (one + other) / 2, discount)
        guess = self.alone.likeliest(nothing, nothing)
        guess = self.before.likeliest(before, self.after.likeliest(after, guess))
        guess = self.both.likeliest(pair, guess)
        return masked_scores(float(-np.log(shares).sum()), float((guess == tokens).sum()), len(tokens))


def _questions(rows: list[dict[str, np.ndarray]], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts before each token to be predicted, as the model sees them, the tokens, and contexts after them."""
    found: list[list[np.ndarray]] = [[], [], []]
    for row in rows:
        inputs, documents, labels = row["input_ids"], row["document_ids"], row["labels"]
        edge = documents[1:] != documents[:-1]
        # Where the row ends, its document may go on.
        before = np.concatenate([[size + 1], np.where(edge, size, inputs[:-1])])
        after = np.concatenate([np.where(edge, size, inputs[1:]), [size + 1]])
        chosen = labels >= 0
        for part, values in zip(found, (before, labels, after), strict=True):
            part.append(values[chosen])
    return tuple(np.concatenate([np.zeros(0, dtype=np.int64), *part]) for part in found)  # type: ignore[return-value]
