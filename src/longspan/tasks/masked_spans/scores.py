"""Scores of a model that writes masked spans, from the losses of their tokens."""

from dataclasses import dataclass

from longspan.results.scores import Scores, score
from longspan.tasks.mean_losses import mean_nats, perplexity


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
    loss = mean_nats(nats, tokens, tokens="target tokens", source="text to mask")
    return SpanScores(loss, perplexity(loss))
