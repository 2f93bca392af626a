"""Parallel text files and translation memories: where they are found, what each row is, and what is refused."""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from longspan.data.columns.kinds import Text
from longspan.data.config import DataConfig
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError

COLUMNS = [
    Text("source", "source_column", each_line=True),
    Text("target", "target_column", each_line=True, target=True),
]


@dataclass(frozen=True)
class Pairs(DataConfig):
    source_column: str = "en"
    target_column: str = "de"


def pairs(**settings: Any) -> list[tuple[str, str]]:
    rows = load(Pairs(validation_fraction=0.0, **settings), COLUMNS).splits["train"]
    return list(zip(rows["source"][:], rows["target"][:], strict=True))


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_files_are_named_by_their_beginning_or_both(tmp_path: Path) -> None:
    write(tmp_path, "train.en", "A dog.", "Two\u2028cats.")
    write(tmp_path, "train.de", "Ein Hund.", "Zwei Katzen.")
    wanted = [("A dog.", "Ein Hund."), ("Two\u2028cats.", "Zwei Katzen.")]
    assert pairs(train=str(tmp_path / "train")) == wanted
    assert pairs(path=str(tmp_path / "train")) == wanted
    assert pairs(train=f"{tmp_path}/train.en,{tmp_path}/train.de") == wanted
    (tmp_path / "packed.en.gz").write_bytes(gzip.compress(b"A dog.\r\n"))
    (tmp_path / "packed.de.gz").write_bytes(gzip.compress("Schön.".encode("latin-1")))
    with pytest.raises(UserError, match="broken UTF-8 in 1 row"):
        pairs(train=str(tmp_path / "packed"))
    (tmp_path / "packed.de.gz").write_bytes(gzip.compress("Schön.".encode()))
    assert pairs(train=str(tmp_path / "packed")) == [("A dog.", "Schön.")]


def test_a_folder_has_files_for_each_split(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        for language in ("en", "de"):
            write(tmp_path, f"{split}.{language}", *(f"{split} {language} {number}" for number in range(count)))
    found = load(Pairs(path=str(tmp_path)), COLUMNS).splits
    assert {name: len(rows) for name, rows in found.items()} == {"train": 3, "validation": 1, "test": 2}
    assert found["test"][1] == {"source": "test en 1", "target": "test de 1", "where": "test.en, line 2"}
    with pytest.raises(
        UserError, match=r"parallel files train\.en and train\.fr, got only 'train\.en'; add 'train\.fr'"
    ):
        load(Pairs(path=str(tmp_path), target_column="fr"), COLUMNS)
    with pytest.raises(UserError, match=r"such as train\.xx and train\.yy in the folder .* got none; .*source_column"):
        load(Pairs(path=str(tmp_path), source_column="xx", target_column="yy"), COLUMNS)


def test_a_line_more_or_less_is_an_error_with_both_counts(tmp_path: Path) -> None:
    write(tmp_path, "train.en", "a", "b", "c")
    write(tmp_path, "train.de", "a", "b")
    with pytest.raises(UserError, match=r"as many lines in 'train\.en' as in 'train\.de', got 3 and 2; line N"):
        pairs(train=str(tmp_path / "train"))
    with pytest.raises(UserError, match=r"as many lines .* got 2 and 3"):
        pairs(train=str(tmp_path / "train"), source_column="de", target_column="en")


def test_empty_lines_are_refused_or_counted(tmp_path: Path) -> None:
    write(tmp_path, "train.en", "a", "", "c", "d", "")
    write(tmp_path, "train.de", "a", "b", " ", "d", "")
    with pytest.raises(UserError, match=r"no source in 2 rows \(first: train\.en, line 2\) and no target in 1 row"):
        pairs(train=str(tmp_path / "train"))
    kept = load(Pairs(train=str(tmp_path / "train"), skip_bad_rows=True, validation_fraction=0.0), COLUMNS)
    assert kept.splits["train"]["source"][:] == ["a", "d"]
    assert kept.skipped == {"no source": 2, "no target": 1}


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path, "train.en", "a")
    write(tmp_path, "empty.en")
    write(tmp_path, "empty.de")
    for path, told in (
        (f"{tmp_path}/train", r"parallel files train\.en and train\.de, got only 'train\.en'; add 'train\.de'"),
        (f"{tmp_path}/train.en", r"or parallel files, got 'train\.en' alone; name one file for each of en, de"),
        (f"{tmp_path}/train.en,{tmp_path}/other.de", r"data\.train: there is no file or folder '.*other\.de'"),
        (f"{tmp_path}/a,{tmp_path}/b,{tmp_path}/c", "a file for each of the columns en, de, got 3"),
        (f"{tmp_path}/nothing", r"data\.train: there is no file or folder"),
        (f"{tmp_path}/empty", r"expected lines in 'empty\.en' and 'empty\.de', got empty files"),
    ):
        with pytest.raises(UserError, match=told):
            pairs(train=path)


