"""Small files of sentences in a made-up language: words of one language follow in another order in the other."""

import json
import random
from pathlib import Path

NOUNS = {"dog": "Hund", "cat": "Katze", "bird": "Vogel", "man": "Mann", "child": "Kind", "horse": "Pferd"}
VERBS = {"sees": "sieht", "likes": "mag", "follows": "folgt"}
COLOURS = {"red": "rot", "blue": "blau", "old": "alt", "small": "klein"}


def phrase(drawn: random.Random) -> tuple[str, str]:
    """Return a sentence and its translation, in which the verb comes first and the colour follows the noun."""
    noun, colour, verb = (drawn.choice([*words]) for words in (NOUNS, COLOURS, VERBS))
    number = drawn.randrange(10)
    return f"{colour} {noun} {verb} {number}.", f"{VERBS[verb]} {NOUNS[noun]} {COLOURS[colour]} {number}."


def phrases(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return different pairs."""
    drawn = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        source, target = phrase(drawn)
        found[source] = target
    return [*found.items()]


def write_phrases(path: Path, count: int, seed: int = 0) -> Path:
    """Write pairs as JSON lines."""
    lines = (json.dumps({"source": source, "target": target}) for source, target in phrases(count, seed))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
