"""Mean losses and perplexities of masked words and masked spans."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from longspan import UserError
from longspan.tasks.masked_spans.task import span_scores
from longspan.tasks.masked_words.scores import masked_scores


def words(nats: float, count: float) -> Any:
    return masked_scores(nats, 1, count)


both = pytest.mark.parametrize(
    ("scores", "source", "tokens"),
    [(words, "words to mask", "masked tokens"), (span_scores, "text to mask", "target tokens")],
)


@both
def test_scores_need_something_to_predict(scores: Callable[[float, float], Any], source: str, tokens: str) -> None:
    with pytest.raises(UserError, match=f"^expected at least one document with {source}, got none"):
        scores(0.0, 0)
    for nats in (math.nan, math.inf):
        with pytest.raises(UserError, match=f"^expected finite losses of 1,000 {tokens}, got some that are not"):
            scores(nats, 1000)


@both
def test_perplexity_is_the_exponential_of_the_mean_loss(
    scores: Callable[[float, float], Any], source: str, tokens: str
) -> None:
    assert (scores(2.0, 4).loss, scores(2.0, 4).perplexity) == (0.5, pytest.approx(math.sqrt(math.e)))
    assert scores(1e6, 1).perplexity == math.inf
