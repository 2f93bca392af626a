"""The translation of the nearest training source: `Memory`."""

from longspan.tasks.base.baselines.retrieval import TFIDF_PACKAGES, nearest
from longspan.tasks.base.task import Baseline, Fitted, Recipe, read_splits
from longspan.tasks.translation.scores import TranslationScores, translation_scores


class Memory(Baseline[TranslationScores]):
    """The target of the training pair whose source is nearest, as a translation memory gives it.

    Near are TF-IDF vectors of words or of 1 to 4 characters within words with a large cosine. Validation chooses by
    chrF.
    """

    packages = TFIDF_PACKAGES

    def fit(self, recipe: Recipe) -> Fitted[TranslationScores]:
        splits = read_splits(recipe)
        known, targets = splits["train"]["source"][:], splits["train"]["target"][:]

        def scored(split: str, characters: bool) -> TranslationScores:
            found = nearest(known, splits[split]["source"][:], characters)
            return translation_scores([targets[number] for number in found], splits[split]["target"][:])

        tried = {characters: scored("validation", characters) for characters in (False, True)}
        best = max(tried, key=lambda characters: tried[characters].chrf)
        others = {name: scored(name, best) for name in splits if name not in ("train", "validation")}
        return Fitted({"validation": tried[best], **others}, {"features": "characters" if best else "words"}, 0)
