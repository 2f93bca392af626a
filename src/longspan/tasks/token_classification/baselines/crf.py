"""A conditional random field over features of words, as taggers had before they learned features."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from longspan.data.batches.streams import Stream, pad
from longspan.data.text.processor import tokenizer_of
from longspan.data.text.words import letters, word_starts
from longspan.models import LongspanForTokenClassification
from longspan.models.parts.losses import IGNORED
from longspan.models.parts.words import Torch, first_of_words, gathered
from longspan.models.wide.chain import FOLDS, WideChain
from longspan.models.wide.classifier import fold_of
from longspan.models.wide.word_features import characters_of, kinds_of_characters, lower_cases
from longspan.ops.words import word_features
from longspan.tasks.base.task import Counted, Counts, Fitted, Prepared, Recipe, check_validation
from longspan.tasks.token_classification.fitted_chain import HashedSentences, chosen, cross_fitted, paths
from longspan.tasks.token_classification.labelled_documents import by_sentence, read_documents
from longspan.tasks.token_classification.labels import to_iob2
from longspan.tasks.token_classification.options import TokenData, TrainingOptions
from longspan.tasks.token_classification.scores import TokenScores, token_scores
from longspan.training.lengths import scoring_batches

#: Tokens, or sentences, that are read at once.
_TOKENS, _SENTENCES = 2**15, 1000
_STREAMS = {
    "input_ids": Stream(mask="attention_mask"),
    "sentence_ids": Stream(),
    "feature_ids": Stream(),
    "labels": Stream(fill=IGNORED),
    "kept": Stream(),
}

_Labelled = tuple[list[str], list[str] | None, list[str]]


class Crf(Counts[TokenScores]):
    """A linear-chain CRF over words, their neighbours, beginnings, endings and shapes, sentence by sentence.

    Its features are those of Ratnaparkhi 1996, their conjunctions, runs of capitalised words, and short sentences.
    """

    def fit(self, recipe: Recipe[TokenData, TrainingOptions]) -> Fitted[TokenScores]:
        documents = read_documents(recipe.data)
        splits = documents.loaded.splits
        check_validation(splits)
        names = documents.names
        known: dict[str, list[_Labelled]] = {}
        for name, split in splits.items():
            rows = _sentences(split)
            known[name] = [(words, extra, to_iob2(labels, documents.scheme).labels) for words, extra, labels in rows]
        values = sorted({value for _, extra, _ in known["train"] for value in extra or []})
        hashed = {name: _of_words(sentences, values, names) for name, sentences in known.items()}
        found = chosen(hashed["train"], hashed["validation"], names)
        model = found.model(len(names))
        scores = {}
        for name, sentences in known.items():
            if name != "train":
                given = [[names[number] for number in path] for path in paths(model, hashed[name], names)]
                gold = [labels for *_, labels in sentences]
                scores[name] = token_scores(gold, given, names, plain=documents.scheme == "plain")
        size = sum(map(np.count_nonzero, (found.weights.of_features, found.weights.transitions)))
        return Fitted(scores, {"penalty": found.penalty, "dropout": found.dropout}, int(size))

    def count(self, recipe: Recipe[TokenData, TrainingOptions], prepared: Prepared) -> Counted:
        names = [prepared.config["id2label"][number] for number in range(len(prepared.config["id2label"]))]
        tokenizer, features = tokenizer_of(prepared.processor), bool(prepared.config.get("features"))
        begins, spelling = map(torch.from_numpy, (word_starts(tokenizer), letters(tokenizer)))
        reader = WideChain(0, len(names), len(tokenizer))
        reader.spelling.copy_(spelling)
        hashed = {
            name: _of_tokens(reader, begins, split, features)
            for name, split in prepared.splits.items()
            if name in ("train", "validation")
        }
        found = chosen(hashed["train"], hashed.get("validation"), names)
        held_out = cross_fitted(hashed["train"], found, names)

        def enter(model: PreTrainedModel) -> None:
            assert isinstance(model, LongspanForTokenClassification)
            assert model.wide is not None
            found.enter(model.wide)
            model.wide.held_out = held_out

        return Counted({"wide_size": len(found.keys)}, enter)


def _sentences(rows: Dataset) -> Iterator[_Labelled]:
    """Yield the words, further features and labels of each sentence."""
    for row in rows:
        parts: list[Any] = [by_sentence(row[name], row["sentences"]) for name in ("tokens", "labels")]
        extra = by_sentence(row["feature"], row["sentences"]) if row.get("feature") else itertools.repeat(None)
        yield from ((words, more, labels) for words, labels, more in zip(*parts, extra, strict=False))


def _of_words(sentences: Sequence[_Labelled], values: Sequence[str], names: Sequence[str]) -> HashedSentences:
    """Return sentences of words with their features; those of a word of which `values` lacks the further one are 0."""
    numbers = {value: number for number, value in enumerate(values, 1)}
    labels = {name: number for number, name in enumerate(names)}
    lower, kinds, hashes = lower_cases(), kinds_of_characters(), []
    for start in range(0, len(sentences), _SENTENCES):
        part = sentences[start : start + _SENTENCES]
        codes, sizes = characters_of([word for words, *_ in part for word in words])
        given = torch.tensor([numbers.get(value, 0) for _, extra, _ in part for value in extra or []])
        by_row = torch.tensor([len(words) for words, *_ in part])
        hashes.append(word_features(codes, sizes, by_row, given if values else None, lower, kinds, Torch).numpy())
    return HashedSentences(
        np.concatenate(hashes),
        np.array([labels.get(label, IGNORED) for *_, own in sentences for label in own], np.int64),
        np.array([len(words) for words, *_ in sentences]),
        np.zeros(len(sentences), np.int64),
    )


def _of_tokens(reader: WideChain, begins: Tensor, examples: Dataset, features: bool) -> HashedSentences:
    """Return the sentences of tokenised examples as the model reads them, without words labelled elsewhere."""
    columns = [*_STREAMS.keys() - {"attention_mask"}]
    rows = examples.select_columns(columns).with_format("numpy")[:]
    lengths = examples["length"][:]
    found: list[tuple[np.ndarray, ...]] = []
    for batch in scoring_batches(lengths, len(lengths), _TOKENS):
        given: Mapping[str, Tensor] = pad([{name: rows[name][row] for name in columns} for row in batch], _STREAMS)
        ids, mask = given["input_ids"], given["attention_mask"].bool()
        first = first_of_words(ids, begins, mask)
        words = gathered(first, given["sentence_ids"])
        hashes = reader.hashed(ids, mask, first, words.lengths, given["feature_ids"] if features else None)
        kept = given["kept"].bool()[first]
        folds = fold_of(ids, mask, FOLDS).unsqueeze(1).expand_as(first)[first]
        found.append(tuple(each[kept].numpy() for each in (hashes, given["labels"][first], words.row, folds)))
    features_of, known, sentences, fold = (np.concatenate(each) for each in zip(*_apart(found), strict=True))
    starts = np.flatnonzero(np.diff(sentences, prepend=-1))
    return HashedSentences(features_of, known, np.diff(starts, append=len(sentences)), fold[starts])


def _apart(batches: Sequence[tuple[np.ndarray, ...]]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield batches whose sentences are numbered one after the other."""
    start = 0
    for hashes, labels, sentences, folds in batches:
        yield hashes, labels, sentences + start, folds
        start += 1 + int(sentences.max(initial=-1))
