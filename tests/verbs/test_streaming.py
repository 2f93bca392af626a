"""Training on shards that are read again in each pass."""

import gzip
import json
import lzma
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interruptions import killed, same_result

from longspan import recipes, train
from longspan.data.columns.kinds import Label, Text
from longspan.data.config import StreamedData
from longspan.data.sources import shards
from longspan.data.sources.duplicates import digest
from longspan.data.sources.formats.schema import schema_of
from longspan.data.sources.loading import load
from longspan.data.sources.shards import ShardReader, Streamed
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData
from longspan.training.streams import StreamBatches
from longspan.verbs.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

WORDS = {"cat": ["purr", "meow", "whiskers", "mouse"], "dog": ["bark", "wag", "bone", "fetch"]}
COLUMNS = [Text("text", "text_column"), Label("label", "label_column")]


def rows(count: int, seed: int) -> list[dict[str, str]]:
    draw = random.Random(seed)
    found = []
    for number in range(count):
        label = draw.choice(sorted(WORDS))
        found.append(
            {"text": " ".join([*draw.choices(WORDS[label], k=draw.randrange(3, 9)), str(number)]), "label": label}
        )
    return found


def write_lines(path: Path, written: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in written))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of several formats: 40 rows each."""
    folder = tmp_path_factory.mktemp("shards")
    write_lines(folder / "a.jsonl", rows(40, 0))
    (folder / "b.csv").write_text(
        "label,text\n" + "".join(f'{row["label"]},"{row["text"]}\nrow"\n' for row in rows(40, 1))
    )
    pq.write_table(pa.Table.from_pylist(rows(40, 2)), folder / "c.parquet")
    (folder / "notes.md").write_text("no shard")
    return folder


def streamed(path: Path | str, **settings: Any) -> Streamed:
    """All rows, of which none is held out."""
    config = ClassificationData(path=str(path), streaming=True, **settings)
    schema = schema_of(COLUMNS, config)
    found = shards.find_shards(config, schema)["train"]
    return Streamed(found, schema, config.skip_bad_rows, frozenset(), lambda values: b"", 1, 1)


def read_pass(reader: ShardReader) -> list[str]:
    found: list[str] = []
    while reader.place["passes"] == 0:
        found += [row.where for row in reader.block()]
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks end in the middle of shards."""
    monkeypatch.setattr(shards, "_ROWS", 16)
    monkeypatch.setattr(shards, "_TURN", 3)
    monkeypatch.setattr(shards, "_OPEN", 2)


@pytest.mark.usefixtures("small")
def test_a_pass_reads_each_row_once_in_an_order_of_its_own(folder: Path) -> None:
    reader = ShardReader(streamed(folder), seed=0)
    first = read_pass(reader)
    assert len(first) == len(set(first)) == 120
    assert len({where.partition(",")[0] for where in first[:8]}) > 1, "shards take turns"
    second: list[str] = []
    while reader.place["passes"] == 1:
        second += [row.where for row in reader.block()]
    assert sorted(second) == sorted(first)
    assert read_pass(ShardReader(streamed(folder), seed=0)) == first
    assert read_pass(ShardReader(streamed(folder), seed=1)) != first


@pytest.mark.usefixtures("small")
def test_reading_continues_from_the_place_of_any_block(folder: Path) -> None:
    reader = ShardReader(streamed(folder), seed=0)
    places, blocks = [], []
    for _ in range(12):
        places.append(json.dumps(reader.place))
        blocks.append([row.values for row in reader.block()])
    for number in (0, 3, 9):
        again = ShardReader(streamed(folder), seed=0)
        again.seek(json.loads(places[number]))
        assert [[row.values for row in again.block()] for _ in range(3)] == blocks[number : number + 3]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_share_the_shards_or_the_rows_of_few(folder: Path, world: int) -> None:
    found = [where for rank in range(world) for where in read_pass(ShardReader(streamed(folder), 0, rank, world))]
    assert len(found) == len(set(found)) == 120


def test_rows_are_counted_or_estimated(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [shard.rows for shard in streamed(folder).shards] == [40, 41, 40], "a header counts as well"
    monkeypatch.setattr(shards, "_LOOK", 1000)
    write_lines(tmp_path / "long.jsonl", rows(5000, 0))
    assert streamed(tmp_path / "long.jsonl").shards[0].rows == pytest.approx(5000, rel=0.1)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".zip"])
