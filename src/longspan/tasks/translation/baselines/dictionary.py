"""Word by word, with a dictionary learned from pairs: `Dictionary`."""

import re
from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from longspan.tasks.base.task import Baseline, Fitted, Recipe, read_splits
from longspan.tasks.translation.scores import TranslationScores, translation_scores

_WORD = re.compile(r"\w+")
#: Steps of EM that validation chooses from.
STEPS = (1, 3, 5, 10)


class Dictionary(Baseline[TranslationScores]):
    """Each word of the source replaced by its likeliest translation, in the order of the source.

    Translations are those of IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003), fitted to the training
    pairs by EM; what is no word, and words not seen in training, stay as they are. The validation split chooses the
    number of steps by chrF.
    """

    def fit(self, recipe: Recipe) -> Fitted[TranslationScores]:
        splits = read_splits(recipe)
        model = WordModel(splits["train"]["source"][:], splits["train"]["target"][:])
        known, taken = {}, 0
        for steps in STEPS:
            model.fit(steps - taken)
            known[steps], taken = model.dictionary(), steps
        steps, words = max(known.items(), key=lambda one: _scored(splits["validation"], one[1]).chrf)
        scores = {name: _scored(rows, words) for name, rows in splits.items() if name != "train"}
        return Fitted(scores, {"steps": steps}, len(model.chances))


class WordModel:
    """IBM model 1 with an empty source word: p(f | e) of target words f given the words of the source.

    A step of EM on the pairs of words that occur together in a sentence, where c is the number of times:
        p(e_i | f_j) = t(f_j | e_i) / Σ_i' t(f_j | e_i'),   t(f | e) ∝ Σ p(e | f) over all pairs.

    Args:
        sources: Texts, whose words are lower-cased.
        targets: The text of each.

    Attributes:
        chances: t of each pair of words that occurs.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        # Word 0 of the source is the empty one.
        self.source_words: dict[str, int] = {"": 0}
        self.target_words: dict[str, int] = {}
        keys, groups = [], []
        place = 0
        for source, target in zip(sources, targets, strict=True):
            from_words = [0, *_numbers(source.lower(), self.source_words)]
            to_words = _numbers(target, self.target_words)
            keys.append((np.array(from_words)[None] << 32 | np.array(to_words, dtype=np.int64)[:, None]).ravel())
            groups.append(np.repeat(np.arange(place, place + len(to_words)), len(from_words)))
            place += len(to_words)
        pairs, self._pair = np.unique(np.concatenate(keys), return_inverse=True)
        self._group, self._places = np.concatenate(groups), place
        self._from, self._to = pairs >> 32, pairs & 0xFFFFFFFF
        self.chances = np.ones(len(pairs))

    def fit(self, steps: int) -> None:
        """Take steps of EM."""
        for _ in range(steps):
            own = self.chances[self._pair]
            shares = own / np.bincount(self._group, own, self._places)[self._group]
            counts = np.bincount(self._pair, shares, len(self.chances))
            self.chances = counts / np.bincount(self._from, counts)[self._from]

    def dictionary(self) -> dict[str, str]:
        """Return the likeliest translation of each source word; of equals, the first that training had."""
        order = np.lexsort((self._to, -self.chances, self._from))
        first = np.unique(self._from[order], return_index=True)[1]
        targets = [*self.target_words]
        best = dict(zip(self._from[order][first].tolist(), self._to[order][first].tolist(), strict=True))
        return {word: targets[best[number]] for word, number in self.source_words.items() if word and number in best}


def translate(source: str, words: dict[str, str]) -> str:
    """Return a text with each word replaced; one that begins with a capital letter keeps it at the beginning."""

    def replaced(found: re.Match[str]) -> str:
        known = words.get(found[0].lower(), found[0])
        return known[:1].upper() + known[1:] if not source[: found.start()].strip() and found[0][0].isupper() else known

    return _WORD.sub(replaced, source)


def _numbers(text: str, known: dict[str, int]) -> list[int]:
    return [known.setdefault(word, len(known)) for word in _WORD.findall(text)]


def _scored(rows: Dataset, words: dict[str, str]) -> TranslationScores:
    return translation_scores([translate(text, words) for text in rows["source"][:]], rows["target"][:])
