"""Counting n-grams of the recipe's own tokens: `Ngram`."""

from datasets import Dataset

from longspan.data.text.long_documents import token_arrays
from longspan.data.text.processor import tokenizer_of
from longspan.models.heads.causal_lm import CausalLmSettings
from longspan.models.wide.kneser_ney import KneserNey
from longspan.tasks.base.corpora import excerpt
from longspan.tasks.base.task import Counted, Counts, Fitted, Prepared, Recipe
from longspan.tasks.language_modelling.counting import count, losses
from longspan.tasks.language_modelling.excerpts import excerpt_scores
from longspan.tasks.language_modelling.scores import LanguageScores


class Ngram(Counts[LanguageScores]):
    """Interpolated modified Kneser-Ney counts of the recipe's tokens, of the order with the lowest validation loss.

    The order is raised as long as the loss on the validation split falls, to `HIGHEST` at most. A document's first
    tokens are predicted from all that comes before them, its end from what it ends with.

    Source: Kneser and Ney 1995; Chen and Goodman 1999 (see `KneserNey`).
    """

    def count(self, recipe: Recipe, prepared: Prepared) -> Counted:
        most = recipe.model.get("wide_ngrams", CausalLmSettings.wide_ngrams)
        model = count(prepared, recipe.options.max_eval_tokens, most)
        return Counted(
            {"wide_sizes": list(model.sizes)}, lambda entered: entered.wide.counts.load_state_dict(model.state_dict())
        )

    def fit(self, recipe: Recipe) -> Fitted[LanguageScores]:
        prepared = recipe.task.prepare(recipe)
        most, end = recipe.options.max_eval_tokens, tokenizer_of(prepared.processor).eos_token_id
        model = count(prepared, most)
        found = {"validation": _scores(model, prepared.splits["validation"], most, end)}
        if "test" in prepared.splits:
            found["test"] = _scores(model, prepared.splits["test"], most, end)
        return Fitted(found, {"order": model.order}, model.vocab_size + sum(model.sizes))


def _scores(model: KneserNey, split: Dataset, most: int, end: int) -> LanguageScores:
    """Return the scores for what training runs score of a split."""
    scored = excerpt(split["length"][:], most)
    return excerpt_scores(split, scored, losses(model, token_arrays(split), scored, end))
