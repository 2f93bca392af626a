"""Small files of questions."""

import json
import random
from pathlib import Path
from typing import Any

SQUAD: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {
            "title": "Bowl",
            "paragraphs": [
                {
                    "context": "Denver Broncos defeated the Panthers in Santa Clara.",
                    "qas": [
                        {
                            "id": "a1",
                            "question": "Who won?",
                            "answers": [
                                {"text": "Denver Broncos", "answer_start": 0},
                                {"text": "Broncos", "answer_start": 7},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "a2",
                            "question": "Who lost the war?",
                            "answers": [],
                            "plausible_answers": [{"text": "Panthers", "answer_start": 28}],
                            "is_impossible": True,
                        },
                    ],
                },
                {
                    "context": "It rained in Zürich on Monday.",
                    "qas": [
                        {"id": 7, "question": "Where?", "answers": [{"text": "Zürich", "answer_start": 13}]},
                        {"id": 8, "question": "When?", "answers": [{"text": "Monday", "answer_start": 23}]},
                    ],
                },
            ],
        }
    ],
}


def write_questions(path: Path, count: int, *, unanswered: float = 0.0) -> Path:
    """Write JSON lines of facts, one of which is asked for; a share of the questions has no answer."""
    drawn = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            names = drawn.sample(["Ada", "Bo", "Cy", "Dee", "Eli", "Flo", "Gus"], 3)
            codes = [str(drawn.randint(100, 999)) for _ in names]
            facts = [f"{name} has {code}." for name, code in zip(names, codes, strict=True)]
            text, asked = " So it is. ".join(facts), drawn.randrange(3)
            answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
            name = "Zoe"
            if drawn.random() >= unanswered:
                name = names[asked]
                answers = {"text": [codes[asked]], "answer_start": [text.index(facts[asked]) + len(name) + 5]}
            row = {"id": str(number), "question": f"What has {name}?", "context": text, "answers": answers}
            file.write(json.dumps(row) + "\n")
    return path
