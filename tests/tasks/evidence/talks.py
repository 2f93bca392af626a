"""Talks about several things in turn, each with questions: documents in parts whose evidence is known."""

import json
import random
from pathlib import Path
from typing import Any

TOPICS = ("price", "colour", "battery", "case", "menu", "voice", "chip", "budget", "logo", "screen", "remote", "wheel")
FILLER = ("well", "so", "right", "maybe", "then", "yes", "we", "could", "look", "at", "that", "again", "okay", "um")


def talk(seed: int, questions: int = 3, span: int = 6) -> dict[str, Any]:
    """Return a document with one topic after the other, each in `span` parts, in half of which its word occurs."""
    draw = random.Random(seed)
    topics = draw.sample(TOPICS, 5)
    parts = [
        " ".join(draw.choices(FILLER, k=5) + ([topic] if place % 2 == 0 else []))
        for topic in topics
        for place in range(span)
    ]
    asked = draw.sample(range(5), questions)
    return {
        "parts": parts,
        "questions": [
            {"question": f"What did they say about the {topics[i]}?", "evidence": list(range(i * span, (i + 1) * span))}
            for i in asked
        ],
    }


def write_talks(path: Path, count: int = 24) -> Path:
    """Write JSON lines with `count` documents."""
    path.write_text("".join(json.dumps(talk(seed)) + "\n" for seed in range(count)), encoding="utf-8")
    return path


def write_meetings(folder: Path, counts: dict[str, int]) -> Path:
    """Write a folder as QMSum's, with `counts` meetings in each of its splits."""
    for split, count in counts.items():
        (folder / split).mkdir(parents=True)
        for seed in range(count):
            found = talk(seed + 100 * len(split))
            turns = [{"speaker": "Ann" if i % 2 else "Bo", "content": part} for i, part in enumerate(found["parts"])]
            queries = [
                {
                    "query": each["question"],
                    "answer": "",
                    "relevant_text_span": [[str(each["evidence"][0]), str(each["evidence"][-1])]],
                }
                for each in found["questions"]
            ]
            meeting = {"meeting_transcripts": turns, "specific_query_list": queries, "topic_list": []}
            (folder / split / f"M{seed}.json").write_text(json.dumps(meeting), encoding="utf-8")
    return folder
