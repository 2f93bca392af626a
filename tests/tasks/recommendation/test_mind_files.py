"""MIND's files and tables with the same columns: every field, every split, and what is wrong with them."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from news_folders import NONE_UNKNOWN, TITLES, behavior, entity, named, news_row, settings, write_mind

from longspan.data.sources.formats import tab_separated
from longspan.errors import UserError
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.recorded import ragged, read_recorded


def test_every_field(tmp_path: Path) -> None:
    news = [
        news_row("N1", 'A "quoted\' title', category="sports", subcategory="golf", title_entities=entity("Q1"),
                 abstract_entities=json.dumps([{"WikidataId": "Q2"}, {"WikidataId": "Q1"}])),
        news_row("N2", "Ünicode", abstract="", title_entities="", abstract_entities=entity("Q3")),
        news_row("N3", "Never shown"),
    ]  # fmt: skip
    shown = [
        behavior(1, "U13740", "N2 N1 N2", "N1-0 N2-1", "11/11/2019 9:05:58 AM"),
        behavior(2, "U91836", "", "N2-1", "11/15/2019 12:00:01 PM"),
    ]
    found = read_recorded(settings(write_mind(tmp_path / "mind", shown, news)))
    assert (found.kind, found.skipped, found.encodings) == ("mind", {}, {})
    assert found.catalogue.to_list() == [
        {"item": "N1", "title": 'A "quoted\' title', "abstract": 'About A "quoted\' title', "category": "sports",
         "subcategory": "golf", "entities": ["Q1", "Q2"], "where": "news.tsv, line 1"},
        {"item": "N2", "title": "Ünicode", "abstract": "", "category": "news", "subcategory": "weather",
         "entities": ["Q3"], "where": "news.tsv, line 2"},
        {"item": "N3", "title": "Never shown", "abstract": "About Never shown", "category": "news",
         "subcategory": "weather", "entities": [], "where": "news.tsv, line 3"},
    ]  # fmt: skip
    assert found.splits["train"].to_list() == [
        {"impression": "1", "user": "U13740", "time": 1573463158.0, "history": [1, 0, 1], "candidates": [0, 1],
         "clicked": [0, 1], **NONE_UNKNOWN, "where": "behaviors.tsv, line 1"},
        {"impression": "2", "user": "U91836", "time": 1573819201.0, "history": [], "candidates": [1], "clicked": [1],
         **NONE_UNKNOWN, "where": "behaviors.tsv, line 2"},
    ]  # fmt: skip
    assert found.users() == ["U13740", "U91836"]
    assert found.popularity().tolist() == [0, 2, 0]


def test_splits_by_their_folders(tmp_path: Path) -> None:
    first = [news_row("N1", "One", abstract=""), news_row("N2", "Two")]
    write_mind(tmp_path / "MINDsmall_train", [behavior(1, "U1", "N1", "N2-1 N1-0")], first)
    write_mind(
        tmp_path / "MINDsmall_dev",
        [behavior(1, "U2", "N2 N1", "N7-1 N1-0"), behavior(2, "U2", "N2", "N7-0")],
        [news_row("N7", "Seven"), news_row("N1", "One", abstract="Found later")],
    )
    # As MIND's test split: without labels.
    write_mind(tmp_path / "MINDlarge_test", [behavior(1, "U3", "", "N2 N7")], [news_row("N2", "Two")])
    found = read_recorded(settings(tmp_path))
    assert found.catalogue["item"][:] == ["N1", "N2", "N7"]
    assert found.catalogue[0]["abstract"] == "Found later"
    assert list(found.splits) == ["train", "validation", "test"]
    assert [(row["candidates"], row["clicked"]) for row in named(found, "validation")] == [
        (["N7", "N1"], [1, 0]),
        (["N7"], [0]),
    ]
    assert [(row["candidates"], row["clicked"]) for row in named(found, "test")] == [(["N2", "N7"], [])]
    alone = {split: str(tmp_path / f"MINDsmall_{name}") for split, name in {"train": "train", "test": "dev"}.items()}
    again = read_recorded(settings(**alone))
    assert list(again.splits) == ["train", "test"]
    assert named(again, "test") == named(found, "validation")
    write_mind(tmp_path / "MINDlarge_dev", [behavior(1)])
    with pytest.raises(UserError, match=r"one folder for the validation split .* 'MINDlarge_dev' and 'MINDsmall_dev'"):
        read_recorded(settings(tmp_path))


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_tables_with_the_same_columns(tmp_path: Path, kind: str) -> None:
    shown = [behavior(1, "U1", "N1 N2", "N3-1 N4-0"), behavior(2, "U2", "", "N5-1")]
    expected = read_recorded(settings(write_mind(tmp_path / "mind", shown)))
    folder = tmp_path / kind
    folder.mkdir()
    names = ["impression", "user", "time", "history", "candidates"]
    rows: list[dict[str, Any]] = [dict(zip(names, row.split("\t"), strict=True)) for row in shown]
    news = [dict(zip(["item", "category", "subcategory", "title", "abstract"], row.split("\t")[:5], strict=True))
            for row in (tmp_path / "mind" / "news.tsv").read_text().splitlines()]  # fmt: skip
    if kind != "csv":
        rows = [{**row, **{name: row[name].split() for name in names[3:]}} for row in rows]
    for stem, table in {"behaviors": rows, "news": news}.items():
        file = folder / f"{stem}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(table), file)
        elif kind == "jsonl":
            file.write_text("".join(json.dumps(row) + "\n" for row in table))
        else:
            lines = [",".join(table[0]), *(",".join(json.dumps(cell).replace('\\"', '""') for cell in row.values())
                                           for row in table)]  # fmt: skip
            file.write_text("\n".join(lines))
    found = read_recorded(settings(folder))
    assert found.kind == "impressions"
    without = [{**row, "where": ""} for row in expected.splits["train"].to_list()]
    assert [{**row, "where": ""} for row in found.splits["train"].to_list()] == without
    assert found.catalogue.remove_columns("where").to_list() == expected.catalogue.remove_columns("where").to_list()


def test_files_by_any_name_compressed_and_in_other_encodings(tmp_path: Path) -> None:
    write_mind(tmp_path, [behavior(1), behavior(2, "U2")], [news_row(item, f"é {item}") for item in TITLES])
    (tmp_path / "shown.tsv.gz").write_bytes(gzip.compress((tmp_path / "behaviors.tsv").read_bytes()))
    (tmp_path / "behaviors.tsv").unlink()
    content = (tmp_path / "news.tsv").read_text().encode("latin-1")
    (tmp_path / "news.tsv").unlink()
    (tmp_path / "items.tsv").write_bytes(content)
    found = read_recorded(settings(tmp_path / "shown.tsv.gz", news=str(tmp_path / "items.tsv"), encoding="auto"))
    assert found.kind == "mind"
    assert found.catalogue[0]["title"] == "é N1"
    with pytest.raises(UserError, match=r"expected a table of news, news.tsv, next to"):
        read_recorded(settings(tmp_path / "shown.tsv.gz"))


def test_many_rows_at_a_time_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)

    def items() -> list[str]:
        return [f"N{number}" for number in random.integers(1, 6, size=random.integers(1, 9))]

    shown = [behavior(n, f"U{n % 7}", " ".join(items()), " ".join(f"{i}-{k % 2}" for k, i in enumerate(items(), 1)))
             for n in range(1, 200)]  # fmt: skip
    folder = write_mind(tmp_path / "a", shown)
    monkeypatch.setattr(tab_separated, "_BLOCK", 1 << 11)
    found = named(read_recorded(settings(folder, history=3)))
    for row, line in zip(found, shown, strict=True):
        number, user, _, history, candidates = line.split("\t")
        pairs = [pair.split("-") for pair in candidates.split()]
        assert (row["impression"], row["user"]) == (number, user)
        assert row["history"] == history.split()[-3:]
        assert list(zip(row["candidates"], map(str, row["clicked"]), strict=True)) == [tuple(pair) for pair in pairs]
        assert row["where"] == f"behaviors.tsv, line {number}"


def test_drawn_splits_and_ragged_columns(tmp_path: Path) -> None:
    folder = write_mind(tmp_path, [behavior(n, f"U{n}", "N1 " * (n % 3), "N2-1 " * n) for n in range(1, 21)])
    found = read_recorded(RecommendationData(path=str(folder), test_fraction=0.2))
    sizes = {split: len(rows) for split, rows in found.splits.items()}
    assert sizes == {"train": 14, "validation": 2, "test": 4}
    users = [row["user"] for rows in found.splits.values() for row in rows]
    assert len(set(users)) == 20
    again = read_recorded(RecommendationData(path=str(folder), test_fraction=0.2))
    assert again.splits["test"]["user"][:] == found.splits["test"]["user"][:]
    other = read_recorded(RecommendationData(path=str(folder), test_fraction=0.2, split_seed=1))
    assert other.splits["test"]["user"][:] != found.splits["test"]["user"][:]
    for rows in found.splits.values():
        for name in ("history", "candidates", "clicked"):
            column = ragged(rows, name)
            lists = np.split(column.values, column.offsets[1:-1])
            assert [part.tolist() for part in lists] == rows[name][:]
            assert column.rows.tolist() == [n for n, part in enumerate(lists) for _ in part]
    assert ragged(found.splits["train"].select([]), "history").offsets.tolist() == [0]


def test_copies_of_impressions_stay_in_one_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The second half repeats the first under other numbers and with other clicks.
    shown = [
        behavior(half * 20 + n, f"U{n % 5}", "N1 " * (n % 4), f"N2-{half} N{3 + n // 10}-1 " + "N5-0 " * (n % 10))
        for half in range(2)
        for n in range(20)
    ]
    folder = write_mind(tmp_path / "all", shown)
    found = read_recorded(RecommendationData(path=str(folder), validation_fraction=0.1, test_fraction=0.2))
    keys = {
        split: {(row["user"], tuple(row["history"]), tuple(row["candidates"])) for row in named(found, split)}
        for split in found.splits
    }
    assert {split: len(rows) for split, rows in keys.items()} == {"train": 14, "validation": 2, "test": 4}
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 28, "validation": 4, "test": 8}
    assert len(set.union(*keys.values())) == 20
    told = "20 of 40 impressions repeat an earlier one (the same user, time and candidates); copies stay in one split"
    assert told in capsys.readouterr().err
    write_mind(tmp_path / "both" / "train", shown)
    write_mind(tmp_path / "both" / "dev", [shown[3], shown[23], behavior(9, "U9")])
    given = read_recorded(RecommendationData(path=str(tmp_path / "both")))
    assert given.duplicates == {"train": {"copies": 20}, "validation": {"copies": 1, "in_train": 2}}
    told = "2 of 3 impressions of the validation split are in the training split as well (the same user, time and"
    assert told in capsys.readouterr().err


def test_a_known_catalogue_keeps_its_numbers(tmp_path: Path) -> None:
    known = read_recorded(settings(write_mind(tmp_path / "a", [behavior(1)]))).catalogue
    rows = [news_row("N9", "New"), news_row("N3", TITLES["N3"])]
    folder = write_mind(tmp_path / "b", [behavior(1, history="N3", shown="N9 N3")], rows)
    found = read_recorded(settings(folder), training=False, catalogue=known)
    assert found.catalogue["item"][:] == [*TITLES, "N9"]
    assert (found.splits["train"][0]["candidates"], found.splits["train"][0]["clicked"]) == ([5, 2], [])


BAD: list[tuple[str, dict[str, str], str, str]] = [
    (behavior(2, shown=""), {}, "no candidates in 1 row .first: behaviors.tsv, line 2.", "no candidates"),
    (behavior(2, shown="N3-0 N4-0"), {}, "a clicked candidate in every training impression, got 1 row", "no clicks"),
    (behavior(2, shown="N3 N4"), {}, "candidates without -0 or -1 at behaviors.tsv, line 2", "no clicks"),
    (behavior(2, shown="N3-1 N4"), {}, "candidates with and without -0 or -1", "candidates with and without -0 or -1"),
    (behavior(2, shown="N3-1 N4-2"), {}, "a label other than -0 and -1 .'N4-2'.", "a label other than -0 and -1"),
    (behavior(2, shown="N98-1 N99-0"), {}, "in news.tsv, got 1 row without .first: 'N98' at", "no known candidate"),
    (behavior(1), {}, "got 1 row with the identifier of an earlier one .first: '1' at", "impressions given twice"),
    (behavior(2, time="yesterday"), {}, "no time .expected a number or a time such as", "no time"),
    (behavior(2, user=" "), {}, "with no user in 1 row", "no user"),
    (behavior(2) + "\tmore", {}, "number of fields between tabs .expected 5, got 6", "wrong number of"),
    (behavior(2), {"news": "N1\tnews\tx\tOnly four"}, "between tabs .expected 8, got 4", "wrong number of fields"),
    (behavior(2), {"news": news_row("N1", "Else")}, "the identifier of another item .'N1' has another title at news.tsv"
     ", line 1", "the identifier of another item"),
    (behavior(2), {"news": news_row("N8", " ")}, "with no title in 1 row", "no title"),
    (behavior(2), {"news": news_row("N8", "x", title_entities="[{")}, "which is not a readable list", "no entities"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "more", "sentence", "reason"), BAD)
def test_bad_rows(tmp_path: Path, row: str, more: dict[str, str], sentence: str, reason: str) -> None:
    news = [news_row(item, title) for item, title in TITLES.items()]
    folder = write_mind(tmp_path, [behavior(1), row, behavior(3)], [*news, *more.values()])
    with pytest.raises(UserError, match=sentence) as error:
        read_recorded(settings(folder))
    assert str(error.value).count("data.skip_bad_rows=true") == 1
    assert str(error.value).endswith(".")
    found = read_recorded(settings(folder, skip_bad_rows=True))
    ((said, count),) = found.skipped.items()
    assert said.startswith(reason)
    assert count == 1
    assert [line["impression"] for line in found.splits["train"]] == (["1", "2", "3"] if more else ["1", "3"])
    assert found.catalogue["title"][:] == list(TITLES.values())


@pytest.mark.parametrize("kind", ["mind", "csv", "jsonl"])
def test_items_that_the_catalogue_lacks_are_left_out_and_counted(tmp_path: Path, kind: str) -> None:
    rows = [
        # Of history 3, "N1" and "N2" stay: what is unknown takes no room.
        behavior(1, history="N5 N1 N97 N2 N98 N4", shown="N99-0 N3-1 N96-1 N4-0"),
        # The click cannot be learned from, and is no mistake.
        behavior(2, shown="N99-1 N4-0"),
        behavior(3, history="N98"),
    ]
    write_mind(tmp_path, rows)
    if kind != "mind":
        names = ["impression", "user", "time", "history", "candidates"]
        table = [dict(zip(names, row.split("\t"), strict=True)) for row in rows]
        lines = [",".join(names), *(",".join(row.values()) for row in table)]
        lines = lines if kind == "csv" else [json.dumps(row) for row in table]
        (tmp_path / "behaviors.tsv").unlink()
        (tmp_path / f"behaviors.{kind}").write_text("\n".join(lines) + "\n")
    found = read_recorded(settings(tmp_path, history=3))
    assert found.skipped == {
        "clicks on unknown items": 3,
        "unknown candidates without a click": 1,
        "unknown candidates, clicked": 2,
        "no known clicked candidate": 1,
    }
    names = ["history", "candidates", "clicked", "unknown", "unknown_places", "unknown_clicked", "unknown_history"]
    assert [[row[name] for name in names] for row in named(found)] == [
        [["N1", "N2", "N4"], ["N3", "N4"], [1, 0], ["N99", "N96"], [0, 2], 1, 2],
        [[], ["N3", "N4"], [1, 0], [], [], 0, 1],
    ]
    # Other splits keep what was shown without a known click; it is scored with neither kind.
    found = read_recorded(settings(tmp_path), training=False)
    assert [row["clicked"] for row in found.splits["train"]] == [[1, 0], [0], [1, 0]]
    assert "no known clicked candidate" not in found.skipped
    write_mind(tmp_path / "none", [behavior(1, shown="N99-1 N4-0")])
    with pytest.raises(UserError, match=r"in news.tsv, got none of them .first: 'N99' at behaviors.tsv, line 1.; add"):
        read_recorded(settings(tmp_path / "none"))


def test_unknown_identifiers_that_end_like_labels(tmp_path: Path) -> None:
    news = [news_row(item, f"title {item}") for item in ("a", "b-17")]
    folder = write_mind(tmp_path, [behavior(1, history="", shown="b-17 c-1 c-18 a")], news)
    row = named(read_recorded(settings(folder), training=False))[0]
    assert (row["candidates"], row["clicked"], row["unknown"]) == (["b-17", "a"], [], ["c-1", "c-18"])


def test_evaluation_needs_no_clicks(tmp_path: Path) -> None:
    folder = write_mind(tmp_path, [behavior(1, shown="N3-0"), behavior(2, shown="N3 N4")])
    found = read_recorded(settings(folder), training=False)
    assert found.splits["train"]["clicked"][:] == [[0], []]
    assert found.popularity().sum() == 0


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected training data, got none"):
        read_recorded(settings())
    with pytest.raises(UserError, match="expected training data, got only test data"):
        read_recorded(settings(test=str(write_mind(tmp_path / "a", [behavior(1)]))))
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=r"expected news.tsv and behaviors.tsv in the folder"):
        read_recorded(settings(tmp_path / "b"))
    with pytest.raises(UserError, match=r"data.test must be a file, or a folder with news.tsv and behaviors.tsv"):
        read_recorded(settings(tmp_path / "a", test=str(tmp_path / "b")))
    shutil.copy(tmp_path / "a" / "news.tsv", tmp_path / "a" / "news.txt")
    with pytest.raises(UserError, match="expected one file called news in the folder"):
        read_recorded(settings(tmp_path / "a"))
    with pytest.raises(UserError, match=r"data.news must be a file"):
        read_recorded(settings(tmp_path / "a", news=str(tmp_path)))
    (tmp_path / "log.csv").write_text("user,title,clicked\n1,a,1\n")
    with pytest.raises(UserError, match="either click logs or impressions for all splits"):
        read_recorded(settings(tmp_path / "a", test=str(tmp_path / "log.csv")))
    (tmp_path / "users.csv").write_text("user,histroy\nU1,N1\n")
    with pytest.raises(UserError, match=r"expected impressions, .* got 'user', 'histroy'; did you mean 'history'\?"):
        read_recorded(settings(tmp_path / "users.csv"))
    with pytest.raises(UserError, match=r"expected data.clicked_column with a click log, got 'hit' with impressions"):
        read_recorded(settings(tmp_path / "a" / "behaviors.tsv", clicked_column="hit"))


def test_identifiers_that_end_like_labels(tmp_path: Path) -> None:
    news = [news_row(item, f"title {item}") for item in ("a-1", "a", "b-17")]
    folder = write_mind(tmp_path, [behavior(1, history="a-1 a", shown="a-1-1 b-17-0")], news)
    assert named(read_recorded(settings(folder)))[0] | {"where": ""} == {
        "impression": "1", "user": "U1", "time": 1573463158.0, "history": ["a-1", "a"], "candidates": ["a-1", "b-17"],
        "clicked": [1, 0], "where": "", **NONE_UNKNOWN,
    }  # fmt: skip
    write_mind(tmp_path, [behavior(1, history="", shown="b-17 b-17")], news)
    assert named(read_recorded(settings(folder), training=False))[0]["candidates"] == ["b-17", "b-17"]
