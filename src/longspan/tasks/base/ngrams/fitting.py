"""Fitting the wide part of a classifier before its deep part is trained: `fit_wide`.

Its logits are a mean of multinomial logistic regressions over the n-grams that documents have. One is weighted by
naive Bayes (Wang and Manning 2012, https://aclanthology.org/P12-2018): W_c = r_c ⊙ v_c with the log-count ratios
r_c = log((p_c / |p_c|) / (q_c / |q_c|)), where p_c and q_c count the training documents of class c, and of the others,
with each n-gram, and one more. Another has TF-IDF vectors, of single tokens or of up to three, or of tokens and
characters. Where documents are few, a third is weighted by naive Bayes and has n-grams of characters. All have the
penalty λ/2 |v|² and are convex, so there is one solution whatever the seed. Class frequencies that may be chance are
then pulled to equal ones (`class_shift`).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from datasets.utils import tqdm
from torch import Tensor

from longspan.errors import UserError
from longspan.machine.memory import memory_limit
from longspan.models.wide.classifier import FOLDS, LONGEST, Wide, fold_of, ngram_hashes
from longspan.tasks.base.ngrams.bags import Bags, batches
from longspan.tasks.base.ngrams.kinds import (
    BAYES,
    CHARACTERS,
    LATENT,
    SPELLED,
    TFIDF,
    TFIDF_PAIRS,
    TFIDF_SPELLED,
    Counted,
    CountedNumbers,
    Kind,
    Model,
)
from longspan.tasks.base.ngrams.latent import Latent
from longspan.training.lengths import targets

#: Folds are held out one after another to choose λ, until this number of documents was.
ENOUGH = 500
#: Documents with at most this number of tokens in all are few: more is tried for them.
FEW = 2**19
#: A weaker penalty is tried as long as the one before left so much of the loss at most, or gains still grow.
WORTH = 0.99
#: Shares in the mean are multiples of 1/STEPS. What pulls them towards equal ones, in nats: documents by the hundred
#: outweigh it.
STEPS, PULL = 12, 10.0
#: Places in the table, and places times classes, where recipes do not say how many: what is fitted within minutes.
MOST, MOST_WEIGHTS = 2**20, 2**22
#: Numbers of four bytes for each weight: of each fold's regression, and of all kinds at once where threads are many.
_COPIES = 80


@dataclass(frozen=True)
class Chosen:
    """Best setting on held-out documents: the kinds in the mean, with their penalties and shares."""

    kinds: tuple[Kind, ...]
    penalties: tuple[float, ...]
    shares: tuple[float, ...]


def few(documents: Dataset) -> bool:
    """Return whether tokenised documents, with the column `length`, are so few that characters are worth their time."""
    return sum(documents["length"][:]) <= FEW


def table_size(documents: Dataset, classes: int, characters: bool, more: int = 0) -> int:
    """Table size at which most n-grams of documents have a place of their own: a power of 2, within bounds.

    Args:
        documents: Tokenised documents with the column `length`.
        classes: Number of weights of each place.
        characters: Whether there are n-grams of characters, too.
        more: Number of further n-grams.
    """
    # Of the n-grams of a text, not many more than half are different.
    wanted = LONGEST * sum(documents["length"][:]) * (1 + characters) + 2 * more
    most = min(MOST, MOST_WEIGHTS // classes)
    return 1 << max(4, min(wanted.bit_length(), most.bit_length() - 1))


def check_memory(places: int, classes: int) -> None:
    """Raise UserError if weights for this number of places and classes do not fit into this machine's memory."""
    needed = _COPIES * places * classes * 4
    memory = memory_limit()
    if needed > memory:
        raise UserError(
            f"expected weights of n-grams that can be fitted in {memory / 2**30:.0f} GiB of memory, got {places:,} "
            f"places for {classes:,} classes, which take {needed / 2**30:.0f} GiB; lower model.wide_buckets."
        )


