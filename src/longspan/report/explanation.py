"""Result of `longspan.explain`, as a page, as text for a terminal and as JSON: `Explanation`."""

import base64
import dataclasses
import functools
import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from longspan.machine.printing import unbroken
from longspan.report import table
from longspan.report.templating import template
from longspan.results import html
from longspan.results.base import Result
from longspan.results.outputs import check_file, write_arrays, write_json, write_text

#: Words and signs of texts, and masks; scripts without spaces have a word for each character.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"<mask>|[{_SPACELESS}]|(?:(?![{_SPACELESS}])\w)+|[^\w\s]")
SUFFIXES = (".html", ".json", ".npz")


@dataclass(frozen=True)
class Piece:
    """A part of what was explained, and how much it speaks for what the model says.

    Attributes:
        text: Its name: a word, a stretch of seconds, row and column of a patch, or a node's number and name.
        start: Where it begins: a character of the text, or else the number of the position.
        end: Before what it ends.
        score: How much it raises `Explanation.value`.
    """

    text: str
    start: int
    end: int
    score: float


def around(text: str, word: Piece, most: int) -> tuple[str, str]:
    """Text before and after a word, at most so many characters each, without cut words."""
    before, after = text[max(0, word.start - most) : word.start], text[word.end : word.end + most]
    if word.start > most and " " in before[:-1]:
        before = "… " + before.split(" ", 1)[1]
    if word.end + most < len(text) and " " in after[1:]:
        after = after.rsplit(" ", 1)[0] + " …"
    return before, after


