"""Chats about several things in turn, with questions whose answers are what was decided: summaries copy names."""

import json
import random
from pathlib import Path
from typing import Any

TOPICS = ("price", "colour", "battery", "case", "menu", "voice", "chip", "budget", "logo", "screen")
CHOICES = ("red", "large", "cheap", "round", "quiet", "new", "plain", "bright")
FILLER = ("well", "so", "right", "maybe", "then", "yes", "we", "could", "look", "at", "that", "again", "okay", "um")
PEOPLE = ("Ann", "Bo", "Cem")


def chat(seed: int, topics: int = 3, span: int = 4) -> dict[str, Any]:
    """Return a document in turns, and for each of its topics a question with the summary of what was said."""
    draw = random.Random(seed)
    turns, asked = [], []
    for topic in draw.sample(TOPICS, topics):
        who, choice = draw.choice(PEOPLE), draw.choice(CHOICES)
        own = [{"speaker": draw.choice(PEOPLE), "content": " ".join(draw.choices(FILLER, k=5))} for _ in range(span)]
        own[draw.randrange(span)] = {"speaker": who, "content": f"the {topic} must be {choice} ."}
        turns += own
        asked.append({"question": f"What about the {topic}?", "summary": f"{who} wants the {topic} to be {choice}."})
    return {"document": turns, "questions": asked}


def write_chats(path: Path, count: int = 24, first: int = 0) -> Path:
    """Write JSON lines, a chat with its questions each."""
    lines = (json.dumps(chat(seed)) for seed in range(first, first + count))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_pairs(path: Path, count: int = 60, first: int = 0) -> Path:
    """Write JSON lines with one question each, and the document as text."""
    rows = []
    for seed in range(first, first + count):
        made = chat(seed, topics=1)
        text = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in made["document"])
        rows.append({"document": text, **made["questions"][0]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_meetings(folder: Path, counts: dict[str, int]) -> Path:
    """Write a folder as QMSum's, with `counts` meetings in each of its splits."""
    for split, count in counts.items():
        (folder / split).mkdir(parents=True)
        for seed in range(count):
            made = chat(seed + 100 * len(split))
            queries = [{"query": each["question"], "answer": each["summary"]} for each in made["questions"]]
            meeting = {
                "topic_list": [],
                "general_query_list": [{"query": "Summarize the meeting.", "answer": "They decided on many things."}],
                "specific_query_list": [{**query, "relevant_text_span": [["0", "3"]]} for query in queries],
                "meeting_transcripts": made["document"],
            }
            (folder / split / f"M{seed}.json").write_text(json.dumps(meeting), encoding="utf-8")
    return folder