def fit_wide(
    wide: Wide,
    documents: Dataset,
    class_weights: Sequence[float] | None,
    validation: Dataset | None = None,
    kind: type[Counted] = Counted,
    standard: tuple[float, float] = (0.0, 1.0),
    latent: Latent | None = None,
) -> Chosen:
    """Fit the tables of a model's wide part to training documents, and return what was chosen for it.

    Args:
        wide: The part, changed in place. Its `spelling`, if there is one, says which n-grams of characters tokens have;
            it is taken away if they do not help.
        documents: Tokenised documents with the columns `input_ids`, `length` and `labels`.
        class_weights: `(c,)` what multiplies the loss of documents of each class; None is 1.
        validation: Such documents, which may be of other authors and topics: characters, which know these best, are
            left out where they predict them worse, by more than chance does.
        kind: Whether documents have a class, labels or a number each.
        standard: Mean and standard deviation of the training documents' numbers, for regression.
        latent: Directions of texts without labels, by token, if there are any.
    """
    weights = np.ones(len(wide.bias)) if class_weights is None else np.array(class_weights)
    known = np.zeros(0, np.int64) if latent is None else np.flatnonzero(latent.idf)
    single = ngram_hashes(torch.from_numpy(known).view(-1, 1), None)[:, 0, 0].numpy()
    _give_places(wide, np.concatenate([Bags.of(documents, wide.hashed, 2**31).grams, single]))
    found = Bags.of(documents, wide.counts, wide.buckets)
    placed = single % wide.buckets
    # Of equal places, one n-gram has it.
    there = wide.keys.numpy()[placed] == single
    bags, used = _numbered(found, placed[there])
    tokens, folds = _tokens_and_folds(wide, documents)
    tokens[placed[there]] = 1
    labels = _labels(documents, kind, standard)
    counted = kind(bags, labels.numpy(), weights, tokens[used])
    if latent is not None:
        numbers = np.zeros(wide.buckets, np.int64)
        numbers[used] = np.arange(len(used))
        counted = replace(counted, latent=latent.among(known[there], numbers[placed[there]], len(used)))
    vectors = (*TFIDF, TFIDF_PAIRS) if few(documents) else TFIDF
    vectors = vectors if latent is None else (*vectors, *LATENT)
    vectors = vectors if wide.spelling is None else (*vectors, TFIDF_SPELLED)
    spelled = [] if wide.spelling is None else [(SPELLED,)]
    groups: list[Sequence[Kind]] = [BAYES, vectors, *spelled] if counted.bayes else [vectors]
    shift = counted.shift()
    # Compiled loops and sums do not hold the interpreter's lock.
    with (
        ThreadPoolExecutor(torch.get_num_threads()) as pool,
        tqdm(total=len(groups) + sum(map(len, groups)), desc="Fitting n-grams", leave=False) as bar,
    ):

        def map_with_progress(function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
            found = []
            for result in pool.map(function, arguments):
                found.append(result)
                bar.update()
            return found

        choices = _choose(counted, groups, map_with_progress)
        penalties = {
            kind: penalty for every in choices for kind, penalty in zip(every.kinds, every.penalties, strict=True)
        }
        models = {kind: Model(kind, counted) for kind in penalties}
        bar.total += len(models) - len(groups)
        solved = map_with_progress(lambda kind: models[kind].solve(penalties[kind]), models)
    places, solutions = torch.from_numpy(used), dict(zip(models, solved, strict=True))

    def take(chosen: Chosen) -> None:
        for tensor in (wide.weight, wide.tfidf_weight, wide.bias):
            tensor.zero_()
        for kind, share in zip(chosen.kinds, chosen.shares, strict=True):
            table = wide.tfidf_weight if kind.tfidf else wide.weight
            table[places] += torch.from_numpy(share * solutions[kind].weights)
            wide.bias += torch.from_numpy(share * solutions[kind].bias)
            if kind.tfidf:
                wide.idf[places] = torch.from_numpy(models[kind].idf).float()
        wide.bias += shift

    with torch.no_grad():
        chosen = choices[0]
        take(chosen)
        if len(choices) > 1 and validation is not None:
            having = _losses(wide, validation, counted, standard)
            take(choices[1])
            if _larger(having - _losses(wide, validation, counted, standard)):
                chosen = choices[1]
            take(chosen)
    if not any(kind.spelled() and share for kind, share in zip(chosen.kinds, chosen.shares, strict=True)):
        wide.spelling = None
    _fit_evidence(wide, counted, folds, places)
    return chosen


def _labels(documents: Dataset, kind: type[Counted], standard: tuple[float, float]) -> Tensor:
    """Targets of documents as their kind has them."""
    labels, (mean, scale) = targets(documents), standard
    if kind is not CountedNumbers:
        return labels
    # Rounded, so that numbers in another unit, rounded there to float32, are the same.
    return ((labels.double().unsqueeze(1) - mean) / scale).round(decimals=5)


def _losses(wide: Wide, documents: Dataset, counted: Counted, standard: tuple[float, float]) -> Tensor:
    """Losses of predicting documents, (n,), of at most `ENOUGH`, evenly spread."""
    documents = documents.select(np.linspace(0, len(documents) - 1, min(len(documents), ENOUGH)).astype(int).tolist())
    # A document may be empty.
    rows = [(torch.tensor([ids or [0]]), torch.full((1, len(ids) or 1), bool(ids))) for ids in documents["input_ids"]]
    logits = torch.cat([wide(ids, mask) for ids, mask in rows])
    labels = _labels(documents, type(counted), standard)
    return counted.losses(logits, labels) * counted.importance(labels)


def _larger(differences: Tensor) -> bool:
    """Return whether differences (n,) are above zero by more than two standard errors of their mean."""
    n = len(differences)
    return n > 1 and float(differences.mean()) > 2 * float(differences.std()) / n**0.5


def _give_places(wide: Wide, grams: np.ndarray) -> None:
    """Give each place in the table to the n-gram that is most frequent of those hashed there."""
    hashes, counts = np.unique(grams, return_counts=True)
    hashes = hashes[np.argsort(counts, kind="stable")]
    keys = np.full(wide.buckets, -1, np.int32)
    # Of equal places the last one stays.
    keys[hashes % wide.buckets] = hashes
    wide.keys.copy_(torch.from_numpy(keys))


def _tokens_and_folds(wide: Wide, documents: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return of how many tokens the n-gram at each place is made, or `CHARACTERS`, and the fold of each document."""
    tokens, folds = (
        torch.full((wide.buckets,), CHARACTERS, dtype=torch.int8),
        torch.zeros(len(documents), dtype=torch.long),
    )
    for batch, ids, mask in batches(documents, "Measuring n-grams"):
        hashes = ngram_hashes(ids, mask)
        places = hashes % wide.buckets
        for number in range(LONGEST):
            tokens[places[..., number][wide.keys[places[..., number]] == hashes[..., number]]] = number + 1
        folds[torch.tensor(batch)] = fold_of(ids, mask)
    return tokens.numpy(), folds.numpy()


def _fit_evidence(wide: Wide, documents: Counted, folds: np.ndarray, places: Tensor) -> None:
    """Set the log-count ratios of all training documents, and those without each fold."""
    # Evidence is of tokens.
    of_tokens = (documents.tokens != CHARACTERS)[:, None]
    sums = documents.sums() * of_tokens
    wide.ratio[places] = torch.from_numpy(documents.ratios(sums))
    held_out = torch.zeros(FOLDS, *wide.ratio.shape, dtype=torch.float16)
    for fold in range(FOLDS):
        rest = sums - documents.part(folds == fold).sums() * of_tokens
        held_out[fold, places] = torch.from_numpy(documents.ratios(rest)).half()
    wide.held_out = held_out


def _numbered(bags: Bags, more: np.ndarray) -> tuple[Bags, np.ndarray]:
    """Return the bags with their n-grams renumbered, and the previous number of each.

    Those that no document has are left out, but for some `more`. What many documents have comes first, so that caches
    keep it.
    """
    used, numbers, documents = np.unique(bags.grams, return_inverse=True, return_counts=True)
    order = np.argsort(-documents, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    used = np.concatenate([used[order], np.setdiff1d(more, used)])
    return replace(bags, grams=rank[numbers], size=len(used)), used


def _choose(
    documents: Counted,
    groups: Sequence[Sequence[Kind]],
    each: Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]],
) -> list[Chosen]:
    """Best setting on held-out documents, with a kind of each group, and the best without characters if that has any.

    `each` maps a function over arguments.

    A stratified fifth of the documents is held out after the other, until `ENOUGH` were.
    """
    labels = documents.labels
    # Documents come class by class, so that consecutive ones are spread over the folds; and the same ones each time.
    fold = np.empty(len(labels), np.int64)
    fold[np.lexsort((np.random.default_rng(0).random(len(labels)), documents.strata()))] = (
        np.arange(len(labels)) % FOLDS
    )
    # Copies of a document held out would tell its label.
    fold = fold[documents.bags.first_copies()]
    tried = [number for number in range(FOLDS) if number * len(labels) / FOLDS < ENOUGH and (fold == number).any()]
    truth = torch.from_numpy(np.concatenate([labels[fold == number] for number in tried]))
    importance = documents.importance(truth)

    def loss(logits: Tensor) -> float:
        return float(documents.losses(logits, truth) @ importance)

    nothing = loss(documents.constant().expand(len(truth), -1))

    def best(kind: Kind) -> tuple[float, Tensor]:
        """Return the penalty with the lowest loss on the way, and the logits there."""
        models = [Model(kind, documents.part(fold != number)) for number in tried]
        held_out = [
            model.features(documents.bags.part(fold == number)) for model, number in zip(models, tried, strict=True)
        ]
        found: list[tuple[float, float, Tensor]] = []
        for penalty in kind.penalties:
            parts = [model.solve(penalty).logits(bags) for model, bags in zip(models, held_out, strict=True)]
            logits = torch.cat(parts)
            found.append((loss(logits), penalty, logits))
            if _flat([nothing, *(each[0] for each in found)]):
                break
        return min(found, key=lambda each: each[0])[1:]

    # Those that take longest first.
    kinds = sorted((kind for group in groups for kind in group), key=lambda kind: -max(kind.sizes))
    found = dict(zip(kinds, each(best, kinds), strict=True))

    def mean(chosen: Sequence[Kind], shares: Sequence[float]) -> float:
        logits = torch.stack([share * found[kind][1] for kind, share in zip(chosen, shares, strict=True)]).sum(0)
        return loss(logits) + PULL * sum((share - 1 / len(shares)) ** 2 for share in shares)

    def best_of(every: Iterable[tuple[Sequence[Kind], tuple[float, ...]]]) -> list[Chosen]:
        chosen, shares = min(every, key=lambda each: mean(*each))
        return [Chosen(tuple(chosen), tuple(found[kind][0] for kind in chosen), shares)]

    every = list(itertools.product(itertools.product(*groups), _shares(len(groups))))
    without = [each for each in every if not any(kind.spelled() and share for kind, share in zip(*each, strict=True))]
    first = best_of(every)
    return first + (best_of(without) if without and (first[0].kinds, first[0].shares) not in without else [])


def _flat(losses: Sequence[float]) -> bool:
    """Return whether weaker penalties are not worth trying, given the losses of the stronger ones; the first has no
    n-grams.

    The strongest penalties leave the loss nearly as it is without n-grams: gains are small, but grow.
    """
    gains = [one - other for one, other in itertools.pairwise(losses)]
    return len(gains) > 1 and losses[-1] > WORTH * losses[-2] and gains[-1] < gains[-2]


def _shares(parts: int) -> Iterator[tuple[float, ...]]:
    """Yield the tuples of multiples of 1/STEPS that add up to 1."""
    for numbers in itertools.product(range(STEPS + 1), repeat=parts):
        if sum(numbers) == STEPS:
            yield tuple(number / STEPS for number in numbers)
