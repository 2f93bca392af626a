"""Training data that are read again in each pass instead of being stored: shards, a sample of them, and their rows.

A shard is a table (csv, tsv, JSON lines, parquet), a text file, or a part of a data set of the Hub. What has to be
known before training, such as the vocabulary, comes from a sample: the beginnings of shards. `ShardReader` reads the
rows of all shards in blocks whose size is bounded, and can continue from any block.
"""

import copy
import glob
import hashlib
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyarrow import ArrowException

from longspan.data.columns.files import File
from longspan.data.sources.files.decoding import open_text
from longspan.data.sources.files.opening import encoding_of, examine, expand, open_measured, open_packed, packed_suffix
from longspan.data.sources.formats.folders import SPLIT_NAMES, list_files, split_of
from longspan.data.sources.formats.rows import is_document
from longspan.data.sources.formats.schema import Row, Schema
from longspan.data.sources.formats.tables import FORMATS, PLAIN, read_table
from longspan.data.sources.locating import Source, class_names, csv_options, find, hub_name
from longspan.errors import UserError, first_line
from longspan.machine.printing import json_text, note, printable

#: Shards of which a sample is taken, and shards that are read in turns.
_SAMPLED, _OPEN = 64, 8
#: Rows and characters of a block, and rows that are read of a shard before it is the turn of the next.
_ROWS, _CHARACTERS, _TURN = 8192, 1 << 23, 64
#: Characters of the documents that text files are cut into, at ends of lines; bytes of a file, packed or not, by which
#: rows are estimated.
_PART, _LOOK = 1 << 20, 1 << 20

Place = dict[str, Any]
"""Where the next block begins, as JSON."""


@dataclass(frozen=True)
class Shard:
    """Rows that are read in order.

    Attributes:
        name: Its name in messages.
        facts: Everything its rows depend on besides the schema, as JSON.
        read: Reads its rows with a schema.
        rows: Number of its rows, estimated for large text files; 0 if unknown.
    """

    name: str
    facts: Any
    read: Callable[[Schema], Iterator[Row]]
    rows: int


@dataclass(frozen=True)
class Streamed:
    """Training rows of shards.

    Attributes:
        shards: The shards.
        schema: Their columns.
        skip: Whether bad rows are left out.
        held_out: Digests of the documents that are not trained on.
        digest: Digest of the document in the values of a row.
        sampled: Number of training rows in the sample.
        rows: Number of training rows in all, estimated; 0 if unknown.
    """

    shards: Sequence[Shard]
    schema: Schema
    skip: bool
    held_out: frozenset[bytes]
    digest: Callable[[dict[str, Any]], bytes]
    sampled: int
    rows: int

    def batches(self, of_sample: int, most: int) -> int:
        """Number of batches of an epoch: about a pass, or all if nobody knows how many rows there are.

        Args:
            of_sample: Number of batches of the training rows in the sample.
            most: Number of batches of the whole training run; 0 or less if that depends on the epochs.

        Raises:
            UserError: Neither is known.
        """
        if not self.rows and most <= 0:
            raise UserError(
                "expected training.max_steps to stream a data set that does not say how many rows it has, got none; "
                "set it, and training.max_minutes=0."
            )
        return max(1, round(of_sample * self.rows / self.sampled) if self.rows else most)

    def fingerprint(self) -> str:
        """Digest of the names and sizes of the shards, in order; copies on another machine have the same."""
        known = [[shard.name, shard.facts[1], shard.rows] for shard in self.shards]
        return hashlib.sha256(json_text(known).encode("utf-8", "backslashreplace")).hexdigest()

    def details(self) -> dict[str, Any]:
        """Numbers of shards, of their rows and of those in the sample, for the results."""
        return {"streaming": {"shards": len(self.shards), "rows": self.rows, "sampled": self.sampled}}


