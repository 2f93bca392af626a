"""Scores are sacreBLEU's, whatever the form of Unicode, with intervals that hold them."""

import json

import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from longspan import UserError
from longspan.tasks.translation.scores import TranslationScores, translation_scores

REFERENCES = ["Der Hund läuft durch den grünen Park.", "Zwei Katzen schlafen auf dem Sofa.", "Ein Kind lacht."]
GIVEN = ["Der Hund rennt durch den grünen Park.", "Zwei Katzen schlafen.", "Ein Kind lacht."]


def test_they_are_those_of_sacrebleu() -> None:
    found = translation_scores(GIVEN, REFERENCES, loss=1.5)
    assert found.bleu == corpus_bleu(GIVEN, [REFERENCES]).score
    assert found.chrf == corpus_chrf(GIVEN, [REFERENCES]).score
    # Words and punctuation marks of both, as BLEU splits them.
    assert found.length_ratio == pytest.approx((8 + 4 + 4) / (8 + 7 + 4))
    assert found.signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert found.numbers() == {"bleu": found.bleu, "chrf": found.chrf, "loss": 1.5}
    assert TranslationScores.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_case_counts_and_the_form_of_accents_does_not() -> None:
    upper = translation_scores([text.upper() for text in REFERENCES], REFERENCES)
    assert upper.bleu < 10
    decomposed = ["Der Hund la\u0308uft durch den gru\u0308nen Park.", *REFERENCES[1:]]
    assert translation_scores(decomposed, REFERENCES).bleu == pytest.approx(100)
    assert translation_scores(REFERENCES, decomposed).chrf == pytest.approx(100)


def test_intervals_hold_the_score_and_shrink_with_examples() -> None:
    few, many = (translation_scores(GIVEN * times, REFERENCES * times) for times in (2, 32))
    widths = []
    for found in (few, many):
        for name in ("bleu", "chrf"):
            low, high = found.intervals[name]
            assert low <= getattr(found, name) <= high
        widths.append(found.intervals["chrf"][1] - found.intervals["chrf"][0])
    # By the square root of 16; both ends come from 1,000 draws of few different examples.
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.25)
    assert translation_scores(GIVEN, REFERENCES).intervals == translation_scores(GIVEN, REFERENCES).intervals


def test_a_baseline_has_no_loss_and_nothing_to_score_is_an_error() -> None:
    found = translation_scores(GIVEN, REFERENCES, intervals=False)
    assert "loss" not in found.numbers()
    assert found.intervals == {}
    assert TranslationScores.from_dict(found.to_dict()) == found
    with pytest.raises(UserError, match="at least one example to score, got none"):
        translation_scores([], [])
