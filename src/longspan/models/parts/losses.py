"""Losses of all heads: sums, what they are divided by, label smoothing, class weights, and large vocabularies.

A head sums losses and divides them by a number of items (`mean_loss`). In training that number is
`num_items_in_batch`, which counts the items of all accumulated batches in all processes; the trainer asks the model
for those of each batch (`LongspanPreTrainedModel.count_items`). Losses over large vocabularies never have several
copies of the scores in memory.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.errors import UserError
from longspan.ops.affine import is_plain, weight_and_bias
from longspan.ops.execution import by_hand, on_cpu
from longspan.ops.linear_cross_entropy import linear_cross_entropy
from longspan.ops.pooling import accumulation_dtype

# The label of positions without a target, as everywhere in transformers.
IGNORED = -100
# Scores in memory at a time: 64 MB in float32. With fewer, the output weights are read too often; small vocabularies,
# such as characters, never reach it.
CHUNK = 1 << 24


def mean_loss(losses: Tensor, items: int | Tensor, num_items_in_batch: int | Tensor | None) -> Tensor:
    """Sum of `losses` (*n) divided by the number of items: the loss that a head returns, a scalar.

    Without `num_items_in_batch` that is `items`, the number of labels in this batch. With it, the batch is one of
    several in an optimiser step, on this device or on others. The sum is then divided by the number of labels in all of
    them. Losses and gradients of these batches then add up to those of one large batch. With no labels at all the loss
    is 0.
    """
    count = torch.as_tensor(items if num_items_in_batch is None else num_items_in_batch, device=losses.device)
    # One number, which DataParallel wraps in extra dimensions.
    return losses.sum() / count.reshape(()).clamp_min(1)


def count_items(labels: Tensor) -> Tensor:
    """Number of labels that are not `IGNORED`."""
    return (labels != IGNORED).sum()


def unknown_labels(like: Tensor) -> Tensor:
    """Labels of the same shape and type that stand for none: `IGNORED`, or NaN, as any other number may be a target."""
    return torch.full_like(like, torch.nan if like.is_floating_point() else IGNORED)


class Losses(NamedTuple):
    """Losses of a batch.

    Attributes:
        minimised: the loss of training.
        plain: the loss without label smoothing and class weights, for comparison with validation. It has no gradient;
            None where the first is that.
    """

    minimised: Tensor
    plain: Tensor | None = None


class Mixed(NamedTuple):
    """A second label of each item, in training on mixtures of two.

    Attributes:
        labels: (n,) classes.
        shares: (n,) their shares, from 0 to 1.
    """

    labels: Tensor
    shares: Tensor


def class_losses(
    scores: Tensor,
    labels: Tensor,
    num_items_in_batch: int | Tensor | None,
    *,
    training: bool,
    smoothing: float = 0.0,
    weights: Sequence[float] | None = None,
    mixed: Mixed | None = None,
) -> Losses:
    """Mean cross-entropies of classes. Smoothing and weights are for training: those of validation stay comparable.

    Args:
        scores: (n, c) logits.
        labels: (n,) classes; -100 for none, which gives 0.
        num_items_in_batch: see `mean_loss`. Weights do not change the number of items.
        training: whether it is training.
        smoothing: share of the target spread evenly over all classes.
        weights: (c,) factors of the losses of each class; None is 1.
        mixed: second labels; the loss of an item is the mean of those of both, by their shares.
    """
    smoothing, weights = (float(smoothing), weights) if training else (0.0, None)

    def mean(smoothing: float, weights: Sequence[float] | None) -> Tensor:
        losses = _cross_entropies(scores, labels, smoothing, weights)
        if mixed is not None:
            share = mixed.shares.to(scores.dtype)
            losses = (1 - share) * losses + share * _cross_entropies(scores, mixed.labels, smoothing, weights)
        return mean_loss(losses, count_items(labels), num_items_in_batch)

    minimised = mean(smoothing, weights)
    if not smoothing and weights is None:
        return Losses(minimised)
    with torch.no_grad():
        return Losses(minimised, mean(0.0, None))


def smoothed_losses(
    losses: Tensor,
    uniform: Tensor | None,
    smoothing: float,
    items: int | Tensor,
    num_items_in_batch: int | Tensor | None,
) -> Losses:
    """Mean of losses with label smoothing, where the losses of a uniform target are known (`uniform_losses`).

    Args:
        losses: (*n) plain ones.
        uniform: (*n) those of a uniform target; None for no smoothing.
        smoothing: share of the uniform target.
        items, num_items_in_batch: see `mean_loss`.
    """
    plain = mean_loss(losses, items, num_items_in_batch)
    if uniform is None:
        return Losses(plain)
    return Losses(mean_loss((1 - smoothing) * losses + smoothing * uniform, items, num_items_in_batch), plain.detach())


def _cross_entropies(scores: Tensor, labels: Tensor, smoothing: float, weights: Sequence[float] | None) -> Tensor:
    losses = torch.nn.functional.cross_entropy(
        scores, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="none"
    )
    return losses if weights is None else losses * losses.new_tensor(weights)[labels.clamp_min(0)]


def check_token_labels(name: str, labels: Tensor, shape: tuple[int, ...]) -> None:
    """Raise UserError unless `labels`, the argument called `name`, are integers of `shape`."""
    if labels.shape != shape or labels.is_floating_point() or labels.dtype == torch.bool:
        raise UserError(
            f"expected {name} as integers of shape {tuple(shape)}, one for each token, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; give each position the id of a token, or -100 to ignore it."
        )


def positions_to_score(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Return the positions of `hidden` (b, t, d) to be scored: the last ones, all for 0, or those given."""
    if isinstance(logits_to_keep, int):
        return hidden[:, -logits_to_keep:] if logits_to_keep else hidden
    return hidden[:, logits_to_keep]


