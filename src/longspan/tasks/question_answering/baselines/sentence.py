"""The sentence with the question's words, and the words next to them: `Sentence`."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from longspan.tasks.base.task import Baseline, Fitted, Recipe, read_splits
from longspan.tasks.question_answering.scores import AnswerScores, answer_scores, best_threshold

_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^.!?\n]*(?:[.!?](?!\s)[^.!?\n]*)*[.!?\n]?")
#: Numbers of words of an answer that validation chooses from; 0 is the whole sentence.
LENGTHS = (0, 1, 2, 3, 4, 6)


@dataclass(frozen=True)
class _Ranked:
    """A question with its best sentence: the words in it as (start, end), those of the question by their weights."""

    context: str
    expected: list[str]
    score: float
    sentence: tuple[int, int]
    words: list[tuple[int, int]]
    weights: list[float]

    def answer(self, length: int) -> str:
        """Return the sentence, or the `length` consecutive other words in it that are nearest to the question's
        words."""
        if not length:
            return self.context[slice(*self.sentence)].strip()
        asked = [place for place, weight in enumerate(self.weights) if weight]
        near = [
            0.0 if self.weights[place] else sum(self.weights[at] / (1 + abs(at - place)) for at in asked)
            for place in range(len(self.words))
        ]
        runs = [
            (sum(near[first : first + length]), -first)
            for first in range(len(self.words) - length + 1)
            if not any(self.weights[first : first + length])
        ]
        if not runs:
            return self.answer(length - 1)
        first = -max(runs)[1]
        return self.context[self.words[first][0] : self.words[first + length - 1][1]]


class Sentence(Baseline[AnswerScores]):
    """The sentence with the most of the question's words by TF-IDF, or the words in it that are nearest to these.

    Richardson et al. 2013, "MCTest", https://aclanthology.org/D13-1020, weigh a question's words by their rarity in the
    document, and answers by their distance to them. The validation split chooses the number of words in an answer.
    """

    def fit(self, recipe: Recipe) -> Fitted[AnswerScores]:
        splits = read_splits(recipe)
        ranked = {
            name: [
                _rank(row["question"], row["context"], row["answers"]["text"])
                for row in split.select_columns(["question", "context", "answers"])
            ]
            for name, split in splits.items()
            if name != "train"
        }
        none = any(not answers["text"] for answers in splits["train"]["answers"][:])
        thresholds = {length: _threshold(ranked["validation"], length) if none else None for length in LENGTHS}
        length, threshold = max(thresholds.items(), key=lambda one: _scored(ranked["validation"], *one).f1)
        scores = {name: _scored(rows, length, threshold) for name, rows in ranked.items()}
        return Fitted(scores, {"words": length, "threshold": threshold}, 1 + none)


def _rank(question: str, context: str, expected: list[str]) -> _Ranked:
    sentences = [found.span() for found in _SENTENCE.finditer(context) if found[0].strip()] or [(0, len(context))]
    words = [[found.span() for found in _WORD.finditer(context, *span)] for span in sentences]
    texts = [[context[slice(*span)].lower() for span in found] for found in words]
    holding = Counter(word for found in texts for word in set(found))
    asked = {
        word: math.log(1 + len(sentences) / holding[word])
        for word in set(_WORD.findall(question.lower()))
        if holding[word]
    }
    scores = [sum(asked.get(word, 0.0) for word in set(found)) for found in texts]
    number = max(range(len(sentences)), key=lambda at: (scores[at], -at))
    weights = [asked.get(word, 0.0) for word in texts[number]]
    return _Ranked(context, expected, scores[number], sentences[number], words[number], weights)


def _threshold(ranked: Sequence[_Ranked], length: int) -> float:
    given = [row.answer(length) for row in ranked]
    return best_threshold([row.score for row in ranked], given, [row.expected for row in ranked])


def _scored(ranked: Sequence[_Ranked], length: int, threshold: float | None) -> AnswerScores:
    given = ["" if threshold is not None and row.score < threshold else row.answer(length) for row in ranked]
    return answer_scores(given, [row.expected for row in ranked], threshold=threshold)
