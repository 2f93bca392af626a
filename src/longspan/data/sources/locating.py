"""Finding the data that the settings name, split by split: `find`. Only names, sizes and times of files are read."""

import hashlib
import json
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from longspan.data.columns.files import File
from longspan.data.columns.kinds import Text, Words
from longspan.data.columns.media import Media
from longspan.data.columns.values import BadCell
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.files.addresses import named
from longspan.data.sources.files.decoding import encoding_name, mend
from longspan.data.sources.files.encodings import AUTO
from longspan.data.sources.files.full_disk import needing_room
from longspan.data.sources.files.opening import examine, expand
from longspan.data.sources.formats.conll import list_splits as list_columns
from longspan.data.sources.formats.folders import (
    SPLIT_NAMES,
    DocumentFile,
    Documents,
    Listed,
    document_file,
    is_folder,
    list_classes,
    list_files,
    list_splits,
    list_texts,
    media_of,
    read_files,
    sub_folders,
    visible,
)
from longspan.data.sources.formats.packages import list_packages, read_packages, site_folders
from longspan.data.sources.formats.parallel import parallel_files, read_parallel
from longspan.data.sources.formats.rows import is_document, is_lines
from longspan.data.sources.formats.schema import Row, Schema
from longspan.data.sources.formats.tables import is_object, list_objects, read_objects, read_table
from longspan.errors import UserError, first_line
from longspan.machine.printing import printable

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "validation", "test")

_MOST_COLUMNS = 1000
"""Number of columns of a csv file of a data set whose cells are read as they are."""


@dataclass(frozen=True)
class Source:
    """The rows of one split.

    Attributes:
        name: Their name in messages.
        facts: Everything they depend on, as JSON.
        reader: Reads them with a schema.
        schema: Their columns.
        size: Number of bytes that are read, packed or not.
        single: Whether they are one document, of which there is no sample.
        others: Number of files of a folder that are no documents, by suffix.
        remarks: Other parts of a folder that are not read.
    """

    name: str
    facts: Any
    reader: Callable[[Schema], Iterator[Row]]
    schema: Schema
    size: int = 0
    single: bool = False
    others: dict[str, int] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def rows(self) -> Iterator[Row]:
        """Read the rows."""
        return self.reader(self.schema)

    def sampled(self, share: float, seed: int) -> "Source":
        """A share of the rows, drawn by their places; a single document is left whole."""
        if self.single:
            return self
        return replace(
            self, facts=[self.facts, "sample", share, seed], schema=replace(self.schema, sample=share, seed=seed)
        )


def find(config: Any, schema: Schema, training: bool) -> dict[str, Source]:
    """Return the source of each split found.

    Args:
        config: The settings.
        schema: Columns to read.
        training: Whether a training split is required.

    Raises:
        UserError: There are no data, no training data, or a column is missing.
    """
    found = _find_path(config, schema) if config.path else {}
    for split in SPLITS:
        if path := getattr(config, split):
            found[split] = _find_file(expand(path), f"data.{split}", schema)
    if "train" not in found and (training or not found):
        names = " and ".join(found)
        given = f"only {names} data" + (f" in {config.path!r}" if config.path else "")
        raise UserError(
            f"expected training data, got {given if found else 'none'}; set data.path to a file, a folder, 'packages' "
            "or 'hub:NAME', or set data.train."
        )
    return found


def _find_path(config: Any, schema: Schema) -> dict[str, Source]:
    if config.path == "packages":
        schema.document_columns("'packages'")
        files = list_packages(site_folders(), config.classes)
        reader = partial(read_packages, files, files_per_class=config.files_per_class)
        source = _source("the installed packages", files, reader, schema)
        return {"train": replace(source, facts=[source.facts, config.files_per_class])}
    if config.path.startswith("hub:"):
        hub = find_hub(config.path.removeprefix("hub:"), schema)
        return {split: _joined_rows(source) for split, source in hub.items()}
    path = expand(config.path)
    if parallel_files(path, schema, "data.path") or not stat.S_ISDIR(examine(path, "data.path").st_mode):
        return {"train": _find_file(path, "data.path", schema)}
    if schema.lines:
        return _find_parallel(path, schema)
    if schema.of(Words):
        columns = list_columns([Path(entry.path) for entry in visible(path) if not is_folder(entry)], SPLIT_NAMES)
        return {split: _find_file(file, "data.path", schema) for split, file in columns.items()}
    if objects := list_objects(path, schema):
        splits = list_splits(objects) or {"train": objects}
        return {split: _objects(path, found, schema) for split, found in splits.items()}
    document, label = schema.document_columns(f"the folder {config.path!r}")
    if label is None:
        files_here = list_files(path)
        by_split = list_splits(files_here) or {"train": files_here}
        media = media_of(document)
        return {split: _files(path, list_texts(path, found, media), schema) for split, found in by_split.items()}
    names = sub_folders(path)
    if "train" in names or (names and SPLIT_NAMES.keys() >= set(names)):
        return {
            split: _classes(path / name, schema, f"{name}/") for name, split in SPLIT_NAMES.items() if name in names
        }
    return {"train": _classes(path, schema)}


