"""Linear-chain CRFs over hashed features of words: chosen on the validation split, and cross-fitted."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from datasets.utils import tqdm
from torch import Tensor

from longspan.models.linear_chain import LinearChain
from longspan.models.wide.chain import FOLDS, WideChain
from longspan.models.wide.word_features import NOTHING
from longspan.ops.crf import best_path
from longspan.tasks.token_classification.crf_fitting import LabelledWords, Weights, fit
from longspan.tasks.token_classification.labels import OUTSIDE

#: Weights of the squared norm, each with a dropout of features, from which the validation split chooses.
SETTINGS = ((0.3, 0.2), (1.0, 0.3))
#: The rarest features are left out where all of them would have more weights.
_MOST_WEIGHTS = 2**24
#: Words that are scored at once, and sentences that are labelled at once.
_WORDS, _ROWS = 2**13, 256
#: Where a fold has a larger share of the words, the others say little: the network reads nothing in training.
_LARGEST_FOLD = 0.6


@dataclass(frozen=True)
class HashedSentences:
    """Sentences as hashed features.

    Attributes:
        hashes: `(w, f)` int64.
        labels: `(w,)` numbers of labels, `IGNORED` where unknown.
        sizes: `(n,)` how many words each sentence has.
        folds: `(n,)` the fold of each.
    """

    hashes: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray
    folds: np.ndarray


@dataclass(frozen=True)
class FittedChain:
    """What predicts the validation split best."""

    keys: np.ndarray
    words: LabelledWords
    weights: Weights
    penalty: float
    dropout: float

    def model(self, labels: int) -> WideChain:
        """Return the weights as a part of a model."""
        chain = WideChain(len(self.keys), labels, 0)
        self.enter(chain)
        return chain

    def enter(self, chain: WideChain) -> None:
        """Give the weights to a part with room for them."""
        if len(self.keys):
            chain.keys.copy_(torch.from_numpy(self.keys))
            chain.weight.copy_(torch.from_numpy(self.weights.of_features))
        chain.transitions.copy_(torch.from_numpy(self.weights.transitions))


def chosen(training: HashedSentences, validation: HashedSentences | None, names: Sequence[str]) -> FittedChain:
    """Fit with each penalty and dropout, and return what gets most of the validation split right."""
    keys, features = _renumbered(training.hashes, _MOST_WEIGHTS // len(names))
    words = LabelledWords(
        features, training.labels.astype(np.int32), np.concatenate([[0], np.cumsum(training.sizes)]).astype(np.int64)
    )
    allowed = _allowed(names)
    settings = SETTINGS if validation is not None else SETTINGS[-1:]
    # Compiled loops do not hold the interpreter's lock.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        fitted = list(
            tqdm(
                pool.map(lambda setting: fit(words, len(keys), allowed, *setting), settings),
                "Fitting features of words",
                len(settings),
                leave=False,
            )
        )
    every = [FittedChain(keys, words, weights, *setting) for weights, setting in zip(fitted, settings, strict=True)]
    if validation is None:
        return every[0]
    outside = names.index(OUTSIDE) if OUTSIDE in names else -1
    return max(every, key=lambda found: _score(found.model(len(names)), validation, names, outside))


def _score(model: WideChain, sentences: HashedSentences, names: Sequence[str], outside: int) -> float:
    """Return the F1 of words whose label is not `outside`."""
    given = np.concatenate([*paths(model, sentences, names), np.zeros(0, np.int64)])
    right = int(((given == sentences.labels) & (given != outside)).sum())
    return 2 * right / max(1, int((given != outside).sum()) + int((sentences.labels != outside).sum()))


def cross_fitted(training: HashedSentences, found: FittedChain, names: Sequence[str]) -> Tensor:
    """Return the weights without each fold, `(FOLDS, size, labels)` float16; all 0 where folds are too uneven."""
    held_out = torch.zeros(FOLDS, max(1, len(found.keys)), len(names), dtype=torch.float16)
    shares = np.bincount(training.folds, training.sizes, FOLDS) / max(1, training.sizes.sum())
    if shares.max() > _LARGEST_FOLD:
        return held_out
    allowed, size = _allowed(names), len(found.keys)

    def without(fold: int) -> np.ndarray:
        return fit(found.words.part(training.folds != fold), size, allowed, found.penalty, found.dropout).of_features

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        every = tqdm(pool.map(without, range(FOLDS)), "Cross-fitting features of words", FOLDS, leave=False)
        for fold, weights in enumerate(every):
            held_out[fold, :size] = torch.from_numpy(weights)
    return held_out


def _renumbered(hashes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes that occur in increasing order, and each one's number or -1.

    There are at most `most` of them: the most frequent ones, and of equally frequent ones those of the first columns.
    """
    # No hash is in two columns, as their kinds of features differ. Column by column takes less memory.
    every = [np.unique(column, return_counts=True) for column in hashes.T]
    keys, counts = (np.concatenate(each) for each in zip(*every, strict=True))
    keys, counts = keys[keys != NOTHING], counts[keys != NOTHING]
    if len(keys) > most:
        keys = keys[np.argsort(-counts, kind="stable")[:most]]
    keys = np.sort(keys)
    features = np.empty(hashes.shape, np.int32)
    for start in range(0, len(hashes), _WORDS):
        part = hashes[start : start + _WORDS]
        places = np.searchsorted(keys, part).clip(0, max(0, len(keys) - 1))
        features[start : start + _WORDS] = np.where(keys[places] == part, places, -1) if len(keys) else -1
    return keys, features


def _allowed(names: Sequence[str]) -> np.ndarray:
    transitions, *_ = LinearChain(list(names), learned=False)(torch.zeros(()))
    return (transitions == 0).numpy()


def paths(model: WideChain, sentences: HashedSentences, names: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield the numbers of the best labels of each sentence."""
    chain = LinearChain(list(names), learned=False)
    transitions, start, end = chain(model.transitions, model.transitions, torch.ones(2))
    counts, hashes = torch.from_numpy(sentences.sizes), sentences.hashes
    scores = [model.scores(torch.from_numpy(part)) for part in np.array_split(hashes, 1 + len(hashes) // _WORDS)]
    rows = torch.cat(scores).split(counts.tolist())
    for first in range(0, len(rows), _ROWS):
        lengths = counts[first : first + _ROWS]
        padded = torch.nn.utils.rnn.pad_sequence(rows[first : first + _ROWS], batch_first=True)
        best = best_path(padded, lengths, transitions, start, end).numpy()
        yield from (path[:length] for path, length in zip(best, lengths.tolist(), strict=True))
