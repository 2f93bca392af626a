"""Losses of candidates that were shown together, some of which were clicked."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from longspan.errors import UserError
from longspan.models.parts.losses import IGNORED, mean_loss
from longspan.ops.pooling import accumulation_dtype

LOSSES = ("softmax", "binary", "pairwise")


def ranking_loss(name: str, scores: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None) -> Tensor:
    """Return a loss of `scores` (b, c), a scalar in at least float32.

    `labels` (b, c) are 1 for clicked candidates, 0 for others, and -100 at padding. With s⁺ a clicked candidate of a
    row and s⁻ those of it that were not:

        softmax: -log(e^{s⁺} / (e^{s⁺} + Σ e^{s⁻})), the mean over clicked candidates (the K+1-way classification of Wu
            et al. 2019)
        binary: the binary cross-entropy, the mean over candidates
        pairwise: -log σ(s⁺ - s⁻), the mean over pairs (Rendle et al. 2009)

    With `num_items_in_batch` it is the sum divided by that number; `count_items` counts what means are over.

    Raises:
        UserError: for labels of another shape or with other values.
    """
    if labels.shape != scores.shape:
        raise UserError(
            f"expected labels of {tuple(scores.shape)}, one for each candidate, got {tuple(labels.shape)}; give 1, 0 "
            "or -100 for each."
        )
    wide = scores.to(accumulation_dtype(scores.dtype))
    clicked, skipped = _sides(labels)
    if name == "binary":
        losses = binary_cross_entropy_with_logits(wide, clicked.to(wide.dtype), reduction="none")
        losses = losses.masked_fill(~(clicked | skipped), 0)
    elif name == "softmax":
        # Far below all others where there is none: finite, so that gradients are zero and not NaN.
        nothing = torch.finfo(wide.dtype).min / 2
        others = wide.masked_fill(~skipped, nothing).logsumexp(1, keepdim=True) if labels.shape[1] else wide[:, :0]
        losses = softplus(others - wide).masked_fill(~clicked, 0)
    else:
        losses = softplus(wide.unsqueeze(1) - wide.unsqueeze(2)).masked_fill(~_pairs(clicked, skipped), 0)
    return mean_loss(losses, count_items(name, labels), num_items_in_batch)


def count_items(name: str, labels: Tensor) -> Tensor:
    """Number of items that the loss called `name` is the mean over: clicked candidates, all of them, or pairs."""
    clicked, skipped = _sides(labels)
    if name == "softmax":
        return clicked.sum()
    return (clicked | skipped).sum() if name == "binary" else (clicked.sum(1) * skipped.sum(1)).sum()


def _sides(labels: Tensor) -> tuple[Bool[Tensor, "b c"], Bool[Tensor, "b c"]]:
    return labels == 1, (labels != IGNORED) & (labels != 1)


def _pairs(clicked: Bool[Tensor, "b c"], skipped: Bool[Tensor, "b c"]) -> Float[Tensor, "b c c"] | Tensor:
    return clicked.unsqueeze(2) & skipped.unsqueeze(1)
