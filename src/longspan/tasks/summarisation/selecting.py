"""Long documents of which the parts are read that match the question best: `selected`."""

from collections.abc import Sequence

import numpy as np

from longspan.machine.imports import require
from longspan.tasks.retrieval import BM25_PACKAGES, bm25, smoothed
from longspan.tasks.summarisation.extracting import LINES, SENTENCES, fill, units

#: The standard deviation, in parts, of the Gaussian that averages scores. On QMSum's validation split, 1,000 words then
#: have 48 % of the words of turns marked as evidence, or of 1,000 of them; 33 % without averaging.
SPREAD = 8.0


def check_packages() -> None:
    """Raise UserError unless the packages are installed that `data.select_words` needs."""
    for package in BM25_PACKAGES:
        require(package, "data.select_words", "'longspan[baselines]'")


def selected(document: str, question: str, words: int) -> str:
    """Return a document, or of one with more words those of its parts that match the question best, in their order.

    Parts are lines, such as turns of a meeting, or the sentences of a document that is one line. Their scores are means
    of BM25 over neighbouring parts, so that what is read is passages rather than single lines. Without a question, and
    among parts that match it equally well, the first and the last parts come first.

    Args:
        document: The document.
        question: The question, "" for none.
        words: Maximum number of words; 0 for no limit.
    """
    if not words or len(document.split()) <= words:
        return document
    parts = units(document, LINES)
    kind = LINES if len(parts) > 1 else SENTENCES
    parts = units(document, kind)
    return ("\n" if kind == LINES else " ").join(fill(parts, ranked(parts, question), words))


def ranked(parts: Sequence[str], question: str, spread: float = SPREAD) -> list[int]:
    """Return the numbers of parts, those first that match a question best.

    Args:
        parts: The parts of a document.
        question: The question, "" for none.
        spread: The standard deviation, in parts, of the Gaussian that averages scores; 0 for no averaging.
    """
    scores = np.zeros(len(parts))
    if question:
        check_packages()
        scores = smoothed(bm25(parts, [question])[0], spread)
    places = np.arange(len(parts))
    order: list[int] = np.lexsort((np.minimum(places, places[::-1]), -scores)).tolist()
    return order