def find_shards(config: Any, schema: Schema) -> dict[str, list[Shard]]:
    """The shards of each split that `data.path` or `data.train` names.

    Files belong to a split if they, or their folder in the first level, have its name, such as test.jsonl; otherwise to
    "train".

    Raises:
        UserError: There are none, they cannot be read, or a column is missing. Or only some have the name of a split.
    """
    path = config.train or config.path
    if path.startswith("hub:"):
        return _hub_shards(path.removeprefix("hub:"), schema)
    if glob.has_magic(path) and not expand(path).exists():
        files = {name: Path(name).name for name in sorted(glob.glob(str(expand(path)), recursive=True))}  # noqa: PTH207
    elif expand(path).is_dir():
        files = {file.path: file.where for file in list_files(expand(path))}
    else:
        files = {str(expand(path)): ""}
    found = {name: where for name, where in files.items() if not Path(name).is_dir()}
    read = {name: where for name, where in found.items() if packed_suffix(Path(name)) in (*FORMATS, PLAIN)}
    if not read:
        raise UserError(
            f"expected files of rows ({', '.join(FORMATS)}) or of text ({PLAIN}) to stream, got none in {path!r}; set "
            "data.path to a file, a folder, a pattern such as 'data/*.jsonl', or 'hub:NAME'."
        )
    if others := len(found) - len(read):
        note(f"{others:,} files in {printable(path)} are neither tables nor text, and are not streamed")
    splits: dict[str, list[Shard]] = {}
    for name, where in read.items():
        splits.setdefault(split_of(where), []).append(_file_shard(Path(name), schema))
    if splits.keys() & {"validation", "test"} and ("" in splits or "train" not in splits):
        raise UserError(
            f"expected files of training data, or of train and other splits by their names, in {path!r}, got some of "
            f"{' and '.join(sorted(splits.keys() - {''}))} and others; name data.train and data.validation."
        )
    return {"train": splits.pop("", []) + splits.pop("train", []), **splits}


def sampled_sources(shards: dict[str, list[Shard]], config: Any, schema: Schema) -> dict[str, Source]:
    """Sources of the sample of each split; data.validation and data.test are read whole."""
    sources = {split: _sample(found, config.streaming_megabytes, schema) for split, found in shards.items()}
    if config.validation or config.test:
        sources |= find(replace(config, path="", train=""), schema, training=False)
    return sources


def note_sample(stream: Streamed, sampled: int) -> None:
    """Say what the sample is."""
    total = f"about {stream.rows:,}" if stream.rows else "an unknown number of"
    note(
        f"data.streaming: vocabulary, labels, counts and held-out rows are of a sample of {sampled:,} rows, the "
        f"beginnings of {min(_SAMPLED, len(stream.shards)):,} of {len(stream.shards):,} shards; training reads "
        f"{total} rows in a pass"
    )


def _sample(shards: Sequence[Shard], megabytes: float, schema: Schema) -> Source:
    chosen = [shards[place] for place in np.linspace(0, len(shards) - 1, min(len(shards), _SAMPLED)).astype(int)]
    most = megabytes * 1e6 / len(chosen)

    def rows(schema: Schema) -> Iterator[Row]:
        for shard in chosen:
            size = 0
            for row in shard.read(schema):
                yield row
                size += _size(row, schema)
                if size >= most:
                    break

    name = chosen[0].name if len(shards) == 1 else f"{chosen[0].name} and {len(shards) - 1:,} shards more"
    facts = ["sample", megabytes, [shard.facts for shard in chosen], schema.facts]
    return Source(name, facts, rows, schema, round(megabytes * 1e6))


def _size(row: Row, schema: Schema) -> int:
    return sum(column.size(row.values.get(column.name)) for column in schema.columns)


def _file_shard(path: Path, schema: Schema) -> Shard:
    facts, kind = examine(path, "data.path"), packed_suffix(path)
    documents = kind not in FORMATS and is_document(path, schema)
    # It says what is wrong with other files.
    read = partial(_parts if documents else read_table, path)
    rows = 0 if kind == ".parquet" or not (documents or kind in FORMATS) else _rows_in(path, kind, facts.st_size)
    if kind == ".parquet":
        try:
            rows = int(pq.read_metadata(path).num_rows)
        except (ArrowException, OSError) as error:
            raise UserError(
                f"{printable(path.name)}: expected a parquet file, got a damaged or packed one ({first_line(error)}); "
                "restore or unpack it."
            ) from None
    return Shard(printable(path.name), [str(path.resolve()), facts.st_size, facts.st_mtime_ns], read, rows)


