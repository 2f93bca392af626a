"""Counting clicks: `count_clicks` fits a `Ranker`, `best_scales` weighs it against a network."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from longspan.models.wide.ranker import FEATURES, Ranker
from longspan.results.parts import Parts
from longspan.tasks.base.mixing import ratio_of_sums
from longspan.tasks.recommendation.items import Items
from longspan.tasks.recommendation.ragged import Ragged
from longspan.tasks.recommendation.samples import Impressions, collate
from longspan.tasks.recommendation.scores import RecommendationScores, group_aucs, groups_of
from longspan.training.lengths import scoring_batches

#: The clicks of an impression are predicted from what was counted in the other folds.
FOLDS = 5
#: Number of shows of the mean kind that are added to those of a word, or of an item.
SMOOTHING = 8.0
#: What pulls the weights of counts towards 0, in nats, and how many candidates they are fitted to at most.
_RIDGE, _ENOUGH = 2.0, 400_000
#: Penalty that pulls the scales towards the counts alone, in nats: clicks by the hundred outweigh it.
_PRIOR = 20.0
#: Impressions, and clicks and candidates, that are scored together.
_TOGETHER, _CLICKS = 256, 65536


def count_clicks(tokens: Sequence[str], items: Items, training: Impressions) -> Ranker:
    """Count the clicks of training, and weigh what is counted by how well it tells clicks of other folds.

    Args:
        tokens: The tokens, empty texts for those that are no words.
        items: The catalogue, with the numbers of items that training knows.
        training: The impressions, all with what was clicked.
    """
    known, random = np.flatnonzero(items.known), np.random.default_rng(0)
    shown, clicked = training.candidates, training.clicked == 1
    ranker = _timed(len(tokens), items, training)
    words = _words(tokens)
    # What is no word is one of its own, which says nothing.
    ranker.token_words.copy_(torch.from_numpy(np.where(words < 0, np.arange(len(words)), words)))
    pairs = _pairs(items.title, words)
    frequency = np.bincount(pairs.word[np.isin(pairs.item, known)], minlength=len(tokens))
    idf = np.where(frequency > 0, np.log((1 + len(known)) / (1 + frequency)) + 1, 0)
    ranker.idf.copy_(torch.from_numpy(idf))

    # How often each item was shown, and clicked, in each fold.
    fold = random.integers(FOLDS, size=len(training))[shown.rows]
    tables = [
        np.bincount(shown.values[rows] * FOLDS + fold[rows], minlength=len(items) * FOLDS).reshape(-1, FOLDS)
        for rows in (slice(None), clicked)
    ]
    odds = _Odds.of([table.sum(1) for table in tables], pairs, len(tokens))
    ranker.word_odds.copy_(torch.from_numpy(odds.words * (idf > 0)))
    ranker.item_odds[items.known[known]] = torch.from_numpy(odds.items[known]).float()

    groups = groups_of(shown.offsets, training.names)
    chosen = _some(groups, clicked, random)
    if not chosen.any():
        return ranker
    others = [[table.sum(1) - table[:, number] for table in tables] for number in range(FOLDS)]
    without = [_Odds.of(each, pairs, len(tokens)) for each in others]
    rows = np.unique(shown.rows[chosen])
    found = features(ranker, items, training.part(rows))[chosen[np.isin(shown.rows, rows)]]
    for name, by_fold in (("words", [each.titles for each in without]), ("clicks", [each.items for each in without])):
        found[:, FEATURES.index(name)] = np.stack(by_fold)[fold[chosen], shown.values[chosen]]
    ranker.weights.copy_(_worthwhile(torch.from_numpy(found), clicked[chosen], groups[chosen]))
    return ranker


@torch.no_grad()
def features(ranker: Ranker, items: Items, impressions: Impressions) -> np.ndarray:
    """Return the features of all candidates, one impression after the other, `(n, f)` float64."""
    starts = impressions.candidates.offsets
    result = np.zeros((int(starts[-1]), len(ranker.weights)))
    for batch in scoring_batches(impressions.sizes.tolist(), _TOGETHER, _CLICKS):
        inputs, numbers = collate([impressions[row] for row in batch], None)
        read = items.counted(numbers)
        masks = {name: inputs[name].bool() for name in ("history_mask", "candidate_mask")}
        found = ranker.features(
            ranker.titles(read["input_ids"], read["attention_mask"]),
            read["item_ids"],
            inputs["history"],
            masks["history_mask"],
            inputs["candidates"],
            masks["candidate_mask"],
            ranker.ticks(impressions.times[np.asarray(batch)]),
        ).numpy()
        for row, values in zip(batch, found, strict=True):
            result[starts[row] : starts[row + 1]] = values[: starts[row + 1] - starts[row]]
    return result


def best_scales(parts: np.ndarray, impressions: Impressions) -> Tensor:
    """Factors of the scores of counts and network, `(2,)` float32, at least 0.

    They have the lowest loss of clicks against what was shown with them, on the validation split. A penalty pulls them
    towards the counts alone. The sum has to rank better than they do by more than a standard error, each fold with
    scales of the others. A part that ranks better than the sum does counts alone.

    Args:
        parts: `(n, 2)` scores of counts and network.
        impressions: The validation split.

    Raises:
        UserError: The network's scores are not finite.
    """
    alone = torch.tensor([1.0, 0.0], dtype=torch.float64)
    clicked, groups = impressions.clicked == 1, groups_of(impressions.candidates.offsets, impressions.names)
    chosen = _mixed(groups, clicked)
    if not chosen.any():
        return alone.float()
    _aucs(parts[:, 1], impressions)
    values, inverse, sizes = parts[chosen].astype(np.float64), *_numbered(groups[chosen])
    means = np.bincount(inverse, values[:, 1]) / sizes
    # How far candidates of a group are apart. A part that hardly tells them apart is not to be blown up.
    apart = max(1.0, float(np.sqrt(2 * np.square(values[:, 1] - means[inverse]).mean())))
    pull = _PRIOR * torch.tensor([1.0, apart], dtype=torch.float64) ** 2

    def fitted(kept: np.ndarray) -> Tensor:
        if not kept.any():
            return alone
        found = _fitted(torch.from_numpy(parts[kept].astype(np.float64)), clicked[kept], groups[kept], alone, pull)[0]
        # A part that speaks against itself has nothing to say.
        return found.clamp_min(0)

    fold, summed = np.random.default_rng(0).permutation(groups.max() + 1)[groups] % FOLDS, np.zeros(len(parts))
    for number in range(FOLDS):
        own = fold == number
        summed[own] = parts[own] @ fitted(chosen & ~own).numpy()
    gain = _aucs(summed, impressions) - _aucs(parts[:, 0], impressions)
    better = gain.mean() > gain.std() / len(gain) ** 0.5
    every = [*([fitted(chosen)] if better else []), alone, 1 - alone]
    return max(every, key=lambda each: float(_aucs(parts @ each.numpy(), impressions).mean())).float()


def aucs_of_parts(parts: np.ndarray, both: np.ndarray, impressions: Impressions) -> np.ndarray:
    """Return the AUC of each group by counts, by the network and by both, `(groups, 3)`."""
    return np.stack([_aucs(each, impressions) for each in (*parts.T, both)], 1)


def compared(aucs: np.ndarray) -> Parts:
    """Return the AUC of the parts, with intervals, from that of groups."""
    sums = [torch.from_numpy(np.stack([each, np.ones(len(each))], 1)) for each in aucs.T]
    return ratio_of_sums(RecommendationScores, "auc", sums)


def combined(ranker: Ranker, parts: np.ndarray) -> np.ndarray:
    """Return the scores of both parts together, `(n,)`, from `(n, 2)`."""
    found: np.ndarray = ranker.combined(*torch.from_numpy(parts).unbind(1)).numpy()
    return found


class _Pairs(NamedTuple):
    """Pairs of an item and a word of its title, each once."""

    item: np.ndarray
    word: np.ndarray


class _Odds(NamedTuple):
    """Log-odds of clicks: of `items`, of `words`, and the mean of its words for each of the `titles`."""

    items: np.ndarray
    words: np.ndarray
    titles: np.ndarray

    @classmethod
    def of(cls, counts: Sequence[np.ndarray], pairs: _Pairs, size: int) -> "_Odds":
        """Return them for how often each item was shown and clicked; `size` is the number of words."""
        shown, clicked = counts
        share = (clicked.sum() + 1) / (shown.sum() + 2)

        def odds(shown: np.ndarray, clicked: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.log((clicked + SMOOTHING * share) / (shown - clicked + SMOOTHING * (1 - share)))
            return found - np.log(share / (1 - share))

        words = odds(*(np.bincount(pairs.word, each[pairs.item], size) for each in (shown, clicked)))
        sums, numbers = (np.bincount(pairs.item, each, len(shown)) for each in (words[pairs.word], None))
        return cls(odds(shown, clicked), words, sums / np.maximum(1, numbers))


def _timed(tokens: int, items: Items, training: Impressions) -> Ranker:
    """Return a ranker that knows when items were first shown, in units of the median of ages that are not 0."""
    times, shown = training.times[training.candidates.rows], training.candidates.values
    known = ~np.isnan(times)
    first = np.full(len(items), np.inf)
    np.minimum.at(first, shown[known], times[known])
    ages = times[known] - first[shown[known]]
    unit = float(np.median(ages[ages > 0])) if (ages > 0).any() else 0.0
    origin = float(times[known].min()) if known.any() else 0.0
    ranker = Ranker(tokens, int(items.known.max(initial=0)), origin, unit).eval()
    counted = items.known > 0
    ranker.first[items.known[counted]] = ranker.ticks(first[counted])
    return ranker


def _words(tokens: Sequence[str]) -> np.ndarray:
    """Return the word that each token is, in capitals or not; -1 for what has neither letter nor digit."""
    first: dict[str, int] = {}
    return np.array(
        [
            first.setdefault(token.casefold(), number) if any(map(str.isalnum, token)) else -1
            for number, token in enumerate(tokens)
        ],
        np.int64,
    )


def _pairs(titles: Ragged, words: np.ndarray) -> _Pairs:
    found = words[titles.values]
    item, word = titles.rows[found >= 0], found[found >= 0]
    both = np.unique(item * len(words) + word)
    return _Pairs(both // len(words), both % len(words))


def _numbered(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return groups as numbers from 0, and how large each is."""
    inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    return inverse, sizes


