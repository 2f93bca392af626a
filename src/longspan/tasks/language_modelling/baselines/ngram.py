"""Counting n-grams of the recipe's own tokens: `Ngram`."""

import itertools
from collections.abc import Iterator

import numpy as np
from datasets import Dataset

from longspan.data.text.long_documents import token_arrays
from longspan.data.text.processor import tokenizer_of
from longspan.tasks.base import Baseline, Fitted, Recipe
from longspan.tasks.excerpts import excerpt
from longspan.tasks.language_modelling.baselines._kneser_ney import KneserNey
from longspan.tasks.language_modelling.excerpts import excerpt_scores
from longspan.tasks.language_modelling.options import TrainingOptions
from longspan.tasks.language_modelling.scores import LanguageScores
from longspan.tasks.options import CorpusData
from longspan.tasks.prepared import check_validation

#: The highest order that is tried: no text that fits into memory has enough of longer n-grams.
HIGHEST = 8


class Ngram(Baseline[LanguageScores]):
    """Interpolated modified Kneser-Ney counts of the recipe's tokens, of the order with the lowest validation loss.

    The order is raised as long as the loss on the validation split falls, to `HIGHEST` at most. A document's first
    tokens are predicted from all that comes before them, its end from what it ends with.

    Source: Kneser and Ney 1995; Chen and Goodman 1999 (see `KneserNey`).
    """

    def fit(self, recipe: Recipe) -> Fitted[LanguageScores]:
        prepared = recipe.task.prepare(recipe)
        check_validation(prepared.splits)
        training, end = token_arrays(prepared.splits["train"]), tokenizer_of(prepared.processor).eos_token_id
        model = KneserNey(training, end=end, vocab_size=len(tokenizer_of(prepared.processor)))
        held_out: list[LanguageScores] = []
        for scores in _scores(model, recipe, prepared.splits["validation"]):
            held_out.append(scores)
            if len(held_out) == HIGHEST or scores.loss > min(found.loss for found in held_out):
                break
        order = 1 + min(range(len(held_out)), key=lambda number: held_out[number].loss)
        found = {"validation": held_out[order - 1]}
        if "test" in prepared.splits:
            found["test"] = next(itertools.islice(_scores(model, recipe, prepared.splits["test"]), order - 1, None))
        return Fitted(found, {"order": order}, model.parameters(order))


def _scores(model: KneserNey, recipe: Recipe[CorpusData, TrainingOptions], split: Dataset) -> Iterator[LanguageScores]:
    """Yield the scores of the models of order 1, 2 and so on for what training runs score of a split."""
    scored = excerpt(split["length"][:], recipe.options.max_eval_tokens)
    # The end after the part of a document is not one of its targets.
    parts = [document[:count] for document, count in zip(token_arrays(split), scored, strict=True)]
    wanted = np.concatenate([np.arange(len(part) + 1) < count for part, count in zip(parts, scored, strict=True)])
    for found in model.probabilities(parts):
        yield excerpt_scores(split, scored, -np.log(found[wanted]))
