"""Scores of summaries: ROUGE by rouge-score, lengths and novelty."""

import importlib.metadata
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unicodedata import normalize

import numpy as np

from longspan.errors import UserError
from longspan.results.scores import Scores, score

#: The fields of `SummaryScores` with ROUGE, and what rouge-score calls each.
ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL", "rouge_lsum": "rougeLsum"}
#: Settings of ROUGE.
_SETTINGS = "F1|case:lower|tok:a-z0-9|stem:porter|Lsum:sentences end at line breaks, and at . ! or ? before a space"
_SENTENCE = re.compile(r"(?<=[.!?])\s+|[\r\n]+")
_WORD = re.compile(r"\w+")
_DRAWS = 1000


@dataclass(frozen=True)
class SummaryScores(Scores):
    """Agreement of summaries with references, as means over examples.

    Attributes:
        examples: Number of summaries scored.
        empty: Number of them without words.
        words: Mean number of words of a summary, separated by white space.
        reference_words: The same of the references.
        novelty: Share of a summary's pairs of neighbouring words that its document lacks, case ignored; 0 for copies.
        source_read: Share of the tokens of documents and questions that were read.
        signature: Settings of ROUGE.
        intervals: The 95 % bootstrap interval of each ROUGE score, over examples; empty where none was computed.
        rouge_1: F1 of words (Lin 2004, https://aclanthology.org/W04-1013), from 0 to 100.
        rouge_2: F1 of pairs of neighbouring words.
        rouge_l: F1 of the longest common subsequence of the whole texts.
        rouge_lsum: F1 of the union of longest common subsequences with each sentence.
        loss: Mean nats per token of the references, end tokens included, without label smoothing; None for what has no
            probabilities.
    """

    examples: int
    empty: int
    words: float
    reference_words: float
    novelty: float
    source_read: float
    signature: str
    intervals: dict[str, list[float]]
    rouge_1: float = score("ROUGE-1", higher_is_better=True)
    rouge_2: float = score("ROUGE-2", higher_is_better=True)
    rouge_l: float = score("ROUGE-L", higher_is_better=True)
    rouge_lsum: float = score("ROUGE-Lsum", higher_is_better=True)
    loss: float | None = score("loss (nats per target token)", higher_is_better=False, optional=True)


def summary_scores(
    summaries: Sequence[str],
    references: Sequence[str],
    documents: Sequence[str],
    *,
    loss: float | None = None,
    source_read: float = 1.0,
    intervals: bool = True,
) -> SummaryScores:
    """Score summaries, (n,), against one reference for each, (n,), of documents, (n,).

    Raises:
        UserError: There is nothing to score, or ROUGE knows no word of any reference.
    """
    if not summaries:
        raise UserError("expected at least one example to score, got none; choose other data.")
    if not any(re.search("[a-z0-9]", text, re.IGNORECASE) for text in references):
        raise UserError(
            "expected summaries with Latin letters or digits, the only ones that ROUGE knows, got none; choose other "
            "data."
        )
    rows = rouge(summaries, references)
    lengths = [[len(text.split()) for text in texts] for texts in (summaries, references)]
    return SummaryScores(
        examples=len(summaries),
        empty=sum(not words for words in lengths[0]),
        words=float(np.mean(lengths[0])),
        reference_words=float(np.mean(lengths[1])),
        novelty=float(np.mean([novelty(*pair) for pair in zip(summaries, documents, strict=True)])),
        source_read=source_read,
        signature=signature(),
        intervals=dict(zip(ROUGE, bootstrap(rows), strict=True)) if intervals else {},
        loss=loss,
        **dict(zip(ROUGE, rows.mean(0).tolist(), strict=True)),
    )


def signature() -> str:
    """Settings of ROUGE and the version of rouge-score."""
    return f"{_SETTINGS}|rouge-score:{importlib.metadata.version('rouge-score')}"


def rouge(summaries: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return the ROUGE scores of each summary, from 0 to 100, in the order of `ROUGE`, (n, 4)."""
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    # With its default tokenizer, it would set up the log of the whole process.
    scorer = RougeScorer([*ROUGE.values()], tokenizer=DefaultTokenizer(use_stemmer=True))
    found = []
    for given, right in zip(summaries, references, strict=True):
        # rouge-score takes lines for sentences; of the other scores, line breaks change nothing.
        scores = scorer.score(*("\n".join(sentences(normalize("NFC", text))) for text in (right, given)))
        found.append([100 * scores[name].fmeasure for name in ROUGE.values()])
    return np.array(found).reshape(-1, len(ROUGE))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, which end at line breaks, and at ".", "!" or "?" before white space."""
    return [found for part in _SENTENCE.split(text) if (found := part.strip())]


def novelty(summary: str, document: str) -> float:
    """Return the share of a summary's pairs of neighbouring words that a document lacks; 0 without pairs."""
    own = [*_pairs(summary)]
    if not own:
        return 0.0
    known = set(_pairs(document))
    return sum(pair not in known for pair in own) / len(own)


def bootstrap(rows: np.ndarray) -> list[list[float]]:
    """Return the 95 % intervals of the means of each column of (n, k) over draws of examples; without randomness."""
    return np.percentile(_draws(rows), (2.5, 97.5), axis=0).T.tolist()


def better(ours: np.ndarray, theirs: np.ndarray) -> list[list[float]]:
    """Return the 95 % intervals of how much higher the means of ours are, (n, k), over draws of the same examples.

    This is the paired bootstrap (Koehn 2004, https://aclanthology.org/W04-3250): an interval above 0 is significant.
    """
    return bootstrap(ours - theirs)


def _draws(rows: np.ndarray) -> np.ndarray:
    count = len(rows)
    random, shares = np.random.default_rng(0), np.full(count, 1 / count)
    return np.stack([random.multinomial(count, shares) @ rows / count for _ in range(_DRAWS)])


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    words = _WORD.findall(normalize("NFC", text).lower())
    return itertools.pairwise(words)
