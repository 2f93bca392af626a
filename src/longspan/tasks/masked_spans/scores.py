"""Scores of a model that writes masked spans, from the losses of their tokens."""

import math
from dataclasses import dataclass

from longspan.errors import UserError
from longspan.results.scores import Scores, score


@dataclass(frozen=True)
class SpanScores(Scores):
    """How well masked spans are predicted, each token given those before it.

    Attributes:
        loss: Mean nats per token of the targets: of spans, of the sentinel before each, and of the end token.
        perplexity: e to the power of that.
    """

    loss: float = score("loss (nats per target token)", higher_is_better=False)
    perplexity: float = score("perplexity", higher_is_better=False)


def span_scores(nats: float, tokens: float) -> SpanScores:
    """Score predictions of a number of tokens, given the sum of their losses.

    Raises:
        UserError: There is nothing to predict, or losses are not finite, as after a training run that diverged.
    """
    if not tokens:
        raise UserError("expected at least one document with text to mask, got none; choose other data.")
    if not math.isfinite(nats):
        raise UserError(
            f"expected finite losses of {tokens:,.0f} target tokens, got some that are not, as after a training run "
            "that diverged; lower training.learning_rate."
        )
    loss = nats / tokens
    return SpanScores(loss, math.exp(loss) if loss < 700 else math.inf)
