"""What the script of an explanation's page reads: the text, where its words are, and scores as small integers."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from longspan.results.explanation import Explanation, Piece

#: Bytes that the scores of all parts of the model take in the page at most.
_PART_BYTES = 1_500_000
#: Characters of what was not read that are shown before and after what was.
UNREAD = 2000
#: What would end the element of a page that the data is in, or a line of a script.
_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page_data(explanation: Explanation, pieces: Sequence[Piece], what: str) -> dict[str, Any]:
    """Return the data of a page, as JSON.

    Args:
        explanation: What is shown.
        pieces: Its pieces.
        what: What one of them is called.

    Returns:
        - "what";
        - "spans": for each piece its distance from the end of the last one, then its length. Units are those of UTF-16
          in "text", or hundredths of seconds;
        - "names" in place of spans and text, where pieces have names;
        - "rows": the scores of all parts together, then those of each part (`_row`).
    """
    parts = explanation.part_scores()
    step = max(1, -(-len(parts) * len(pieces) * 4 // (3 * _PART_BYTES)))
    total = np.array([piece.score for piece in pieces])
    rows = [_row("all together", total, 1, 16), *(_row(name, scores, step, 8) for name, scores in parts.items())]
    return {"what": what, "rows": rows, **_places(explanation, pieces)}


def as_json(data: dict[str, Any]) -> str:
    """Return data as JSON that can stand within any element of a page."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)


def _places(explanation: Explanation, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return where the pieces are, or what they are called."""
    if explanation.places == "characters":
        begin = max(0, pieces[0].start - UNREAD)
        text = explanation.text[begin : pieces[-1].end + UNREAD]
        units = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32) > 0xFFFF
        before = np.append(0, np.cumsum(1 + units))
        bounds = before[np.array([(piece.start, piece.end) for piece in pieces]) - begin]
        return {"text": text, "spans": _differences(bounds)}
    if explanation.places == "seconds":
        return {"spans": _differences(np.rint(np.asarray(explanation.spans) * 100).astype(np.int64))}
    return {"names": [piece.text for piece in pieces]}


def _differences(bounds: np.ndarray) -> list[int]:
    """Return the distances between numbers, the first from 0."""
    found: list[int] = np.diff(bounds.ravel(), prepend=0).tolist()
    return found


def _row(name: str, scores: np.ndarray, step: int, bits: int) -> dict[str, Any]:
    """Return scores as integers: the strongest of each `step` pieces, relative to "largest", in Base64."""
    short = np.pad(scores, (0, -len(scores) % step)).reshape(-1, step)
    strongest = np.take_along_axis(short, np.abs(short).argmax(1, keepdims=True), 1)[:, 0]
    largest = float(np.abs(strongest).max()) or 1.0
    levels = np.rint(strongest / largest * (2 ** (bits - 1) - 1)).astype(f"<i{bits // 8}")
    encoded = base64.b64encode(levels.tobytes()).decode()
    return {"name": name, "step": step, "bits": bits, "largest": largest, "scores": encoded}