def test_predictions_read_a_file_line_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, "test.en", "a", "", "c")
    rows = list(read_paths([path], COLUMNS[:1], Pairs()))
    assert [(row.values.get("source"), row.where, row.problem) for row in rows] == [
        ("a", "test.en, line 1", ""),
        ("", "test.en, line 2", "no source"),
        ("c", "test.en, line 3", ""),
    ]
    table = write(tmp_path, "rows.tsv", "de\ten", "Hund\tdog")
    assert [row.values for row in read_paths([table], COLUMNS[:1], Pairs())] == [{"source": "dog"}]


TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="EN-us"><seg>A <bpt i="1">&lt;b&gt;</bpt>red<ept i="1">&lt;/b&gt;</ept>
 dog &amp; a cat.</seg></tuv><tuv xml:lang="de"><seg>Ein <hi>roter</hi> Hund.</seg></tuv></tu>
<tu><tuv lang="de"><seg>Zwei.</seg></tuv><tuv lang="en"><prop type="x">no text</prop><seg>Two.</seg></tuv>
<tuv lang="fr"><seg>Deux.</seg></tuv></tu>
</body></tmx>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_translation_memories_are_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    path.write_bytes(TMX.replace('encoding="UTF-8"', f'encoding="{encoding.upper()}"').encode(encoding))
    assert pairs(path=str(path)) == [("A red dog & a cat.", "Ein roter Hund."), ("Two.", "Zwei.")]
    with pytest.raises(UserError, match=r"a column 'nl' in memory\.tmx, got 'EN-us', 'de', 'en', 'fr'"):
        pairs(path=str(path), target_column="nl")
    with pytest.raises(UserError, match="no target in 1 row"):
        pairs(path=str(path), target_column="fr")


def test_the_whole_of_a_memory_is_never_in_memory(tmp_path: Path) -> None:
    unit = "<tu><tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de'><seg>b</seg></tuv></tu>"
    path = tmp_path / "memory.tmx"
    path.write_text(f"<tmx><body>{unit * 5000}</body><broken", encoding="utf-8")
    rows = read_paths([path], COLUMNS, Pairs())
    assert next(rows).values == {"source": "a", "target": "b"}
    with pytest.raises(UserError, match=r"which is XML, in memory\.tmx, got an error at line 1"):
        list(rows)


@pytest.mark.parametrize(
    ("entity", "told"),
    [
        ("<!ENTITY a 'aaaaaaaaaa'>", "without entities of its own, got a declaration of 'a' in memory.tmx"),
        ("<!ENTITY a SYSTEM 'file:///etc/passwd'>", "without entities of its own"),
    ],
)
def test_entities_are_refused(entity: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    path.write_text(TMX.replace('SYSTEM "tmx14.dtd"', f"[{entity}]").replace("Two.", "&a;"), encoding="utf-8")
    with pytest.raises(UserError, match=told):
        pairs(path=str(path))


def test_an_entity_of_a_file_elsewhere_makes_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    path.write_text(TMX.replace("Two.", "&nbsp;Two."), encoding="utf-8")
    with pytest.raises(UserError, match=r"memory\.tmx, unit 2: unknown entity \(&nbsp;\)"):
        pairs(path=str(path))


def test_columns_inside_columns_of_a_data_set(tmp_path: Path) -> None:
    rows = [{"translation": {"en": "a", "de": "b"}}, {"translation": {"en": "c", "de": "d"}}]
    Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    found = pairs(path=f"hub:{tmp_path}", source_column="translation.en", target_column="translation.de")
    assert found == [("a", "b"), ("c", "d")]
