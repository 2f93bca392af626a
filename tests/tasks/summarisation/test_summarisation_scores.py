"""ROUGE, novelty and intervals of summaries, against counts by hand."""

import numpy as np
import pytest

from longspan.errors import UserError
from longspan.tasks.summarisation.scores import better, bootstrap, novelty, rouge, sentences, summary_scores


def f1(right: int, given: int, wanted: int) -> float:
    return 100 * 2 * right / (given + wanted)


def test_rouge_counts_words_pairs_and_subsequences() -> None:
    # "dogs" and "dog" have one stem; case and punctuation do not matter.
    (found,) = rouge(["The dogs ran home"], ["the dog, it ran home"])
    assert found == pytest.approx([f1(4, 4, 5), f1(2, 3, 4), f1(4, 4, 5), f1(4, 4, 5)])
    # The union of subsequences with each sentence does not mind their order, that of whole texts does.
    (found,) = rouge(["c d e. a b."], ["a b. c d e."])
    assert found == pytest.approx([100, f1(3, 4, 4), f1(3, 5, 5), 100])


def test_both_forms_of_unicode_are_one_text() -> None:
    composed, decomposed = "caf\u00e9 noir", "cafe\u0301 noir"
    assert rouge([composed], [decomposed])[0].tolist() == [100] * 4
    assert novelty(composed, decomposed) == 0


def test_sentences_end_at_lines_and_marks() -> None:
    assert sentences("One . Two?  Three\nFour e.g.five! \n\n") == ["One .", "Two?", "Three", "Four e.g.five!"]


def test_novelty_is_the_share_of_new_pairs() -> None:
    assert novelty("The cat sat", "a cat. the CAT ran, cat sat") == 0
    assert novelty("the dog sat there", "the dog") == pytest.approx(2 / 3)
    assert novelty("one", "two") == 0


def test_scores_are_means_with_intervals() -> None:
    texts, references = ["a b c", "", "x"], ["a b c", "d", "y z"]
    found = summary_scores(texts, references, ["a b c d"] * 3, loss=1.5)
    assert found.numbers() == pytest.approx(
        {"rouge_1": 100 / 3, "rouge_2": 100 / 3} | dict.fromkeys(("rouge_l", "rouge_lsum"), 100 / 3) | {"loss": 1.5}
    )
    assert (found.examples, found.empty, found.words, found.reference_words) == (3, 1, 4 / 3, 2)
    assert "rouge-score:0.1" in found.signature
    assert "Lsum:sentences end at line breaks" in found.signature
    low, high = found.intervals["rouge_1"]
    assert 0 <= low < 100 / 3 < high <= 100
    with pytest.raises(UserError, match="at least one example"):
        summary_scores([], [], [])
    with pytest.raises(UserError, match="Latin letters or digits"):
        summary_scores(["да"], ["нет"], ["да нет"])


def test_a_difference_of_the_same_examples_is_surer_than_their_scores() -> None:
    draw = np.random.default_rng(0)
    theirs = draw.uniform(0, 100, (200, 1))
    ours = theirs + draw.normal(1, 1, (200, 1))
    ((low, high),) = better(ours, theirs)
    assert 0 < low < 1.3
    assert low < (ours - theirs).mean() < high
    # The standard error of the mean, 1 / sqrt(200), times 1.96 on either side.
    assert high - low == pytest.approx(2 * 1.96 / 200**0.5, rel=0.2)
    ((low, high),) = bootstrap(theirs)
    assert high - low > 5
