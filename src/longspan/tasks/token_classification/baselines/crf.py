"""A conditional random field over features of words, as taggers had before they learned features."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from datasets import Dataset

from longspan.tasks.base import Baseline, Fitted, Recipe
from longspan.tasks.prepared import check_validation
from longspan.tasks.token_classification.labelled_documents import by_sentence, read
from longspan.tasks.token_classification.labels import to_iob2
from longspan.tasks.token_classification.options import TokenData, TrainingOptions
from longspan.tasks.token_classification.scores import TokenScores, token_scores

#: Weights of the squared norm from which the validation split chooses.
_STRENGTHS = (0.1, 1.0)
_ITERATIONS = 100
_AFFIX = 4


class Crf(Baseline[TokenScores]):
    """A linear-chain CRF over words, their neighbours, beginnings, endings and shapes (CRFsuite), sentence by sentence.

    Its features are those of Ratnaparkhi 1996, and pairs of neighbouring words.
    """

    packages: ClassVar[tuple[str, ...]] = ("pycrfsuite",)

    def fit(self, recipe: Recipe[TokenData, TrainingOptions]) -> Fitted[TokenScores]:
        import tempfile

        import pycrfsuite

        data = recipe.data
        documents = read(data)
        splits = documents.loaded.splits
        check_validation(splits)
        plain = documents.scheme == "plain"
        known = {
            name: [(_features(words, extra), to_iob2(labels, documents.scheme).labels)
                   for words, extra, labels in _sentences(split)]
            for name, split in splits.items()
        }  # fmt: skip
        best: tuple[float, Fitted[TokenScores]] | None = None
        for strength in _STRENGTHS:
            trainer = pycrfsuite.Trainer(verbose=False)
            trainer.set_params({"c2": strength, "max_iterations": _ITERATIONS})
            for features, labels in known["train"]:
                trainer.append(features, labels)
            with tempfile.NamedTemporaryFile(suffix=".crfsuite") as file:
                trainer.train(file.name)
                tagger = pycrfsuite.Tagger()
                tagger.open(file.name)
                scores = {
                    name: token_scores(
                        [labels for _, labels in sentences],
                        [tagger.tag(features) for features, _ in sentences],
                        documents.names,
                        plain=plain,
                    )
                    for name, sentences in known.items()
                    if name != "train"
                }
                size = len(tagger.info().state_features) + len(tagger.info().transitions)
            found = Fitted(scores, {"c2": strength}, size)
            if best is None or scores["validation"].f1 > best[0]:
                best = scores["validation"].f1, found
        assert best is not None
        return best[1]


def _sentences(rows: Dataset) -> Iterator[tuple[list[str], list[str] | None, list[str]]]:
    for row in rows:
        parts: list[Any] = [by_sentence(row[name], row["sentences"]) for name in ("tokens", "labels")]
        extra = by_sentence(row["feature"], row["sentences"]) if row.get("feature") else itertools.repeat(None)
        yield from ((words, more, labels) for words, labels, more in zip(*parts, extra, strict=False))


def _features(words: Sequence[str], extra: Sequence[str] | None) -> list[list[str]]:
    lower = [word.lower() for word in words]
    found = []
    for place, word in enumerate(words):
        own = ["bias", f"w={lower[place]}", f"form={word}", f"shape={_shape(word)}"]
        own += [f"begin={lower[place][:size]}" for size in range(1, _AFFIX + 1)]
        own += [f"end={lower[place][-size:]}" for size in range(1, _AFFIX + 1)]
        for offset in (-2, -1, 1, 2):
            there = 0 <= place + offset < len(words)
            near = lower[place + offset] if there else "<>"
            own.append(f"w{offset}={near}")
            if there and abs(offset) == 1:
                own += [f"end{offset}={near[-3:]}", f"shape{offset}={_shape(words[place + offset])}"]
            if extra is not None:
                own.append(f"x{offset}={extra[place + offset] if there else '<>'}")
        before = lower[place - 1] if place else "<>"
        after = lower[place + 1] if place + 1 < len(words) else "<>"
        own += [f"w-1,w={before} {lower[place]}", f"w,w+1={lower[place]} {after}"]
        if extra is not None:
            own += [f"x={extra[place]}", f"x-1,x={extra[place - 1] if place else '<>'} {extra[place]}"]
        found.append(own)
    return found


def _shape(word: str) -> str:
    kinds = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)
    return "".join(kind for kind, _ in itertools.groupby(kinds))