def test_rows_of_packed_files_are_estimated_by_their_beginnings(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Texts that compress to about a half. Of zstd, more is read ahead.
    draw, count = random.Random(0), 60_000 if suffix == ".zst" else 12_000
    lines = [json.dumps({"text": f"{draw.getrandbits(256):x}", "label": "cat"}) + "\n" for _ in range(count)]
    content, path = "".join(lines).encode(), tmp_path / f"rows.jsonl{suffix}"
    write_packed(path, content)
    monkeypatch.setattr(shards, "_LOOK", len(content))
    assert streamed(path).shards[0].rows == count, "a small file is read whole"
    size = path.stat().st_size
    monkeypatch.setattr(shards, "_LOOK", size // 4)
    assert streamed(path).shards[0].rows == pytest.approx(count, rel=0.25)
    if suffix != ".zip":
        # The rest is not looked at.
        with path.open("r+b") as file:
            file.seek(-1000, 2)
            file.write(bytes(1000))
        assert streamed(path).shards[0].rows == pytest.approx(count, rel=0.25)


def write_packed(path: Path, content: bytes) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(path.stem, content)
    elif path.suffix == ".zst":
        path.write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    else:
        path.write_bytes({".gz": gzip, ".xz": lzma}[path.suffix].compress(content))


def test_text_files_are_read_in_parts_that_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_PART", 20)
    lines = [f"line {number}\n" for number in range(10)]
    (tmp_path / "book.txt").write_text("".join(lines))
    config = StreamedData(path=str(tmp_path), streaming=True)
    schema = schema_of(COLUMNS[:1], config)
    (shard,) = shards.find_shards(config, schema)["train"]
    parts = [row.values["text"] for row in shard.read(schema)]
    assert "".join(parts) == "".join(lines)
    assert max(map(len, parts)) <= 27
    assert shard.rows == pytest.approx(len(parts), abs=2)


def test_held_out_documents_are_not_trained_on(folder: Path) -> None:
    config = ClassificationData(path=str(folder), streaming=True, validation_fraction=0.25)
    loaded = load(config, COLUMNS, stratify="label")
    assert loaded.stream is not None
    held_out = {digest({"text": text}, COLUMNS) for text in loaded.splits["validation"]["text"]}
    reader = ShardReader(loaded.stream, seed=0)
    trained = {digest(row.values, COLUMNS) for row in reader.block()}
    assert held_out == loaded.stream.held_out
    assert not held_out & trained
    assert len(held_out | trained) == len({row["text"] for seed in (0, 2) for row in rows(40, seed)}) + 40


def test_data_sets_of_the_hub_are_streamed(tmp_path: Path) -> None:
    for number in range(2):
        write_lines(tmp_path / f"train-{number}.jsonl", rows(20, number))
    found = streamed(f"hub:{tmp_path}")
    assert len(found.shards) == 2
    texts = [row.values["text"] for row in ShardReader(found, 0).block()]
    assert sorted(texts) == sorted(row["text"] for number in range(2) for row in rows(20, number))
    times = [shard.facts for shard in found.shards]
    write_lines(tmp_path / "train-1.jsonl", rows(20, 7))
    os.utime(tmp_path / "train-1.jsonl", (0, 0))
    assert [shard.facts for shard in streamed(f"hub:{tmp_path}").shards] != times, "its sample is read again"
    unknown = Streamed(found.shards, found.schema, False, frozenset(), found.digest, 4, 0)
    with pytest.raises(UserError, match=r"expected training\.max_steps to stream a data set that"):
        unknown.batches(1, -1)
    assert unknown.batches(1, 500) == 500


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample": 0.5}, "expected data that are stored for data.sample, got data.streaming=true"),
        ({"corrections": "more.jsonl"}, "for data.corrections, got data.streaming=true"),
        ({"unlabelled": "more"}, "for data.unlabelled, got data.streaming=true"),
    ],
)
def test_settings_that_need_stored_data_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ClassificationData(path="data", streaming=True, **settings)


def test_splits_that_files_name_are_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(["train-0.jsonl", "train-1.jsonl", "valid.jsonl", "test.jsonl"]):
        write_lines(tmp_path / name, rows(20, number))
    (tmp_path / "notes.md").write_text("no shard")
    for path in (tmp_path, tmp_path / "*.jsonl"):
        config = ClassificationData(path=str(path), streaming=True)
        found = load(config, COLUMNS)
        assert {split: len(found.splits[split]) for split in found.splits} == {
            "train": 40,
            "validation": 20,
            "test": 20,
        }
        assert found.stream is not None
        assert [shard.name for shard in found.stream.shards] == ["train-0.jsonl", "train-1.jsonl"]
    assert "1 files in " in capsys.readouterr().err
    (tmp_path / "train-0.jsonl").rename(tmp_path / "more.jsonl")
    with pytest.raises(UserError, match=r"got some of test and train and validation and others"):
        streamed(tmp_path)


