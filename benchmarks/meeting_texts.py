"""Write the texts that summaries of meetings are pretrained on: QMSum's meetings and books, as text files.

    python benchmarks/meeting_texts.py MEETINGS BOOKS TEXTS

MEETINGS has train/ and val/ with QMSum's JSON files, BOOKS has train/AUTHOR/*.md and valid/AUTHOR/*.md. TEXTS gets
train/ and valid/. A turn of a meeting is a line, "speaker: words", as the task `summarisation` reads it. Test meetings
are left out.
"""

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("meetings", "books", "texts"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    for split, of_meetings in (("train", "train"), ("valid", "val")):
        folder = given.texts / split
        folder.mkdir(parents=True, exist_ok=True)
        for path in (given.meetings / of_meetings).glob("*.json"):
            turns = json.loads(path.read_text(encoding="utf-8"))["meeting_transcripts"]
            lines = [f"{turn['speaker']}: {turn['content']}" for turn in turns]
            (folder / f"m_{path.stem}.txt").write_text("\n".join(lines), encoding="utf-8")
        for path in (given.books / split).glob("*/*.md"):
            name = path.stem.replace(" ", "_")
            (folder / f"b_{name}.txt").write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