def _find_parallel(folder: Path, schema: Schema) -> dict[str, Source]:
    """Return the parallel files of each split in a folder, such as train.en and train.de."""
    found = {
        split: _parallel(files, schema)
        for name, split in SPLIT_NAMES.items()
        if (files := parallel_files(folder / name, schema, "data.path"))
    }
    if not found:
        wanted = " and ".join(f"train.{name}" for name in schema.lines)
        raise UserError(
            f"expected parallel files such as {wanted} in the folder {str(folder)!r}, got none; name files with "
            "data.train, data.validation and data.test, or set "
            f"{' and '.join(f'data.{column.setting}' for column in schema.columns)} to the ends of their names."
        )
    return found


def _parallel(files: Sequence[Path], schema: Schema) -> Source:
    found = [document_file(file.resolve(), printable(file.name)) for file in files]
    return _source(" and ".join(file.where for file in found), found, partial(read_parallel, files), schema)


def _find_file(path: Path, setting: str, schema: Schema) -> Source:
    if files := parallel_files(path, schema, setting):
        return _parallel(files, schema)
    facts = examine(path, setting)
    if stat.S_ISDIR(facts.st_mode):
        if objects := list_objects(path, schema):
            return _objects(path, objects, schema)
        document, label = schema.document_columns(f"the folder {str(path)!r}")
        if "train" in sub_folders(path):
            wanted = "a folder of text files" if label is None else "a folder with one sub-folder per class"
            raise UserError(
                f"{setting} must be a file or {wanted}, got {str(path)!r}, which contains train/; set data.path to it."
            )
        if label is not None:
            return _classes(path, schema)
        return _files(path, list_texts(path, list_files(path), media_of(document)), schema)
    if is_object(path, schema):
        return _objects(path, [Listed(str(path.resolve()), printable(path.name))], schema)
    if is_lines(path, schema):
        return _parallel([path], schema)
    if is_document(path, schema):
        file = document_file(path.resolve(), printable(path.name))
        return replace(_source(file.where, [file], partial(_read_one, file), schema), single=True)
    reader = partial(read_table, path)
    names, size = _files_named(schema, reader)
    table = [str(path.resolve()), facts.st_size, facts.st_mtime_ns, schema.facts, names]
    return _joined_rows(Source(named(path), table, reader, schema, facts.st_size + size))


def _files(path: Path, found: Documents, schema: Schema) -> Source:
    source = _source(printable(str(path)), found.files, partial(read_files, found.files), schema)
    return replace(source, others=found.others, remarks=found.remarks)


def _objects(path: Path, found: Sequence[Listed], schema: Schema) -> Source:
    files = [document_file(*file) for file in found]
    return _source(printable(str(path)), files, partial(read_objects, files), schema)


def _classes(root: Path, schema: Schema, prefix: str = "") -> Source:
    text, label = schema.document_columns(f"the folder {str(root)!r}")
    if isinstance(text, Text) and schema.names[text.name] != "text":
        raise UserError(
            f"a folder of classes has only the text column 'text', the contents of its files, got data.{text.setting}="
            f"{schema.names[text.name]!r}; leave data.{text.setting} out."
        )
    return _files(
        root, list_classes(root, schema.names[label.name] if label else "label", prefix, media_of(text)), schema
    )


