"""Fitting the wide part of a classifier before its deep part is trained: `fit_wide`.

Its logits are a sum of multinomial logistic regressions over the n-grams that documents have, each times its scale. One
is weighted by naive Bayes (Wang and Manning 2012, https://aclanthology.org/P12-2018): W_c = r_c ⊙ v_c with the
log-count ratios r_c = log((p_c / |p_c|) / (q_c / |q_c|)), where p_c and q_c count the training documents of class c,
and of the others, with each n-gram, and one more. Another has TF-IDF vectors, of single tokens or of up to three, or of
tokens and characters. Where documents are few, a third is weighted by naive Bayes and has n-grams of characters. All
have the penalty λ/2 |v|² and are convex, so there is one solution whatever the seed. Class frequencies count once;
those that may be chance are then pulled to equal ones (`class_shift`).
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
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
from longspan.tasks.base.mixing import best_scales, calibrated_loss
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
#: Nats that other TF-IDF vectors have to gain over those of texts without labels: few documents choose by chance.
PREFERRED = 2.0
#: Places in the table, and places times classes, where recipes do not say how many: what is fitted within minutes.
MOST, MOST_WEIGHTS = 2**20, 2**22
#: Numbers of four bytes for each weight: of each fold's regression, and of all kinds at once where threads are many.
_COPIES = 80


@dataclass(frozen=True)
class Chosen:
    """Best setting on held-out documents: the kinds in the sum, with their penalties and scales."""

    kinds: tuple[Kind, ...]
    penalties: tuple[float, ...]
    scales: tuple[float, ...]


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
    every = Bags.of(documents, wide.hashed, 2**31)
    _give_places(wide, np.concatenate([every.grams, single]))
    found = every.placed(wide.keys.numpy())
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
    vectors = vectors if latent is None else (*vectors, LATENT)
    vectors = vectors if wide.spelling is None else (*vectors, TFIDF_SPELLED)
    spelled = [] if wide.spelling is None else [(SPELLED,)]
    groups: list[Sequence[Kind]] = [BAYES, vectors, *spelled] if counted.bayes else [vectors]
    constant = counted.constant()
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
        for tensor in (wide.weight, wide.tfidf_weight):
            tensor.zero_()
        wide.bias.copy_(constant + counted.shift())
        for kind, scale in zip(chosen.kinds, chosen.scales, strict=True):
            table = wide.tfidf_weight if kind.tfidf else wide.weight
            table[places] += torch.from_numpy(scale * solutions[kind].weights)
            wide.bias += scale * (torch.from_numpy(solutions[kind].bias) - constant)
            if kind.tfidf:
                wide.idf[places] = torch.from_numpy(models[kind].idf).float()

    with torch.no_grad():
        chosen = choices[0]
        take(chosen)
        if len(choices) > 1 and validation is not None:
            having = _losses(wide, validation, counted, standard)
            take(choices[1])
            if _larger(having - _losses(wide, validation, counted, standard)):
                chosen = choices[1]
            take(chosen)
    if not any(kind.spelled() and scale for kind, scale in zip(chosen.kinds, chosen.scales, strict=True)):
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
    sums = documents.sums * of_tokens
    wide.ratio[places] = torch.from_numpy(documents.ratios(sums))
    held_out = torch.zeros(FOLDS, *wide.ratio.shape, dtype=torch.float16)
    for fold in range(FOLDS):
        rest = sums - documents.part(folds == fold).sums * of_tokens
        held_out[fold, places] = torch.from_numpy(documents.ratios(rest)).half()
    wide.held_out = held_out


def _numbered(bags: Bags, more: np.ndarray) -> tuple[Bags, np.ndarray]:
    """Return the bags with their n-grams renumbered, and the previous number of each.

    Those that no document has are left out, but for some `more`. What many documents have comes first, so that caches
    keep it.
    """
    documents = np.bincount(bags.grams, minlength=bags.size)
    used = np.flatnonzero(documents)
    used = used[np.argsort(-documents[used], kind="stable")]
    rank = np.empty(bags.size, np.int32)
    rank[used] = np.arange(len(used))
    used = np.concatenate([used, np.unique(more[documents[more] == 0])])
    return replace(bags, grams=rank[bags.grams], size=len(used)), used


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
    held_out, rest = ([documents.part((fold == number) == of) for number in tried] for of in (True, False))
    truth = torch.from_numpy(np.concatenate([part.labels for part in held_out]))
    importance = documents.importance(truth)
    constants = [part.constant() for part in rest]
    constant = torch.cat([each.expand(len(part.labels), -1) for each, part in zip(constants, held_out, strict=True)])

    def losses(evidence: Tensor, truth: Tensor) -> Tensor:
        return documents.losses(evidence + constant, truth) * importance

    def loss(evidence: Tensor) -> float:
        return float(losses(evidence, truth).sum())

    def best(kind: Kind) -> tuple[float, float, float, Tensor]:
        """Lowest loss on the way, the factor and penalty there, and the evidence: logits beyond the constant ones."""
        models = [Model(kind, part) for part in rest]
        features = [model.features(part.bags) for model, part in zip(models, held_out, strict=True)]
        found: list[tuple[float, float, float, Tensor]] = []
        plain = [loss(torch.zeros_like(constant))]
        for penalty in kind.penalties:
            parts = zip(models, features, constants, strict=True)
            evidence = torch.cat([model.solve(penalty).logits(bags) - each for model, bags, each in parts])
            found.append((*calibrated_loss(evidence, loss), penalty, evidence))
            plain.append(loss(evidence))
            if _flat(plain):
                break
        return min(found, key=lambda each: each[0])

    # Those that take longest first.
    kinds = sorted((kind for group in groups for kind in group), key=lambda kind: -max(kind.sizes))
    found = dict(zip(kinds, each(best, kinds), strict=True))

    def choice(groups: Sequence[Sequence[Kind]]) -> Chosen:
        """The best kind of each group, and their scales."""
        kinds = [min(group, key=lambda kind: found[kind][0] - PREFERRED * bool(kind.directions)) for group in groups]
        scales = torch.tensor([found[kind][1] for kind in kinds])
        if len(kinds) > 1:
            parts = scales[:, None] * torch.stack([found[kind][3] for kind in kinds], 1)
            # What many texts say is trusted most; without them, kinds are alike.
            latent = torch.tensor([float(bool(kind.directions)) for kind in kinds])
            anchor = latent if latent.any() else torch.full((len(kinds),), 1 / len(kinds))
            scales *= best_scales(parts, truth, losses, lambda *rows: -losses(*rows), anchor, errors=2)
        return Chosen(tuple(kinds), tuple(found[kind][2] for kind in kinds), tuple(scales.tolist()))

    first = choice(groups)
    without = [[kind for kind in group if not kind.spelled()] for group in groups]
    characters = any(kind.spelled() and scale for kind, scale in zip(first.kinds, first.scales, strict=True))
    return [first, choice([group for group in without if group])] if characters else [first]


def _flat(losses: Sequence[float]) -> bool:
    """Return whether weaker penalties are not worth trying, given the losses of the stronger ones; the first has no
    n-grams.

    The strongest penalties leave the loss nearly as it is without n-grams: gains are small, but grow.
    """
    gains = [one - other for one, other in itertools.pairwise(losses)]
    return len(gains) > 1 and losses[-1] > WORTH * losses[-2] and gains[-1] < gains[-2]
