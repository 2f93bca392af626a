"""What `longspan.explain` returns: `Explanation`."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from longspan.results import html
from longspan.results.outputs import check_file, write_arrays, write_json, write_text

#: Words and signs of texts, and masks; scripts without spaces have a word for each character.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"<mask>|[{_SPACELESS}]|(?:(?![{_SPACELESS}])\w)+|[^\w\s]")
SUFFIXES = (".html", ".json", ".npz")


@dataclass(frozen=True)
class Piece:
    """A part of what was explained, and how much it speaks for what the model says.

    Attributes:
        text: What it is called: a word, a stretch of seconds, row and column of a patch, or a node's number and name.
        start: Where it begins: a character of the text, or else the number of the position.
        end: Before what it ends.
        score: How much it raises `Explanation.value`.
    """

    text: str
    start: int
    end: int
    score: float


def around(text: str, word: Piece, most: int) -> tuple[str, str]:
    """Return what stands before and after a word, at most so many characters each, without cut words."""
    before, after = text[max(0, word.start - most) : word.start], text[word.end : word.end + most]
    if word.start > most and " " in before[:-1]:
        before = "… " + before.split(" ", 1)[1]
    if word.end + most < len(text) and " " in after[1:]:
        after = after.rsplit(" ", 1)[0] + " …"
    return before, after


@dataclass(frozen=True)
class Explanation:
    """How much each position of an example speaks for what a model says about it.

    Attributes:
        where: The place of the example, such as "reviews.csv, row 17".
        of: What is explained: a label, or the name of a number.
        unit: What scores add up in, such as "log-odds".
        value: That number for the whole example.
        method: Where the network's scores come from: "removal", "gradient", "occlusion" or "weight".
        prediction: What the model says about it, as `predict` does.
        spans: Where each position is, from and to before, in the unit of `places`: [-1, -1] for special tokens; row,
            column, height and width for pixels.
        scores: How much each position raises `value`, of all parts of the model together.
        places: The unit: "characters", "seconds", "pixels", "nodes" or "clicks".
        text: The text, of documents.
        names: What each position is called, such as the type of a node; empty where they have no names.
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
    parts: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    ngrams: Sequence[Mapping[str, Any]] = ()
    checks: Mapping[str, Mapping[str, float]] | None = None

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
        """How far `Piece.end` can go."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, as JSON."""
        return dataclasses.asdict(self)

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
        """Return a page of HTML that needs no other file and asks nobody for anything."""
        from longspan.results.explanation_page import page

        return page(self)

    def _repr_html_(self) -> str:
        from longspan.results.explanation_page import excerpt

        return html.paragraph(f"{self.of}: {self.value:+.2f} {self.unit}, by {self.method}") + excerpt(
            self, self.pieces()
        )


def _summed(scores: Sequence[float], owners: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of the scores that each of `count` words owns."""
    owned = owners >= 0
    return np.bincount(owners[owned], np.asarray(scores, np.float64)[owned], count)