def test_a_single_document_is_not_held_out_of_itself(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("one line of words\n" * 300)
    config = StreamedData(path=str(tmp_path / "book.txt"), streaming=True)
    with pytest.raises(UserError, match=r"expected several documents in the sample of data.streaming, got one"):
        load(config, [Text("text", "text_column")])


def test_another_set_of_shards_does_not_continue_a_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", rows(20, 0))
    before = streamed(tmp_path).fingerprint()
    (tmp_path / "a.jsonl").touch()
    assert streamed(tmp_path).fingerprint() == before
    StreamBatches(Place(), 5, 0, 1, before).save(tmp_path)
    StreamBatches(Place(), 5, 0, 1, before).restore(tmp_path)
    write_lines(tmp_path / "b.jsonl", rows(20, 1))
    with pytest.raises(UserError, match="expected the shards that this run began with"):
        StreamBatches(Place(), 5, 0, 1, streamed(tmp_path).fingerprint()).restore(tmp_path)


class Place:
    """Batches of which only the place matters."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        assert state == {}


def test_what_cannot_be_streamed_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("nothing")
    with pytest.raises(UserError, match=r"expected files of rows .* to stream, got none"):
        streamed(tmp_path)
    write_lines(tmp_path / "bad.jsonl", [*rows(3, 0), {"text": "no label"}])
    with pytest.raises(UserError, match=r"bad.jsonl, line 4: no label; fix it, or set data.skip_bad_rows=true"):
        ShardReader(streamed(tmp_path), 0).block()
    reader = ShardReader(streamed(tmp_path, skip_bad_rows=True), 0)
    assert len(reader.block()) == 3
    with pytest.raises(UserError, match="start fewer processes"):
        ShardReader(streamed(tmp_path, skip_bad_rows=True), 0, 6, 7).block()
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(UserError, match=r"bad.parquet: expected a parquet file, got a damaged or packed one"):
        streamed(tmp_path)
    with pytest.raises(UserError, match="streaming"):
        recipes.load("regression", [f"data.path={tmp_path}", "data.streaming=true"])


SMALL = [
    "data.streaming=true",
    "data.test_fraction=0.1",
    "training.per_device_train_batch_size=4",
    "training.max_minutes=0",
]
STEPS = ["training.eval_strategy=steps", "training.eval_steps=7", "training.logging_steps=1", "training.max_steps=40"]
CLASSES = [
    "classify",
    *SMALL,
    *STEPS,
    "model.dim=16",
    "model.heads=2",
    "model.feed_forward_dim=16",
    "data.vocab_size=100",
]
TEXTS = [
    *("model-text", *SMALL, *STEPS, "model.dim=16", "model.heads=2", "model.depth=1", "model.feed_forward_dim=16"),
    *("data.vocab_size=300", "training.segment_length=8", "training.warmup_steps=2", "model.wide=false"),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("recipe", [CLASSES, TEXTS], ids=lambda recipe: recipe[0])
def test_a_run_killed_in_the_middle_of_a_shard_resumes_to_the_same_losses(
    recipe: list[str], folder: Path, tmp_path: Path
) -> None:
    arguments = [*recipe, f"data.path={folder}"]
    train(arguments[0], arguments[1:], run=tmp_path / "whole", progress=False)
    run = tmp_path / "run"
    checkpoint = killed(arguments, run)
    assert (checkpoint / "stream-0.json").is_file()
    train(arguments[0], arguments[1:], run=run, resume=True, progress=False)
    same_result(run, tmp_path / "whole")
    one, other = (json.loads((path / "metrics.json").read_text())["history"] for path in (run, tmp_path / "whole"))
    losses = [entry["train_loss"] for entry in other if "train_loss" in entry]
    assert len(losses) == 40
    assert [entry["train_loss"] for entry in one if "train_loss" in entry] == losses
    if recipe is CLASSES:
        assert evaluate(run).split == "test"
        assert evaluate(run, str(folder / "a.jsonl")).split == "all"