def _source(
    name: str, files: Sequence[DocumentFile], read: Callable[[Schema], Iterator[Row]], schema: Schema
) -> Source:
    """Source of the rows in files."""
    facts = [[list(file) for file in files], schema.facts]
    return Source(name, facts, read, schema, sum(file.size for file in files))


def _files_named(schema: Schema, reader: Callable[[Schema], Iterator[Row]]) -> tuple[str, int]:
    """A hash of the files that a table names, missing ones included, and their size; nothing if it names none.

    Files may change, appear or disappear while the table stays the same.
    """
    paths = [
        File(column.name, column.setting, required=column.required) if schema.names_files(column) else column
        for column in schema.columns
    ]
    schema = replace(schema, columns=tuple(paths))
    columns = [column for column in paths if isinstance(column, File)]
    if not columns:
        return "", 0
    digest, size = hashlib.sha256(), 0
    for row in reader(schema):
        facts: list[Any] = [row.problem]
        for column in columns:
            if path := column.path_of(row.values.get(column.name)):
                found = examine(Path(path))
                facts += [path, found.st_size, found.st_mtime_ns]
                size += found.st_size
        digest.update(json.dumps(facts).encode())
    return digest.hexdigest(), size


def _read_one(file: DocumentFile, schema: Schema) -> Iterator[Row]:
    """Read a file that was named by itself: if it is bad there is no row to leave out, so it is an error."""
    encoding = "an encoding that is known" if schema.encoding == AUTO else encoding_name(schema.encoding)
    for row in read_files([file], schema):
        if not row.values and ", byte " not in row.where:
            raise UserError(f"expected text in {file.where!r}, got {row.problem}; choose another file.")
        if not row.values:
            raise UserError(
                f"expected text in {encoding}, got another encoding or no text at {row.where}; {mend(schema.encoding)}."
            )
        if row.problem:
            raise UserError(f"expected text in {file.where!r}, got an empty file; choose a file with text.")
        yield row


def _joined_rows(source: Source) -> Source:
    """Return a table whose rows about one thing are one row, if it has such."""
    if source.schema.merges:
        return replace(
            source,
            facts=[source.facts, "merged"],
            reader=lambda schema: merged_rows(source.reader(schema), schema),
        )
    return _joined(source) if source.schema.joined else source


def _joined(source: Source) -> Source:
    """Join the rows as the lines of one document."""

    def rows(schema: Schema) -> Iterator[Row]:
        lines, name = [], schema.columns[0].name
        for row in source.reader(schema):
            text = row.values.get(name)
            if text is None:
                yield row
            else:
                # An empty row is an empty line.
                lines.append(text if text.endswith("\n") else f"{text}\n")
        text = "".join(lines)
        yield Row({name: text}, source.name, "" if text.strip() else f"no {name}")

    return replace(source, facts=[source.facts, "joined"], reader=rows, single=True)


def find_hub(address: str, schema: Schema) -> dict[str, Source]:
    """Return the splits of a data set from the Hub (NAME, OWNER/NAME, OWNER/NAME/CONFIG) or from a ./FOLDER."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    name, settings, is_local = hub_name(address)
    files = [column for column in schema.of(File) if not isinstance(column, Media)]
    if files and not is_local:
        raise UserError(
            f"data.{files[0].setting} needs files next to the table, got a data set of the Hub, which comes without "
            "them; use a table next to its files."
        )
    try:
        with needing_room():
            loaded = load_dataset(name, settings, **(csv_options(name) if is_local else {}))
    except UserError:
        raise
    except (DatasetsError, OSError, ValueError) as error:
        raise UserError(
            f"expected to load the data set {address!r}, got an error ({first_line(error)}); check its name, "
            "OWNER/NAME or OWNER/NAME/CONFIG, and the connection."
        ) from None
    sources = {
        split: _hub_split(loaded[found], f"{address}, {found}", schema, Path(name))
        for found, split in SPLIT_NAMES.items()
        if found in loaded
    }
    if not sources:
        raise UserError(
            f"expected a split 'train' in the data set 'hub:{address}', got {', '.join(loaded)}; use another data set."
        )
    return sources


def hub_name(address: str) -> tuple[str, str | None, bool]:
    """Name of a data set, OWNER/NAME or a folder; its configuration; and whether it is a folder, which is there.

    Raises:
        UserError: The folder does not exist.
    """
    if address.startswith((".", "/", "~")):
        folder = expand(address)
        examine(folder, "data.path")
        return str(folder), None, True
    parts = address.split("/", 2)
    return "/".join(parts[:2]), parts[2] if len(parts) > 2 else None, False


def csv_options(folder: str) -> dict[str, Any]:
    """Options that keep the cells of a folder's csv files as they are: 007 is no number there, and None is a text."""
    from datasets import load_dataset_builder
    from datasets.packaged_modules.csv.csv import CsvConfig

    builder = load_dataset_builder(folder)
    if not isinstance(builder.config, CsvConfig) or builder.config.features is not None:
        return {}
    return {"converters": dict.fromkeys(range(_MOST_COLUMNS), str), "keep_default_na": False}


