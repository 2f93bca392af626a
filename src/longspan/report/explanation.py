"""An explanation for a terminal: `explanation_summary`."""

from longspan.machine.printing import unbroken
from longspan.report import table
from longspan.results.explanation import WHAT, Explanation, Piece, around

#: Pieces shown for what is explained, and as many against it; characters on either side of each.
_ROWS, _AROUND = 8, 24


def explanation_summary(explanation: Explanation) -> str:
    """Return the words that count most, the n-grams, and what deletions say of the scores."""
    said = f"{explanation.where}: {explanation.of} ({explanation.value:+.2f} {explanation.unit})"
    read = explanation.prediction.get("tokens_read")
    if read is not None:
        said += f"; {read:,} of {explanation.prediction['tokens_total']:,} positions were read"
    ordered = sorted(explanation.pieces(), key=lambda word: -word.score)
    rows = [word for word in ordered[:_ROWS] if word.score > 0] + [word for word in ordered[-_ROWS:] if word.score < 0]
    length = max(1, explanation.length)
    parts = [
        said,
        table(
            [WHAT[explanation.places][0], "score", "at", *(["in its place"] if explanation.text else [])],
            (
                [
                    word.text,
                    f"{word.score:+.3f}",
                    f"{100 * word.start / length:.0f} %",
                    *([_place(explanation.text, word)] if explanation.text else []),
                ]
                for word in rows
            ),
        ),
    ]
    if explanation.ngrams:
        grams = ([one["text"], f"{one['score']:+.3f}", str(one["times"])] for one in explanation.ngrams[:_ROWS])
        parts.append(table(["n-gram", "score", "times"], grams))
    if explanation.checks:
        checks = (
            [name, f"{one['comprehensiveness']:.3f}", f"{one['sufficiency']:.3f}"]
            for name, one in explanation.checks.items()
        )
        parts.append(table(["scores", "comprehensiveness", "sufficiency"], checks))
    return "\n\n".join(parts)


def _place(text: str, word: Piece) -> str:
    before, after = around(text, word, _AROUND)
    return unbroken(before + word.text + after).strip()
