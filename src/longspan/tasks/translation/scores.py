"""Scores of translations, by sacreBLEU."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longspan.errors import UserError
from longspan.results.scores import Scores, score

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

_DRAWS = 1000


@dataclass(frozen=True)
class TranslationScores(Scores):
    """Agreement of translations with references: whole texts, cased, as they are written, in Unicode's form NFC.

    Attributes:
        examples: Number of translations scored.
        length_ratio: Length of the translations over that of the references, in BLEU's tokens.
        signatures: Settings of "bleu" and "chrf", as sacreBLEU writes them.
        intervals: The 95 % bootstrap interval of "bleu" and "chrf", over examples; empty where none was computed.
        bleu: Corpus BLEU (Papineni et al. 2002), from 0 to 100.
        chrf: chrF (Popović 2015), from 0 to 100.
        loss: Mean nats per token of the references, end tokens included, without label smoothing; None for what has no
            probabilities.
    """

    examples: int
    length_ratio: float
    signatures: dict[str, str]
    intervals: dict[str, list[float]]
    bleu: float = score("BLEU", higher_is_better=True)
    chrf: float = score("chrF", higher_is_better=True)
    loss: float | None = score("loss (nats per target token)", higher_is_better=False, optional=True)


def translation_scores(
    translations: Sequence[str], references: Sequence[str], *, loss: float | None = None, intervals: bool = True
) -> TranslationScores:
    """Score translations, (n,), against one reference for each, (n,).

    Args:
        translations: Data to score.
        references: The right answers.
        loss: The loss of the same examples, if there is one.
        intervals: Whether to compute intervals.

    Raises:
        UserError: There is nothing to score.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if not translations:
        raise UserError("expected at least one example to score, got none; choose other data.")
    given, right = ([unicodedata.normalize("NFC", text) for text in texts] for texts in (translations, references))
    # Without a word about text that looks tokenised.
    metrics: dict[str, Metric] = {"bleu": BLEU(force=True), "chrf": CHRF()}
    found, signatures, ends = {}, {}, {}
    for name, metric in metrics.items():
        found[name] = metric.corpus_score(given, [right])
        signatures[name] = str(metric.get_signature())
        if intervals:
            ends[name] = bootstrap(metric, given, right)
    bleu = found["bleu"]
    return TranslationScores(
        examples=len(given),
        length_ratio=bleu.sys_len / max(1, bleu.ref_len),
        signatures=signatures,
        intervals=ends,
        bleu=bleu.score,
        chrf=found["chrf"].score,
        loss=loss,
    )


def sentence_chrf(translations: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return the chrF of each translation, (n,), from 0 to 100."""
    from sacrebleu.metrics.chrf import CHRF

    metric, pairs = CHRF(), zip(translations, references, strict=True)
    texts = ([unicodedata.normalize("NFC", text) for text in pair] for pair in pairs)
    return np.array([metric.sentence_score(given, [right]).score for given, right in texts])


def bootstrap(metric: "Metric", translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the 95 % interval of a score over draws of examples (Koehn 2004); without randomness."""
    statistics = np.asarray(metric._extract_corpus_statistics(translations, [references]), dtype=np.float64)
    count = len(statistics)
    random, shares = np.random.default_rng(0), np.full(count, 1 / count)
    # One after the other: all draws of many examples would fill the memory.
    drawn = (random.multinomial(count, shares) @ statistics for _ in range(_DRAWS))
    values = [metric._compute_score_from_stats(sums.round().astype(int).tolist()).score for sums in drawn]
    low, high = np.percentile(values, (2.5, 97.5))
    return [float(low), float(high)]
