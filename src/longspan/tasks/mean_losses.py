"""The mean of losses of predicted tokens, and its perplexity: `mean_nats` and `perplexity`."""

import math

from longspan.errors import UserError


def mean_nats(nats: float, count: float, *, tokens: str, source: str) -> float:
    """Return the mean loss per token.

    Args:
        nats: Sum of the losses.
        count: Number of tokens.
        tokens: What the tokens are called in messages, such as "masked tokens".
        source: What a document has to have for any of them, such as "words to mask".

    Raises:
        UserError: There are no tokens, or losses are not finite, as after a training run that diverged.
    """
    if not count:
        raise UserError(f"expected at least one document with {source}, got none; choose other data.")
    if not math.isfinite(nats):
        raise UserError(
            f"expected finite losses of {count:,.0f} {tokens}, got some that are not, as after a training run that "
            "diverged; lower training.learning_rate."
        )
    return nats / count


def perplexity(loss: float) -> float:
    """Return e to the power of a mean loss in nats; infinity from 700 nats, near the largest float."""
    return math.exp(loss) if loss < 700 else math.inf