def _hub_split(dataset: "Dataset", name: str, schema: Schema, folder: Path) -> Source:
    from datasets import Audio, Image

    if any("." in column and column not in dataset.column_names for column in schema.sources):
        # Such as translation.en of {"translation": {"en": ..., "de": ...}}.
        dataset = dataset.flatten()
    schema.check_present(name, dataset.column_names)
    used = [column for column in schema.sources if column in dataset.column_names]
    kinds = {column: dataset.features[column] for column in used}
    for column, kind in kinds.items():
        if isinstance(kind, Image | Audio):
            # As files: whoever reads them says what is wrong with one.
            dataset = dataset.cast_column(column, type(kind)(decode=False))
    # Their whole numbers mean what their type says.
    arrays = [column for column, kind in kinds.items() if not isinstance(kind, Image | Audio)]
    typed = {
        name: dataset.features.arrow_schema.field(name).type
        for column in schema.of(Media)
        if (name := schema.names[column.name]) in arrays
    }

    def rows(schema: Schema) -> Iterator[Row]:
        for number, row in enumerate(dataset.select_columns(used), 1):
            cells = {column: class_names(row[column], kind) for column, kind in kinds.items()}
            cells |= {
                column: schema.cells(column, pa.array([cells[column]], kind))[0] for column, kind in typed.items()
            }
            yield schema.row(cells, f"{name}, row {number}", folder)

    names, size = _files_named(schema, rows)
    facts = [fingerprint(dataset), schema.facts, names]
    return Source(name, facts, rows, schema, dataset.data.nbytes + size)


def class_names(value: Any, kind: Any) -> Any:
    """Return a cell with the names of classes in place of their numbers, if the data set has them."""
    from datasets import ClassLabel, List

    if isinstance(kind, List) and isinstance(value, list):
        return [class_names(item, kind.feature) for item in value]
    if isinstance(kind, ClassLabel):
        # The Hub's convention for test sets with secret labels is -1.
        return None if value is None or value < 0 else kind.int2str(value)
    return value


_AGAIN = "a recording that is no file and is in a row before, too (one row may have a list of all its segments)"


def merged_rows(rows: Iterable[Row], schema: Schema) -> Iterator[Row]:
    """Yield rows, those of one file as one, in the order of the first of each.

    All columns but those that merge are equal in the rows of one file. A bad row makes that one bad, as the other rows
    alone would be wrong about the file. Rows whose value is no file, such as an array, come first, as they are. They
    are not kept to be merged, so a second row with the same value is bad.
    """
    (file,) = schema.of(File)
    assert isinstance(file, File)
    merging = [column for column in schema.columns if column.merges]
    found: dict[str, list[Row]] = {}
    contents: set[bytes] = set()
    for row in rows:
        value = row.values.get(file.name)
        if value is None:
            yield row
            continue
        if file.path_of(value) is None:
            content = file.content(value)
            yield row._replace(problem=row.problem or _AGAIN) if content in contents else row
            contents.add(content)
            continue
        own = {name: value for name, value in row.values.items() if name not in {column.name for column in merging}}
        found.setdefault(json.dumps(own), []).append(row)
    for same in found.values():
        bad = next((row for row in same if row.problem), None)
        if bad is not None or len(same) == 1:
            yield bad or same[0]
            continue
        first = same[0]
        try:
            values = {column.name: column.merged([row.values[column.name] for row in same]) for column in merging}
        except BadCell as error:
            yield first._replace(problem=str(error))
            continue
        yield first._replace(values={**first.values, **values})
