"""Schemes of labels: which one a data set has, whether it is kept to, and the same spans in IOB2.

In IOB2 the first word of a span of X is B-X and the others are I-X. In IOB1 the first is I-X, too, unless a span of X
ends right before it. IOBES has E-X for the last word and S-X for a single one; BILOU (L, U) and BMES (M) are the same
with other letters. Words outside spans are O. The letter may be joined by "_", or come last: B_X, X-B, X_B; alone, it
is that of a span of type "span". In IO there is no letter, and most words are O: words next to each other with the same
label are one span. Any other labels are plain: each word has one for itself.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.data.columns.values import in_order, shown
from longspan.errors import UserError

Scheme = Literal["plain", "IO", "IOB1", "IOB2", "IOBES"]
OUTSIDE = "O"
_SPAN = re.compile(r"([BIESLUMW])-(.+)")
_FIRST, _LAST = re.compile(r"([BIESLUMW])_(.+)"), re.compile(r"(.+)[-_]([BIESLUMW])")
_SAME = {"L": "E", "U": "S", "M": "I", "W": "S"}


@dataclass(frozen=True)
class Converted:
    """Labels in IOB2.

    Attributes:
        labels: As many as there were.
        broken: Which of them do not keep to the scheme, such as an I- that begins a span.
    """

    labels: list[str]
    broken: list[int]


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Return the scheme of the labels of sentences.

    Raises:
        UserError: Some labels are those of spans, and others are not.
    """
    known = list(sentences)
    names = {label for labels in known for label in labels}
    spans = {name for name in names if _SPAN.fullmatch(name)}
    others = names - spans - {OUTSIDE}
    if not spans and OUTSIDE in names and others:
        hyphens = {hyphenated(name) for name in others}
        letters = {name[0] for name in hyphens if _SPAN.fullmatch(name)}
        if not all(map(_SPAN.fullmatch, hyphens)) or not letters & {*"IELM"}:
            words = [label for labels in known for label in labels]
            return "IO" if words.count(OUTSIDE) > len(words) / 2 else "plain"
        known = [[hyphenated(label) for label in labels] for labels in known]
        spans, others = hyphens, set()
    if not spans or (others and OUTSIDE not in names):
        return "plain"
    if others:
        raise UserError(
            f"expected labels of one scheme, got {shown(min(others))}, {shown(min(spans))} and {OUTSIDE!r}; mark where "
            "spans begin and continue in all of them (B-, I-), or in none."
        )
    letters = {_SAME.get(name[0], name[0]) for name in spans}
    if letters & {"E", "S"}:
        return "IOBES"
    # In IOB1 a B- is there only to tell a span from the one before it.
    began = [
        label[2:] == (before[2:] if before != OUTSIDE else None)
        for labels in known
        for before, label in zip([OUTSIDE, *labels], labels, strict=False)
        if label.startswith("B-")
    ]
    return "IOB1" if all(began) else "IOB2"


def hyphenated(label: str) -> str:
    """A label of a span as B-X, however its letter and its type are joined; any other label as it is."""
    if re.fullmatch("[BIESLUMW]", label):
        return f"{label}-span"
    if found := _FIRST.fullmatch(label):
        return f"{found[1]}-{found[2]}"
    if not _SPAN.fullmatch(label) and (found := _LAST.fullmatch(label)):
        return f"{found[2]}-{found[1]}"
    return label


def to_iob2(labels: Sequence[str], scheme: Scheme) -> Converted:
    """Return the labels of a sentence in IOB2. A label that breaks the scheme begins a span if it has another type than
    the label before it, or no span is open."""
    if scheme == "plain":
        return Converted(list(labels), [])
    if scheme == "IO":
        pairs = zip([OUTSIDE, *labels], labels, strict=False)
        letters = ("I" if before == label else "B" for before, label in pairs)
        both = zip(letters, labels, strict=True)
        return Converted([OUTSIDE if label == OUTSIDE else f"{letter}-{label}" for letter, label in both], [])
    labels = [hyphenated(label) for label in labels]
    found: list[str] = []
    broken: list[int] = []
    kind, ended = "", True
    for number, label in enumerate(labels):
        match = _SPAN.fullmatch(label)
        if match is None:
            if scheme == "IOBES" and not ended:
                broken.append(number)
            found.append(OUTSIDE)
            kind, ended = "", True
            continue
        letter = _SAME.get(match[1], match[1])
        goes_on = letter in "IE" and kind == match[2] and not ended
        begins = letter in "BS" or not goes_on
        # What begins may not come before the end of what was begun, and nothing else goes on.
        kept = {"IOB2": letter == "B" or goes_on, "IOBES": ended if letter in "BS" else goes_on}
        if not kept.get(scheme, True):
            broken.append(number)
        found.append(f"{'B' if begins else 'I'}-{match[2]}")
        kind, ended = match[2], letter in "ES"
    if scheme == "IOBES" and not ended:
        broken.append(len(labels) - 1)
    return Converted(found, broken)


def label_names(sentences: Iterable[Sequence[str]], scheme: Scheme) -> list[str]:
    """Return the labels that a model gives: those there are, or O, B- and I- of every type."""
    names = {label for labels in sentences for label in labels}
    if scheme == "plain":
        return in_order(names)
    kinds = in_order({name[2:] for name in names - {OUTSIDE}})
    return [OUTSIDE, *(f"{letter}-{kind}" for kind in kinds for letter in "BI")]


def spans(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the spans of labels in IOB2, each with its type, its first word, and the one after its last."""
    found: list[tuple[str, int, int]] = []
    for number, label in enumerate(labels):
        if label.startswith("B-"):
            found.append((label[2:], number, number + 1))
        elif label.startswith("I-") and found and found[-1][::2] == (label[2:], number):
            kind, start, _ = found.pop()
            found.append((kind, start, number + 1))
    return found
