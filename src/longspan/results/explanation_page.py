"""An explanation as a page: one HTML file, readable without scripts, colour or a network."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

from longspan.results import html
from longspan.results.explanation import Explanation, Piece, around
from longspan.results.explanation_data import UNREAD, as_json, page_data
from longspan.results.templating import template

#: Pieces of the excerpt around the strongest one, bars of the strip, and rows of tables.
_EXCERPT, _BARS, _ROWS = 1200, 600, 12
#: Characters of the text on either side of a word in a table.
_AROUND = 40


#: What a piece, the whole, and several pieces are called.
WHAT = {
    "characters": ("word", "text", "words"),
    "seconds": ("stretch", "recording", "stretches"),
    "pixels": ("patch", "image", "patches"),
    "nodes": ("node", "graph", "nodes"),
    "clicks": ("click", "history", "clicks"),
}


@functools.cache
def _script() -> str:
    return (resources.files("longspan.results") / "templates" / "explanation.js").read_text(encoding="utf-8")


def page(explanation: Explanation) -> str:
    """Return the page."""
    words = explanation.pieces()
    ordered = sorted(words, key=lambda word: word.score)
    what = WHAT[explanation.places]
    data = page_data(explanation, words, what[0]) if words else None
    script = _script()
    read, total = explanation.prediction.get("tokens_read"), explanation.prediction.get("tokens_total")
    return template("explanation.html").render(
        explanation=explanation,
        words=len(words),
        shares=_shares(explanation.prediction),
        strip=strip(words, explanation.length),
        supporting=[_row(explanation, word) for word in reversed(ordered[-_ROWS:]) if word.score > 0],
        opposing=[_row(explanation, word) for word in ordered[:_ROWS] if word.score < 0],
        excerpt=excerpt(explanation, words) if explanation.text else "",
        grid=_grid(explanation),
        what=what,
        data=data,
        data_as_json=as_json(data) if data else "",
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        cut=None if read is None else (read, total),
    )


def excerpt(explanation: Explanation, words: Sequence[Piece]) -> str:
    """Return the text around the strongest of the words as HTML, marked by how much they speak for it."""
    if not words:
        return html.paragraph("(nothing was read)")
    if not explanation.text:
        ordered = sorted(words, key=lambda word: -abs(word.score))[:_ROWS]
        return html.table([WHAT[explanation.places][0], "score"], ([word.text, word.score] for word in ordered))
    strongest = max(range(len(words)), key=lambda number: abs(words[number].score))
    first = max(0, min(strongest - _EXCERPT // 2, len(words) - _EXCERPT))
    shown = words[first : first + _EXCERPT]
    begin = max(0, shown[0].start - UNREAD) if first == 0 else shown[0].start
    end = min(len(explanation.text), shown[-1].end + UNREAD) if first + _EXCERPT >= len(words) else shown[-1].end
    largest = max(abs(word.score) for word in words) or 1.0
    return template("excerpt.html").render(
        pieces=list(_pieces(explanation.text, shown, begin, end, largest)),
        before=begin > 0,
        after=end < len(explanation.text),
    )


def _pieces(text: str, words: Sequence[Piece], begin: int, end: int, largest: float) -> Any:
    """Yield the text in pieces: what lies between words with None, and words with their strength from -1 to 1."""
    place = begin
    for word in words:
        if word.start > place:
            yield text[place : word.start], None, None
        yield word.text, round(word.score / largest, 3), f"{word.score:+.3f}"
        place = word.end
    if place < end:
        yield text[place:end], None, None


def strip(words: Sequence[Piece], length: int) -> list[tuple[float, float, float, float]]:
    """Return bars of the whole text, each (x, y, width, height) in a field of 1000 by 100 with the zero at 50.

    A bar shows the word with the strongest score among those of its stretch of the text, so none is lost.
    """
    count = min(_BARS, max(1, len(words)))
    strongest = np.zeros(count)
    for word in words:
        bar = min(count - 1, word.start * count // max(1, length))
        if abs(word.score) > abs(strongest[bar]):
            strongest[bar] = word.score
    largest = float(np.abs(strongest).max()) or 1.0
    width = 1000 / count
    bars = []
    for number, score in enumerate(strongest.tolist()):
        height = 50 * abs(score) / largest
        if height >= 0.5:
            bars.append(
                (
                    round(number * width, 2),
                    round(50 - height if score > 0 else 50, 2),
                    round(width, 2),
                    round(height, 2),
                )
            )
    return bars


def _grid(explanation: Explanation) -> dict[str, Any] | None:
    """Return the patches of an image with their strengths from -1 to 1; None for what is no image."""
    if explanation.places != "pixels" or not explanation.spans:
        return None
    largest = max(map(abs, explanation.scores)) or 1.0
    places = np.asarray(explanation.spans, dtype=np.int64)
    strengths = (round(score / largest, 3) for score in explanation.scores)
    told = (f"{score:+.3f}" for score in explanation.scores)
    patches = [(*place, *more) for place, *more in zip(places.tolist(), strengths, told, strict=True)]
    height, width = (places[:, :2] + places[:, 2:]).max(0).tolist()
    return {"patches": patches, "height": height, "width": width}


def _row(explanation: Explanation, word: Piece) -> dict[str, str]:
    before, after = around(explanation.text, word, _AROUND) if explanation.text else ("", "")
    place = f"{100 * word.start / max(1, explanation.length):.0f} %"
    return {"score": f"{word.score:+.3f}", "before": before, "word": word.text, "after": after, "place": place}


def _shares(prediction: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the probabilities, the largest first, if it has any."""
    found = prediction.get("probabilities") or {}
    return [(name, f"{share:.3f}") for name, share in sorted(found.items(), key=lambda one: -one[1])]