def _rows_in(path: Path, kind: str, size: int) -> int:
    """Rows of a text file, packed or not, estimated by its beginning."""
    read, rows, quotes, last = 0, 0, 0, b"\n"
    with open_measured(path) as (lines, packed):
        # A little at a time, as some formats read as many packed bytes ahead.
        while block := lines.read(_LOOK // 16):
            read, last = read + len(block), block[-1:]
            if kind == PLAIN:
                rows = -(-read // _PART)
            elif kind in (".csv", ".tsv"):
                # Line breaks in quotation marks end no row.
                values = np.frombuffer(block, np.uint8)
                outside = (np.cumsum(values == ord('"')) + quotes) % 2 == 0
                rows, quotes = rows + int(((values == ord("\n")) & outside).sum()), quotes + block.count(b'"')
            else:
                rows += block.count(b"\n")
            if packed.tell() >= _LOOK:
                share = packed.tell() / size
                break
        else:
            share = 1.0
    rows += last != b"\n" and kind != PLAIN
    return max(1, round(rows / share))


def _parts(path: Path, schema: Schema) -> Iterator[Row]:
    """Read a text file as documents that fit into memory, cut at ends of lines."""
    name, encoding = printable(path.name), encoding_of(path, schema.encoding)
    schema = replace(schema, encoding=encoding)
    column = next(column for column in schema.columns if column.required)

    def row(lines: list[str], number: int) -> Row:
        return schema.row({schema.names[column.name]: "".join(lines)}, f"{name}, part {number}", path.parent)

    with open_packed(path) as raw, open_text(raw, name, encoding, "\n") as lines:
        part: list[str] = []
        size = number = 0
        for line in lines:
            part.append(line)
            size += len(line)
            if size >= _PART:
                number += 1
                yield row(part, number)
                part, size = [], 0
        if "".join(part).strip():
            yield row(part, number + 1)


def _hub_shards(address: str, schema: Schema) -> dict[str, list[Shard]]:
    from datasets import load_dataset_builder
    from datasets.exceptions import DatasetsError

    if files := schema.of(File):
        raise UserError(f"expected texts in the rows to stream, got files (data.{files[0].setting}); download them.")
    name, settings, is_local = hub_name(address)
    try:
        builder = load_dataset_builder(name, settings, **(csv_options(name) if is_local else {}))
        streams = builder.as_streaming_dataset()
    except (DatasetsError, OSError, ValueError, NotImplementedError) as error:
        raise UserError(
            f"expected to stream the data set {address!r}, got an error ({first_line(error)}); check its name, "
            "OWNER/NAME or OWNER/NAME/CONFIG, and the connection."
        ) from None
    known = builder.info.splits or {}
    found: dict[str, list[Shard]] = {}
    for split, stream in streams.items():
        if split not in SPLIT_NAMES:
            continue
        title, files = f"{address}, {split}", (builder.config.data_files or {}).get(split, [])
        # Times of files in a folder, or the commit of a data set of the Hub.
        versions = getattr(files, "origin_metadata", [])
        total = int(getattr(known.get(split), "num_examples", 0) or 0)
        found[SPLIT_NAMES[split]] = [
            Shard(
                title if stream.num_shards == 1 else f"{title}, shard {number + 1}",
                [address, split, number, list(files), versions],
                partial(_hub_rows, stream.shard(stream.num_shards, number), title, number),
                total // stream.num_shards,
            )
            for number in range(stream.num_shards)
        ]
    if "train" not in found:
        raise UserError(
            f"expected a split 'train' in the data set 'hub:{address}', got {', '.join(streams)}; use another data set."
        )
    return found


def _hub_rows(stream: Any, title: str, shard: int, schema: Schema) -> Iterator[Row]:
    features, rows = stream.features or {}, iter(stream)
    for number in count(1):
        try:
            row = next(rows, None)
        # Clients of HTTP raise errors of many classes.
        except Exception as error:
            raise UserError(
                f"expected to read on in {title}, got an error ({first_line(error)}); check the connection, and go on "
                "with --resume."
            ) from error
        if row is None:
            return
        if number == 1:
            schema.check_present(title, list(row))
        cells = {name: class_names(row[name], features.get(name)) for name in schema.sources if name in row}
        yield schema.row(cells, f"{title}, shard {shard + 1}, row {number}", Path())


def _close(readers: dict[int, Iterator[Row]]) -> None:
    for rows in readers.values():
        if isinstance(rows, Generator):
            rows.close()
    readers.clear()


class ShardReader:
    """Blocks of the training rows of shards, pass after pass.

    The shards of a pass come in a random order, and some are read in turns, so that neighbours are of several shards.
    Several processes have shards of their own; of fewer shards than processes, each reads its share of the rows.

    Args:
        stream: What is read.
        seed: Seed of the order.
        rank: Number of this process.
        world: Number of processes.

    Attributes:
        place: Where the next block begins.
    """

    def __init__(self, stream: Streamed, seed: int, rank: int = 0, world: int = 1) -> None:
        self.stream, self.seed = stream, seed
        deal_shards = len(stream.shards) >= world
        self.shards = stream.shards[rank::world] if deal_shards else stream.shards
        self._rank, self._world = (0, 1) if deal_shards else (rank, world)
        self.place: Place = {"passes": 0, "next": 0, "turn": 0, "open": []}
        self._readers: dict[int, Iterator[Row]] = {}
        # Files that are open when the interpreter ends are closed while it still can.
        weakref.finalize(self, _close, self._readers)

    def seek(self, place: Place) -> None:
        """Go on from a place; the rows of open shards before it are read once more."""
        self.place = copy.deepcopy(place)
        _close(self._readers)

    def block(self) -> list[Row]:
        """Read the next rows, at most those up to the end of a pass.

        Raises:
            UserError: A row is bad, or there are no rows for this process.
        """
        place, size, started = self.place, 0, False
        rows: list[Row] = []
        while len(rows) < _ROWS and size < _CHARACTERS:
            self._open_shards()
            if not place["open"]:
                place |= {"passes": place["passes"] + 1, "next": 0, "turn": 0}
                if rows:
                    break
                if started:
                    raise UserError(
                        "expected rows to train on in the shards of each process, got none; start fewer processes."
                    )
                started = True
                continue
            place["turn"] %= len(place["open"])
            entry = place["open"][place["turn"]]
            shard, number = entry
            taken = 0
            for row in self._rows(shard, number):
                if number % self._world == self._rank and self._is_wanted(row):
                    rows.append(row)
                number, taken = number + 1, taken + _size(row, self.stream.schema)
                if number - entry[1] == _TURN or taken >= _CHARACTERS // _OPEN:
                    entry[1] = number
                    place["turn"] += 1
                    break
            else:
                del place["open"][place["turn"]], self._readers[shard]
            size += taken
        return rows

    def _open_shards(self) -> None:
        place = self.place
        order = np.random.default_rng((self.seed, place["passes"])).permutation(len(self.shards))
        while len(place["open"]) < _OPEN and place["next"] < len(order):
            place["open"].append([int(order[place["next"]]), 0])
            place["next"] += 1

    def _rows(self, shard: int, start: int) -> Iterator[Row]:
        if shard not in self._readers:
            rows = self._readers[shard] = self.shards[shard].read(self.stream.schema)
            next(islice(rows, start, start), None)
        return self._readers[shard]

    def _is_wanted(self, row: Row) -> bool:
        if row.problem:
            if not self.stream.skip:
                raise UserError(
                    f"{row.where}: {row.problem}; fix it, or set data.skip_bad_rows=true to drop such rows; those of "
                    "the sample are counted."
                )
            return False
        return self.stream.digest(row.values) not in self.stream.held_out