@dataclass(frozen=True)
class Explanation(Result):
    """Scores of an example's positions for a prediction of a model.

    Attributes:
        where: The place of the example, such as "reviews.csv, row 17".
        of: Target of the explanation: a label, or the name of a number.
        unit: Unit of the scores, such as "log-odds".
        value: That number for the whole example.
        method: Where the network's scores come from: "removal", "gradient", "occlusion" or "weight".
        prediction: Prediction for it, as `predict` returns it.
        spans: Where each position is, from and to before, in the unit of `places`: [-1, -1] for special tokens; row,
            column, height and width for pixels.
        scores: How much each position raises `value`, of all parts of the model together.
        places: The unit: "characters", "seconds", "pixels", "nodes" or "clicks".
        text: The text, of documents.
        extracted_from: The kind of file, such as ".pdf", that this text was extracted from; empty of others.
        names: Name of each position, such as the type of a node; empty where they have no names.
        image: An image as the model reads it, a PNG file in Base64, for pages alone; empty of others.
        parts: The same by part of the model, "network" and "n-grams", if it has both; or weights by layer and head.
        ngrams: The n-grams that count most, with "text", "score" and "times", the strongest first; empty without any.
        checks: For each method that was compared, "comprehensiveness" and "sufficiency"; None if nothing was checked.
    """

    where: str
    of: str
    unit: str
    value: float
    method: str
    prediction: dict[str, Any]
    spans: Sequence[Sequence[float]]
    scores: Sequence[float]
    places: str = "characters"
    text: str = ""
    names: Sequence[str] = ()
    image: str = dataclasses.field(default="", repr=False)
    parts: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    ngrams: Sequence[Mapping[str, Any]] = ()
    checks: Mapping[str, Mapping[str, float]] | None = None
    extracted_from: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it but the image, as JSON."""
        return {name: value for name, value in super().to_dict().items() if name != "image"}

    def pieces(self) -> list[Piece]:
        """Return the parts of the example that were read, in order: words of a text, and otherwise positions."""
        if self.places == "characters":
            words, owners = self._words
            totals = _summed(self.scores, owners, len(words)).tolist()
            return [
                Piece(self.text[start:end], start, end, total)
                for start, end, total in zip(*words.T.tolist(), totals, strict=True)
            ]
        return [
            Piece(self._called(number), number, number + 1, float(score)) for number, score in enumerate(self.scores)
        ]

    def part_scores(self) -> dict[str, np.ndarray]:
        """Return the scores of each part of the model, (pieces,): the sum of a word's tokens, as in `pieces`."""
        if self.places != "characters":
            return {name: np.asarray(values, np.float64) for name, values in self.parts.items()}
        words, owners = self._words
        return {name: _summed(values, owners, len(words)) for name, values in self.parts.items()}

    @property
    def length(self) -> int:
        """Largest value of `Piece.end`."""
        return len(self.text) if self.places == "characters" else len(self.scores)

    def _called(self, number: int) -> str:
        span = self.spans[number]
        if self.places == "seconds":
            return f"{span[0]:.2f} to {span[1]:.2f} s"
        if self.places == "pixels":
            return f"row {span[0]:.0f}, column {span[1]:.0f}"
        name = f" ({self.names[number]})" if self.names else ""
        return f"{self.places.removesuffix('s')} {span[0]:.0f}{name}"

    @cached_property
    def _words(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the words are that were read, (n, 2), and for each position the number of its word, or else -1."""
        spans = np.asarray(self.spans).reshape(-1, 2)
        bounds = chain.from_iterable(match.span() for match in _WORD.finditer(self.text))
        found = np.fromiter(bounds, np.int64).reshape(-1, 2)
        # A token may begin with the space before a word.
        owners = np.searchsorted(found[:, 0], spans[:, 1] - 1, "right") - 1
        owners[spans[:, 1] <= spans[:, 0]] = -1
        read, owners = np.unique(np.append(owners, -1), return_inverse=True)
        return found[read[1:]], owners[:-1] - 1

    def save(self, path: Path | str) -> None:
        """Write a page (.html), all of it (.json), or the arrays (.npz). Raises UserError for
        another suffix, or a folder that is missing.
        """
        path = Path(path)
        check_file(path, *SUFFIXES)
        if path.suffix == ".html":
            write_text(path, self.page())
        elif path.suffix == ".json":
            write_json(path, self.to_dict())
        else:
            about = {"of": self.of, "unit": self.unit, "method": self.method, "where": self.where, "value": self.value}
            about["places"] = self.places
            arrays: dict[str, Any] = {"about": json.dumps(about), "spans": np.asarray(self.spans, np.float64)}
            named = {"scores": self.scores, **{f"scores_{name}": values for name, values in self.parts.items()}}
            arrays |= {name.replace("-", "_"): np.asarray(values, np.float32) for name, values in named.items()}
            write_arrays(path, arrays)

    def page(self) -> str:
        """A page of HTML that needs no other file and asks nobody for anything."""
        pieces, read = self.pieces(), self.prediction.get("tokens_read")
        ordered = sorted(pieces, key=lambda piece: piece.score)
        largest = max((abs(piece.score) for piece in pieces), default=0.0)
        script = _script()
        return template("explanation.html").render(
            explanation=self,
            words=len(pieces),
            shares=sorted((self.prediction.get("probabilities") or {}).items(), key=lambda one: -one[1]),
            strip=strip(pieces, self.length),
            supporting=[_row(self, piece, largest) for piece in reversed(ordered[-_ROWS:]) if piece.score > 0],
            opposing=[_row(self, piece, largest) for piece in ordered[:_ROWS] if piece.score < 0],
            excerpt=excerpt(self, pieces) if self.text else "",
            grid=_grid(self),
            what=WHAT[self.places],
            data=_page_data(self, pieces) if pieces else None,
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            cut=None if read is None else (read, self.prediction.get("tokens_total")),
        )

    def html(self) -> str:
        """The strongest pieces, for notebooks."""
        about = f"{self.of}: {self.value:+.2f} {self.unit}, by {self.method}"
        return html.paragraph(about) + excerpt(self, self.pieces())


def _summed(scores: Sequence[float], owners: np.ndarray, count: int) -> np.ndarray:
    """Sum of the scores that each of `count` words owns."""
    owned = owners >= 0
    return np.bincount(owners[owned], np.asarray(scores, np.float64)[owned], count)


#: Names of a piece, the whole, and several pieces.
WHAT = {
    "characters": ("word", "text", "words"),
    "seconds": ("stretch", "recording", "stretches"),
    "pixels": ("patch", "image", "patches"),
    "nodes": ("node", "graph", "nodes"),
    "clicks": ("click", "history", "clicks"),
}
#: Bytes that the scores of all parts of the model take in the page at most.
_PART_BYTES = 1_500_000
#: Characters of what was not read that are shown before and after what was.
UNREAD = 2000
#: Pieces of the excerpt around the strongest one, bars of the strip, and rows of tables.
_EXCERPT, _BARS, _ROWS = 1200, 600, 12
#: Characters of the text on either side of a word in a table.
_AROUND = 40
#: What would end the element of a page that the data is in, or a line of a script.
_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@functools.cache
def _script() -> str:
    return (resources.files("longspan.report") / "templates" / "explanation.js").read_text(encoding="utf-8")


def _page_data(explanation: Explanation, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Data of a page, and the same "as_json", which can stand within any element of the page.

    - "what" one of the pieces is called;
    - "spans": for each piece its distance from the end of the last one, then its length. Units are those of UTF-16 in
      "text", or hundredths of seconds;
    - "names" in place of spans and text, where pieces have names;
    - "rows": the scores of all parts together, then those of each part (`_scores_row`).
    """
    parts = explanation.part_scores()
    step = max(1, -(-len(parts) * len(pieces) * 4 // (3 * _PART_BYTES)))
    rows = [_scores_row("all together", np.array([piece.score for piece in pieces]), 1, 16)]
    rows += [_scores_row(name, scores, step, 8) for name, scores in parts.items()]
    data = {"what": WHAT[explanation.places][0], "rows": rows, **_piece_places(explanation, pieces)}
    as_json = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)
    return {**data, "as_json": as_json}


def _piece_places(explanation: Explanation, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Where the pieces are, or what they are called."""
    if explanation.places == "characters":
        begin = max(0, pieces[0].start - UNREAD)
        text = explanation.text[begin : pieces[-1].end + UNREAD]
        units = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32) > 0xFFFF
        before = np.append(0, np.cumsum(1 + units))
        bounds = before[np.array([(piece.start, piece.end) for piece in pieces]) - begin]
        return {"text": text, "spans": np.diff(bounds.ravel(), prepend=0).tolist()}
    if explanation.places == "seconds":
        bounds = np.rint(np.asarray(explanation.spans) * 100).astype(np.int64)
        return {"spans": np.diff(bounds.ravel(), prepend=0).tolist()}
    return {"names": [piece.text for piece in pieces]}


def _scores_row(name: str, scores: np.ndarray, step: int, bits: int) -> dict[str, Any]:
    """Scores as integers: the strongest of each `step` pieces, relative to "largest", in Base64."""
    short = np.pad(scores, (0, -len(scores) % step)).reshape(-1, step)
    strongest = np.take_along_axis(short, np.abs(short).argmax(1, keepdims=True), 1)[:, 0]
    largest = float(np.abs(strongest).max()) or 1.0
    levels = np.rint(strongest / largest * (2 ** (bits - 1) - 1)).astype(f"<i{bits // 8}")
    encoded = base64.b64encode(levels.tobytes()).decode()
    return {"name": name, "step": step, "bits": bits, "largest": largest, "scores": encoded}


def excerpt(explanation: Explanation, words: Sequence[Piece]) -> str:
    """The text around the strongest of the words as HTML, marked by how much they speak for it."""
    if not words:
        return html.paragraph("(nothing was read)")
    strengths = np.abs([word.score for word in words])
    if not explanation.text:
        ordered = (words[number] for number in np.argsort(-strengths, kind="stable")[:_ROWS])
        return html.table([WHAT[explanation.places][0], "score"], ([word.text, word.score] for word in ordered))
    first = max(0, min(int(strengths.argmax()) - _EXCERPT // 2, len(words) - _EXCERPT))
    shown, text = words[first : first + _EXCERPT], explanation.text
    begin = max(0, shown[0].start - UNREAD) if first == 0 else shown[0].start
    end = min(len(text), shown[-1].end + UNREAD) if first + _EXCERPT >= len(words) else shown[-1].end
    # What lies between words, with None, and words with their strength from -1 to 1.
    pieces: list[tuple[str, float | None, str]] = []
    place, largest = begin, strengths.max() or 1.0
    for word in shown:
        pieces.append((text[place : word.start], None, ""))
        pieces.append((word.text, round(word.score / largest, 3), signed(word.score, largest)))
        place = word.end
    pieces.append((text[place:end], None, ""))
    return template("excerpt.html").render(pieces=pieces, before=begin > 0, after=end < len(text))


def strip(words: Sequence[Piece], length: int) -> list[tuple[float, float, float, float]]:
    """Bars of the whole text, each (x, y, width, height) in a field of 1000 by 100 with the zero at 50.

    A bar shows the word with the strongest score among those of its stretch of the text, so none is lost.
    """
    count = min(_BARS, max(1, len(words)))
    strongest = np.zeros(count)
    for word in words:
        bar = min(count - 1, word.start * count // max(1, length))
        strongest[bar] = max(strongest[bar], word.score, key=abs)
    width, heights = 1000 / count, 50 * np.abs(strongest) / (np.abs(strongest).max() or 1.0)
    tops = np.where(strongest > 0, 50 - heights, 50)
    bars = zip(np.arange(count) * width, tops, heights, strict=True)
    return [(round(x, 2), round(y, 2), round(width, 2), round(height, 2)) for x, y, height in bars if height >= 0.5]


def _grid(explanation: Explanation) -> dict[str, Any] | None:
    """Patches of an image with their strengths from -1 to 1; None for what is no image."""
    if explanation.places != "pixels" or not explanation.spans:
        return None
    largest = max(map(abs, explanation.scores)) or 1.0
    places = np.asarray(explanation.spans, dtype=np.int64)
    scores = [(round(score / largest, 3), signed(score, largest)) for score in explanation.scores]
    height, width = (places[:, :2] + places[:, 2:]).max(0).tolist()
    patches = [(*place, *score) for place, score in zip(places.tolist(), scores, strict=True)]
    # Without the pixels at its edges that are repeated to fill patches; a PNG file begins with its size.
    size = struct.unpack(">II", base64.b64decode(explanation.image)[16:24]) if explanation.image else None
    return {"patches": patches, "height": height, "width": width, "size": size}


def signed(score: float, largest: float) -> str:
    """A score with its sign, and at least three digits of the largest one: three places after the point or more."""
    places = 3 if largest >= 0.1 or largest == 0 else 2 - math.floor(math.log10(largest))
    return f"{score:+.{places}f}"


def _row(explanation: Explanation, piece: Piece, largest: float, most: int = _AROUND) -> dict[str, str]:
    before, after = around(explanation.text, piece, most) if explanation.text else ("", "")
    place = f"{100 * piece.start / max(1, explanation.length):.0f} %"
    return {"score": signed(piece.score, largest), "before": before, "word": piece.text, "after": after, "place": place}


#: Pieces shown for what is explained, and as many against it; characters on either side of each.
_PRINTED, _BESIDE = 8, 24


def explanation_summary(explanation: Explanation) -> str:
    """Return the words that count most, the n-grams, and what deletions say of the scores."""
    said = f"{explanation.where}: {explanation.of} ({explanation.value:+.2f} {explanation.unit})"
    if explanation.extracted_from:
        said += f"; of the text extracted from the {explanation.extracted_from} file"
    read = explanation.prediction.get("tokens_read")
    if read is not None:
        said += f"; {read:,} of {explanation.prediction['tokens_total']:,} positions were read"
    ordered = sorted(explanation.pieces(), key=lambda word: -word.score)
    rows = [word for word in ordered[:_PRINTED] if word.score > 0] + [
        word for word in ordered[-_PRINTED:] if word.score < 0
    ]
    largest = max((abs(word.score) for word in ordered), default=0.0)
    shown = [_row(explanation, word, largest, _BESIDE) for word in rows]
    headers = [WHAT[explanation.places][0], "score", "at"]
    cells = [[one["word"], one["score"], one["place"]] for one in shown]
    if explanation.text:
        headers.append("in its place")
        for row, one in zip(cells, shown, strict=True):
            row.append(unbroken(one["before"] + one["word"] + one["after"]).strip())
    parts = [said, table(headers, cells)]
    if explanation.ngrams:
        grams = ([one["text"], f"{one['score']:+.3f}", str(one["times"])] for one in explanation.ngrams[:_PRINTED])
        parts.append(table(["n-gram", "score", "times"], grams))
    if explanation.checks:
        checks = (
            [name, f"{one['comprehensiveness']:.3f}", f"{one['sufficiency']:.3f}"]
            for name, one in explanation.checks.items()
        )
        parts.append(table(["scores", "comprehensiveness", "sufficiency"], checks))
    return "\n\n".join(parts)
