"""The source itself: `Copy`."""

from longspan.data.sources.loading import load
from longspan.tasks.base.task import Baseline, Fitted, Recipe, check_validation
from longspan.tasks.translation.scores import TranslationScores, translation_scores


class Copy(Baseline[TranslationScores]):
    """The source, unchanged: what names, numbers and words that both sides share are worth."""

    def fit(self, recipe: Recipe) -> Fitted[TranslationScores]:
        splits = load(recipe.data, recipe.task.columns(recipe.data)).splits
        check_validation(splits)
        scores = {
            name: translation_scores(rows["source"][:], rows["target"][:])
            for name, rows in splits.items()
            if name != "train"
        }
        return Fitted(scores, {}, 0)
