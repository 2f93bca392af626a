"""Click logs: which rows are one impression, what was clicked before, and what is wrong with them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from news_folders import named, news_row, settings, write_log

from longspan.data.sources.splitting import deal
from longspan.errors import UserError
from longspan.tasks.recommendation import recorded as recorded_clicks
from longspan.tasks.recommendation.recorded import Recorded, read_recorded


def short(recorded: Recorded, split: str = "train") -> list[tuple[Any, ...]]:
    """Return user, history, candidates and clicks of each impression."""
    names = ("user", "history", "candidates", "clicked")
    return [tuple(row[name] for name in names) for row in named(recorded, split)]


def test_rows_at_the_same_time_are_one_impression(tmp_path: Path) -> None:
    rows = [("u", "a", 1, 1), ("v", "b", 1, 1), ("u", "b", 0, 1), ("u", "c", 1, 2), ("u", "a", 0, 2), ("v", "c", 0, 3)]
    found = read_recorded(settings(write_log(tmp_path / "log.csv", rows)))
    assert found.kind == "log"
    assert short(found) == [
        ("u", [], ["a", "b"], [1, 0]),
        ("v", [], ["b"], [1]),
        # "a" was clicked before, but is a candidate.
        ("u", [], ["c", "a"], [1, 0]),
        ("v", ["b"], ["c"], [0]),
    ]
    assert [(row["impression"], row["time"], row["where"]) for row in found.splits["train"]] == [
        ("1", 1.0, "log.csv, row 1"),
        ("2", 1.0, "log.csv, row 2"),
        ("3", 2.0, "log.csv, row 4"),
        ("4", 3.0, "log.csv, row 6"),
    ]
    assert found.catalogue.select_columns(["item", "title", "where"]).to_list()[1] == {
        "item": "b", "title": "b", "where": "log.csv, row 2"
    }  # fmt: skip


def test_without_times_each_row_is_one_and_all_other_clicks_count(tmp_path: Path) -> None:
    rows = [("u", "a", 1), ("u", "b", 0), ("v", "b", 1), ("u", "b", 1), ("u", "c", 0)]
    found = read_recorded(settings(write_log(tmp_path / "log.csv", rows, "user,title,clicked")))
    assert short(found) == [
        ("u", ["b"], ["a"], [1]),
        ("u", ["a"], ["b"], [0]),
        ("v", [], ["b"], [1]),
        ("u", ["a"], ["b"], [1]),
        ("u", ["a", "b"], ["c"], [0]),
    ]
    assert found.splits["train"]["time"][:] == [None] * 5


def test_impressions_by_name_and_items_by_identifier(tmp_path: Path) -> None:
    rows = [
        {"user": 7, "title": "Same title", "clicked": True, "impression": 1, "item": "x", "entities": ["Q1"]},
        {"user": 7, "title": "Same title", "clicked": False, "impression": 1, "item": "y", "category": "news"},
        {"user": 7, "title": "Same title", "clicked": 1, "impression": 2, "item": "y", "category": "late"},
        # Of another user, and another without a name.
        {"user": 8, "title": "Same title", "clicked": 0, "impression": 2, "item": "x"},
        {"user": 7, "title": "Same title", "clicked": 0, "item": "z"},
        {"user": 7, "title": "No identifier", "clicked": 0},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_recorded(settings(path))
    assert short(found) == [
        ("7", [], ["x", "y"], [1, 0]),
        ("7", ["x"], ["y"], [1]),
        ("8", [], ["x"], [0]),
        ("7", ["x", "y"], ["z"], [0]),
        ("7", ["x", "y"], ["No identifier"], [0]),
    ]
    contents = ["item", "category", "entities"]
    assert [tuple(row[name] for name in contents) for row in found.catalogue] == [
        ("x", "", ["Q1"]),
        ("y", "news", []),
        ("z", "", []),
        ("No identifier", "", []),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("history", [0, 3, 30])
def test_histories_are_the_earlier_clicks_or_all_others_without_times(
    tmp_path: Path, timed: bool, history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(history)
    # A few impressions at a time, and few clicks to spare, so that earlier ones are needed too.
    monkeypatch.setattr(recorded_clicks, "_AT_ONCE", 50)
    monkeypatch.setattr(recorded_clicks, "_SPARE", 1)
    files, times = {}, np.sort(random.integers(90, size=300))
    for number, split in enumerate(("train", "validation", "test")):
        some = times if split == "train" else times[:60] + 20 * number
        rows = [(f"u{random.integers(5)}", f"i{random.integers(9)}", random.integers(2), time) for time in some]
        header = "user,title,clicked,time" if timed else "user,title,clicked,when"
        files[split] = write_log(tmp_path / f"{split}.csv", rows, header)
    found = read_recorded(settings(**{split: str(path) for split, path in files.items()}, history=history))
    rows_of = {split: [line.split(",") for line in path.read_text().splitlines()[1:]] for split, path in files.items()}
    for split, own in rows_of.items():
        before = [] if split == "train" else [(-1, row) for row in rows_of["train"]]
        known = [*before, *enumerate(own)] if timed or split == "train" else before
        expected: dict[Any, tuple[Any, ...]] = {}
        for number, (user, item, clicked, time) in enumerate(own):
            key = (user, time) if timed else number
            kept = expected.setdefault(key, (user, [], [], []))
            kept[2].append(item)
            kept[3].append(int(clicked))
        for key, (user, past, candidates, _) in expected.items():
            for place, row in known:
                earlier = not timed or int(row[3]) < int(key[1])
                if earlier and row[0] == user and row[2] == "1" and row[1] not in candidates:
                    past.append((int(row[3]) if timed else 0, place, row[1]))
            if timed:
                # Of clicks at the same time, those of training come first.
                past.sort(key=lambda click: (click[0], click[1]))
            past[:] = [item for _, _, item in past][-history:]
        assert short(found, split) == list(expected.values())


def test_a_drawn_split_is_not_seen_in_training(tmp_path: Path) -> None:
    rows = [("u", f"item {number}", 1, number) for number in range(40)]
    path = write_log(tmp_path / "log.csv", rows)
    found = read_recorded(settings(path, validation_fraction=0.2, test_fraction=0.1, history=0))
    parts = {split: {row["candidates"][0] for row in named(found, split)} for split in found.splits}
    assert {split: len(part) for split, part in parts.items()} == {"train": 28, "validation": 8, "test": 4}
    for split, own in parts.items():
        for row in named(found, split):
            number = int(row["candidates"][0].split()[1])
            expected = [f"item {before}" for before in range(number) if f"item {before}" in own | parts["train"]]
            assert row["history"] == expected


@pytest.mark.parametrize("header", ["user,title,clicked,time", "user,title,clicked"])
def test_copies_of_rows_stay_in_one_split(tmp_path: Path, header: str, capsys: pytest.CaptureFixture[str]) -> None:
    fields = header.count(",") + 1
    rows = [(f"u{n % 7}", f"t{n}", 1, n)[:fields] for n in range(40) for _ in range(2)]
    if "time" in header:
        # Two names make two impressions of a time.
        rows = [(*row, f"{row[3]}{name}") for row, name in zip(rows, "ab" * 40, strict=True)]
        header += ",impression"
    log = write_log(tmp_path / "log.csv", rows, header)
    found = read_recorded(settings(log, validation_fraction=0.2, test_fraction=0.1))
    shown = {split: {(row["user"], *row["candidates"]) for row in named(found, split)} for split in found.splits}
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 56, "validation": 16, "test": 8}
    assert {split: len(rows) for split, rows in shown.items()} == {"train": 28, "validation": 8, "test": 4}
    assert found.duplicates["validation"] == {"copies": 8, "in_train": 0}
    told = "40 of 80 impressions repeat an earlier one (the same user, time and candidates); copies stay in one split"
    assert told in capsys.readouterr().err


def test_without_copies_splits_are_drawn_as_row_by_row(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", [("u", f"t{n}", 1) for n in range(50)], "user,title,clicked")
    found = read_recorded(settings(log, validation_fraction=0.2, test_fraction=0.1))
    rows = deal(list(range(50)), {"validation": 0.2, "test": 0.1}, np.random.default_rng(0))
    for split, numbers in rows.items():
        assert found.splits[split]["where"][:] == [f"log.csv, row {number + 1}" for number in sorted(numbers)]
    assert found.duplicates == {}


def test_text_without_header_as_dkn_has_it(tmp_path: Path) -> None:
    for split, line in {
        "train": "0\tpolice find car\t1\t331:Bruce Springsteen;36136:Tautog",
        "test": '0\t"x\t0\t',
    }.items():
        (tmp_path / f"raw_{split}.txt").write_text(f"{line}\n")
    found = read_recorded(settings(tmp_path, entities_column="4"))
    assert short(found, "test") == [("0", ["police find car"], ['"x'], [0])]
    assert found.catalogue["entities"][:] == [["331", "36136"], []]
    with pytest.raises(UserError, match=r"data.user_column and data.clicked_column must name two columns"):
        read_recorded(settings(tmp_path, user_column="3"))


def test_items_from_a_table_of_news(tmp_path: Path) -> None:
    (tmp_path / "news.tsv").write_text("\n".join([news_row("N1", "One"), news_row("N2", "Two")]))
    path = write_log(tmp_path / "log.csv", [("u", "N2", 1), ("u", "N1", 0)], "user,item,clicked")
    found = read_recorded(settings(path, news=str(tmp_path / "news.tsv")))
    assert found.catalogue["title"][:] == ["One", "Two"]
    assert short(found)[1] == ("u", ["N2"], ["N1"], [0])
    rows = [("u", "N8", 1, 1), ("u", "N2", 1, 2), ("u", "N9", 0, 2), ("u", "N1", 0, 3)]
    write_log(path, rows, "user,item,clicked,time")
    found = read_recorded(settings(path, news=str(tmp_path / "news.tsv")))
    assert found.skipped == {"unknown candidates, clicked": 1, "unknown candidates without a click": 1}
    assert short(found) == [("u", [], ["N2"], [1]), ("u", ["N2"], ["N1"], [0])]
    write_log(path, rows[:1], "user,item,clicked,time")
    with pytest.raises(UserError, match=r"expected items of the table of news .* .first: 'N8' at log.csv, row 1"):
        read_recorded(settings(path, news=str(tmp_path / "news.tsv")))


def test_prediction_needs_no_clicks(tmp_path: Path) -> None:
    rows = [("u", "a", 1, 1), ("u", "b", "", 2), ("u", "c", "", 2)]
    path = write_log(tmp_path / "log.csv", rows)
    assert short(read_recorded(settings(path), training=False))[1] == ("u", ["a"], ["b", "c"], [])
    with pytest.raises(UserError, match="with no clicked in 2 rows"):
        read_recorded(settings(path))


@pytest.mark.parametrize(
    ("rows", "sentence", "skipped"),
    [
        ([("u", "a", 1, 5), ("u", "b", 1, "")], "a time in all rows of the click log or in none, got 1 row", "no time"),
        ([("u", "a", 1, 5), ("u", "b", 1, "soon")], "no time .expected a number or a time such as", "no time"),
        ([("u", "a", 1, 5), ("u", "b", 2, 6)], "no clicked .expected 0 or 1, or true or false", "no clicked"),
        ([("u", "a", 1, 5), ("", "b", 1, 6)], "no user in 1 row", "no user"),
        ([("u", "a", 1, 5), ("u", " ", 1, 6)], "no title in 1 row", "no title"),
        ([("u", "a", 1, 5), ("u", "b", 1, 6, 7)], "wrong number of fields", "wrong number of fields"),
    ],
)
def test_bad_rows_of_logs(tmp_path: Path, rows: list[Any], sentence: str, skipped: str) -> None:
    path = write_log(tmp_path / "log.csv", rows)
    with pytest.raises(UserError, match=sentence) as error:
        read_recorded(settings(path))
    assert str(error.value).count("data.skip_bad_rows=true") == 1
    found = read_recorded(settings(path, skip_bad_rows=True))
    assert found.skipped == {skipped: 1}
    assert len(found.splits["train"]) == len(rows) - 1


def test_an_identifier_of_two_items(tmp_path: Path) -> None:
    rows = [("u", "a", 1, "x"), ("u", "b", 1, "x"), ("u", "a", 0, "x")]
    path = write_log(tmp_path / "log.csv", rows, "user,title,clicked,item")
    with pytest.raises(
        UserError, match=r"row 2: the identifier of another item .'x' has another title at log.csv, row 1"
    ):
        read_recorded(settings(path))
    found = read_recorded(settings(path, skip_bad_rows=True))
    assert found.skipped == {"the identifier of another item": 1}
    assert found.catalogue["title"][:] == ["a"]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.csv", [("u", "a", 1, 5)], "user,title,clicked,times")
    with pytest.raises(UserError, match=r"expected a column 'tmes' in log.csv, .*; did you mean 'times'"):
        read_recorded(settings(path, time_column="tmes"))
    assert read_recorded(settings(path, time_column="times")).splits["train"]["time"][:] == [5.0]
    with pytest.raises(UserError, match=r"expected a column 'uesr' in log.csv"):
        read_recorded(settings(path, user_column="uesr"))
    (tmp_path / "log.csv").write_text("user,title,clicked\n")
    with pytest.raises(UserError, match="got an empty file"):
        read_recorded(settings(path))
    with pytest.raises(UserError, match="expected an impression for each of the splits train, validation, got 1"):
        read_recorded(settings(write_log(path, [("u", "a", 1, 5)]), validation_fraction=0.5))


def test_data_sets_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for split, item in {"train": "a", "test": "b"}.items():
        write_log(tmp_path / "set" / f"{split}.csv", [("u", item, 1)], "user,title,clicked")
    found = read_recorded(settings(f"hub:{tmp_path}/set"))
    assert short(found, "test") == [("u", ["a"], ["b"], [1])]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12.5", 12.5),
        ("1970-01-02", 86400),
        ("1970-01-01 00:01:01", 61),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1/2/1970 12:00:10 AM", 86410),
    ],
)
def test_times(tmp_path: Path, text: str, seconds: float) -> None:
    path = write_log(tmp_path / "log.csv", [("u", "a", 1, text)])
    assert read_recorded(settings(path)).splits["train"]["time"][:] == [seconds]


def test_rows_in_any_order_are_read_in_that_of_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"u{n % 3}", f"t{n % 7}", n % 2, n) for n in range(60)]
    found = read_recorded(settings(write_log(tmp_path / "log.csv", rows)))
    assert "earlier" not in capsys.readouterr().err
    mixed = [rows[place] for place in np.random.default_rng(0).permutation(60)]
    other = read_recorded(settings(write_log(tmp_path / "mixed.csv", mixed)))
    assert sorted(short(other), key=str) == sorted(short(found), key=str)
    assert other.skipped == {}
    told = capsys.readouterr().err
    assert "of 60 rows of the click log are earlier than one of the same user above: rows are read in the order" in told


@pytest.mark.parametrize("header", ["user,title,clicked,time", "user,title,clicked"])
@pytest.mark.parametrize("history", [0, 3])
def test_a_later_log_follows_on_the_clicks_of_training(
    tmp_path: Path, header: str, history: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the histories that it would have as the test split."""
    random = np.random.default_rng(0)
    fields = header.count(",") + 1

    def log(name: str, users: int, first: int) -> Path:
        rows = [
            (f"u{random.integers(users)}", f"t{random.integers(30)}", random.integers(2), first + n) for n in range(200)
        ]
        return write_log(tmp_path / name, [row[:fields] for row in rows], header)

    train, test = log("train.csv", 8, 0), log("test.csv", 9, 200)
    both = read_recorded(settings(train=str(train), test=str(test), history=history))
    assert both.past is not None
    capsys.readouterr()
    for more in ({}, {"catalogue": both.catalogue}):
        later = read_recorded(settings(test, history=history), training=False, past=both.past, **more)
        assert "1 of 9 users have no clicks in the training data" in capsys.readouterr().err
        assert short(later) == short(both, "test")
    alone = read_recorded(settings(test, history=history), training=False)
    assert short(alone) != short(both, "test")


def test_a_later_log_may_have_other_columns_and_titles(tmp_path: Path) -> None:
    """Times that one of both lacks, and an item that is called otherwise by now."""
    timed = write_log(
        tmp_path / "timed.csv", [("u", "a", "A", 1, 5), ("u", "b", "B", 1, 6)], "user,item,title,clicked,time"
    )
    plain = write_log(tmp_path / "plain.csv", [("u", "b", "Bee", ""), ("u", "c", "C", "")], "user,item,title,clicked")
    past = read_recorded(settings(timed)).past
    found = read_recorded(settings(plain), training=False, past=past)
    assert short(found) == [("u", ["a"], ["b"], []), ("u", ["a", "b"], ["c"], [])]
    assert dict(zip(found.catalogue["item"][:], found.catalogue["title"][:], strict=True))["b"] == "Bee"
    untimed = read_recorded(settings(write_log(tmp_path / "log.csv", [("u", "z", 1)], "user,title,clicked"))).past
    assert short(read_recorded(settings(timed), training=False, past=untimed)) == [
        ("u", ["z"], ["a"], [1]),
        ("u", ["z", "a"], ["b"], [1]),
    ]
