"""The source itself: `Copy`."""

from longspan.tasks.base.task import Baseline, Fitted, Recipe, read_splits
from longspan.tasks.translation.scores import TranslationScores, translation_scores


class Copy(Baseline[TranslationScores]):
    """The source, unchanged: what names, numbers and words that both sides share are worth."""

    def fit(self, recipe: Recipe) -> Fitted[TranslationScores]:
        splits = read_splits(recipe)
        scores = {
            name: translation_scores(rows["source"][:], rows["target"][:])
            for name, rows in splits.items()
            if name != "train"
        }
        return Fitted(scores, {}, 0)
