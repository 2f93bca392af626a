"""Small folders of MIND and click logs, made by code."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.recorded import Recorded

TITLES = {
    "N1": 'Storm "Ada" nears the coast',
    "N2": "Coast guard saves crew",
    "N3": "Team wins the cup",
    "N4": "Cup final in the rain",
    "N5": "Recipe of the week",
}


def news_row(item: str, title: str, **other: str) -> str:
    """Return a line of news.tsv, with its eight fields."""
    row = {
        "category": "news",
        "subcategory": "weather",
        "title": title,
        "abstract": f"About {title}",
        "url": "https://example.org",
        "title_entities": "[]",
        "abstract_entities": "[]",
        **other,
    }
    return "\t".join([item, *row.values()])


def entity(name: str) -> str:
    """Return the entities of a text as MIND has them."""
    return json.dumps(
        [{"Label": "Ada", "Type": "P", "WikidataId": name, "Confidence": 1.0, "OccurrenceOffsets": [6],
          "SurfaceForms": ["Ada"]}]
    )  # fmt: skip


def write_mind(folder: Path, behaviors: Sequence[str], news: Sequence[str] | None = None) -> Path:
    """Write a folder of MIND; `behaviors` are lines of behaviors.tsv, `news` those of news.tsv."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [news_row(item, title) for item, title in TITLES.items()] if news is None else news
    (folder / "news.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "behaviors.tsv").write_text("\n".join(behaviors) + "\n", encoding="utf-8")
    return folder


def behavior(number: int, user: str = "U1", history: str = "N1 N2", shown: str = "N3-1 N4-0", time: str = "") -> str:
    """Return a line of behaviors.tsv, with its five fields."""
    return "\t".join([str(number), user, time or "11/11/2019 9:05:58 AM", history, shown])


def write_log(path: Path, rows: Sequence[Sequence[Any]], header: str = "user,title,clicked,time") -> Path:
    """Write a click log as csv."""
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return path


def settings(path: Path | str = "", **options: Any) -> RecommendationData:
    """Return settings that draw no other splits."""
    return RecommendationData(path=str(path), **{"validation_fraction": 0.0, **options})


#: What an impression has whose items are all known.
NONE_UNKNOWN = {"unknown": [], "unknown_places": [], "unknown_clicked": 0, "unknown_history": 0}


def named(recorded: Recorded, split: str = "train") -> list[dict[str, Any]]:
    """Return the impressions with identifiers in place of numbers."""
    items = recorded.catalogue["item"][:]
    return [
        {**row, **{name: [items[number] for number in row[name]] for name in ("history", "candidates")}}
        for row in recorded.splits[split]
    ]
