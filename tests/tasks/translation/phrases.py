"""Small files of sentences in a made-up language: words of one language follow in another order in the other."""

import json
import random
from pathlib import Path

NOUNS = {"dog": "Hund", "cat": "Katze", "bird": "Vogel", "man": "Mann", "child": "Kind", "horse": "Pferd"}
VERBS = {"sees": "sieht", "likes": "mag", "follows": "folgt"}
COLOURS = {"red": "rot", "blue": "blau", "old": "alt", "small": "klein"}


def phrase(drawn: random.Random) -> tuple[str, str]:
    """Return a sentence and its translation, in which colours follow nouns and the verb comes last."""
    source, target = [], []
    for _ in range(2):
        noun, colour = drawn.choice([*NOUNS]), drawn.choice([*COLOURS, ""])
        source.append(f"the {colour} {noun}" if colour else f"the {noun}")
        target.append(f"{NOUNS[noun]} {COLOURS[colour]}" if colour else NOUNS[noun])
    verb = drawn.choice([*VERBS])
    return f"{source[0]} {verb} {source[1]}.", f"{target[0]} {target[1]} {VERBS[verb]}."


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
