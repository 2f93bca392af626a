"""Scores of a model that fills in masked words, from the losses of what is to be predicted."""

from dataclasses import dataclass

from longspan.results.scores import Scores, score
from longspan.tasks.base.corpora import mean_nats, perplexity


@dataclass(frozen=True)
class MaskedScores(Scores):
    """Scores of masked tokens.

    Attributes:
        loss: Mean nats per token that is to be predicted.
        perplexity: e to the power of that.
        accuracy: The share of them whose most likely token is right.
    """

    loss: float = score("loss (nats per masked token)", higher_is_better=False)
    perplexity: float = score("perplexity", higher_is_better=False)
    accuracy: float = score("accuracy", higher_is_better=True, share=True)


def masked_scores(nats: float, right: float, count: float) -> MaskedScores:
    """Score predictions of `count` tokens.

    Args:
        nats: The sum of their losses.
        right: For how many of them the most likely token is the one that was there.
        count: Their number.

    Raises:
        UserError: There is nothing to predict, or losses are not finite, as after a training run that diverged.
    """
    loss = mean_nats(nats, count, tokens="masked tokens", source="words to mask")
    return MaskedScores(loss, perplexity(loss), right / count)