def _mixed(groups: np.ndarray, clicked: np.ndarray) -> np.ndarray:
    """Candidates in a group that has both clicked and other ones, `(n,)`."""
    inverse, sizes = _numbered(groups)
    clicks = np.bincount(inverse, clicked, len(sizes))
    found: np.ndarray = ((clicks > 0) & (clicks < sizes))[inverse]
    return found


def _some(groups: np.ndarray, clicked: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Candidates that weights are fitted to, `(n,)`: those of enough groups, whole ones, with both kinds."""
    mixed = _mixed(groups, clicked)
    inverse, sizes = _numbered(groups)
    order = random.permutation(len(sizes))
    kept = np.zeros(len(sizes), bool)
    usable = np.bincount(inverse, mixed, len(sizes))[order]
    kept[order] = np.cumsum(usable) <= max(_ENOUGH, usable.max(initial=0))
    found: np.ndarray = mixed & kept[inverse]
    return found


def _worthwhile(features: Tensor, clicked: np.ndarray, groups: np.ndarray) -> Tensor:
    """Return the weights of features, `(k,)`, 0 for those that hardly lower the loss.

    A weight has to lower it by half the logarithm of the number of clicks (Schwarz 1978,
    https://doi.org/10.1214/aos/1176344136). Without that, features that differ little within training's groups get any
    weight, and count where they differ more, as ages do of what is new.
    """
    pull = _RIDGE * features.var(0, correction=0).clamp_min(1e-6)

    def fit(kept: list[int]) -> tuple[Tensor, float]:
        return _fitted(features[:, kept], clicked, groups, torch.zeros_like(pull[kept]), pull[kept])

    kept = list(range(features.shape[1]))
    weights, loss = fit(kept)
    while kept:
        fewer = [[other for other in kept if other != each] for each in kept]
        found = [fit(some) for some in fewer]
        best = min(range(len(found)), key=lambda place: found[place][1])
        if found[best][1] - loss >= np.log(clicked.sum()) / 2:
            break
        kept, (weights, loss) = fewer[best], found[best]
    return torch.zeros_like(pull).index_copy(0, torch.tensor(kept, dtype=torch.long), weights)


def _fitted(
    features: Tensor, clicked: np.ndarray, groups: np.ndarray, start: Tensor, pull: Tensor
) -> tuple[Tensor, float]:
    """Return the weights of features, `(k,)`, with the lowest loss of clicks and `pull` times their squared distance
    from `start`; and that loss.

    The loss of a click is -log(e^{s⁺} / (e^{s⁺} + Σ e^{s⁻})), the sum over what was not clicked of its group.

    Args:
        features: `(n, k)` float64.
        clicked: `(n,)`; groups have both kinds.
        groups: `(n,)`.
        start: `(k,)`.
        pull: `(k,)`.
    """
    number = torch.from_numpy(_numbered(groups)[0])
    is_click = torch.from_numpy(clicked)
    ours, others = number[is_click], number[~is_click]
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        scores = features @ weights
        below = scores[~is_click]
        top = below.new_full((int(number.max()) + 1,), -torch.inf).scatter_reduce(0, others, below.detach(), "amax")
        sums = torch.zeros_like(top).index_add(0, others, (below - top[others]).exp())
        losses = softplus((top + sums.log())[ours] - scores[is_click])
        return losses.sum() + (pull * (weights - start) ** 2).sum()

    def step() -> Tensor:
        optimizer.zero_grad()
        found = loss()
        found.backward()
        return found

    if len(start):
        with torch.enable_grad():
            optimizer.step(step)
    with torch.no_grad():
        return weights.detach(), float(loss())


def _aucs(scores: np.ndarray, impressions: Impressions) -> np.ndarray:
    return group_aucs(scores, impressions.clicked, impressions.candidates.offsets, users=impressions.names)