def in_chunks(losses: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, targets: Tensor, columns: int) -> Tensor:
    """Return `losses` of `hidden` (*n, d) and `targets` (*n) as (*n), computed for a part of the positions at a time.

    `losses` maps (m, d) and (m,) to (m,) and computes at most m x `columns` scores. With more than CHUNK scores in
    all, the backward pass recomputes those of each part, so that none are saved: exact, for one more product.
    """
    rows = max(1, CHUNK // columns)
    flat, wanted = hidden.flatten(0, -2), targets.flatten()
    if flat.shape[0] <= rows:
        return losses(flat, wanted).view(targets.shape)
    parts = []
    for part, targets_of_part in zip(flat.split(rows), wanted.split(rows), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(losses, part, targets_of_part, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(losses(part, targets_of_part))
    return torch.cat(parts).view(targets.shape)


def output_losses(layer: nn.Module, hidden: Tensor, targets: Tensor, columns: int) -> Tensor:
    """Return the losses in nats (*n) of the scores `layer(hidden)` of `hidden` (*n, d), 0 where the target is IGNORED.

    More than CHUNK scores are never all in memory: see `linear_cross_entropy` and `in_chunks`.
    """
    if isinstance(layer, nn.Linear) and is_plain(layer) and on_cpu(hidden) and by_hand() and torch.is_grad_enabled():
        flat, wanted = hidden.flatten(0, -2), targets.flatten()
        if wanted.numel() * columns > CHUNK:
            return linear_cross_entropy(flat, layer.weight, layer.bias, wanted, IGNORED).view(targets.shape)

    def losses(part: Tensor, targets_of_part: Tensor) -> Tensor:
        return cross_entropies(layer(part), targets_of_part)

    return in_chunks(losses, hidden, targets, columns)


def uniform_losses(layer: nn.Module, hidden: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    """Return the mean over all outputs v of -log p_v in nats (*n), 0 where the target is IGNORED: label smoothing.

    `losses` are those of `output_losses` for the same layer, which must be affine, `hidden` (*n, d) and `targets` (*n).
    As they are log Σ exp s - s_target, only the target's score and the mean score are missing. Both are scores of one
    vector each, the mean score that of the mean weights, so that no other score is computed.
    """
    weight, bias = weight_and_bias(layer)
    known = targets != IGNORED
    wanted = targets.where(known, 0)
    exact = accumulation_dtype(weight.dtype)
    more = nn.functional.embedding(wanted, weight).to(exact) - weight.to(exact).mean(0)
    scores = (hidden.to(exact) * more).sum(-1)
    if bias is not None:
        scores = scores + (bias.to(exact)[wanted] - bias.to(exact).mean())
    return (losses + scores).masked_fill(~known, 0)


def cross_entropies(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the loss in nats of each row of `scores` (m, v), in at least float32; 0 where the target is IGNORED."""
    exact = scores.to(accumulation_dtype(scores.dtype))
    return torch.nn.functional.cross_entropy(exact, targets, ignore_index=IGNORED, reduction="none")
