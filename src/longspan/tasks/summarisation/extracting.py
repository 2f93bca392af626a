"""Summaries that are parts of their documents: sentences or lines, best first, up to a number of words."""

from collections.abc import Sequence

from longspan.tasks.summarisation.scores import sentences

#: What documents are taken apart into.
LINES, SENTENCES = UNITS = ("lines", "sentences")


def units(document: str, kind: str) -> list[str]:
    """Return the parts of a document in order: its lines, such as turns of a meeting, or its sentences."""
    found = sentences(document) if kind == SENTENCES else [line.strip() for line in document.splitlines()]
    return [one for one in found if one]


def fill(parts: Sequence[str], order: Sequence[int], words: int) -> list[str]:
    """Return parts, best first, until they have so many words, in the order of the document.

    Parts are whole but for the last one taken, of which only the first words are left.

    Args:
        parts: The parts of a document.
        order: Their numbers, best first; others are left out.
        words: Maximum number of words.
    """
    taken: dict[int, str] = {}
    left = words
    for number in order:
        if left <= 0:
            break
        own = parts[number].split()
        taken[number] = " ".join(own[:left])
        left -= len(own)
    return [taken[number] for number in sorted(taken)]
