"""Files of the impressions of each split, and of the news that these name: `find_recorded`."""

import dataclasses
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longspan.data.columns.kinds import Column
from longspan.data.sources.files.addresses import named
from longspan.data.sources.files.opening import examine, expand, packed_suffix
from longspan.data.sources.formats.conll import list_splits
from longspan.data.sources.formats.folders import SPLIT_NAMES, is_folder, sub_folders, visible
from longspan.data.sources.formats.schema import Schema, schema_of
from longspan.data.sources.formats.tab_separated import first_fields
from longspan.data.sources.formats.tables import FORMATS, PLAIN, column_names
from longspan.data.sources.locating import SPLITS
from longspan.errors import UserError, did_you_mean
from longspan.tasks.recommendation.columns import chosen, impression_columns, news_columns
from longspan.tasks.recommendation.options import RecommendationData

Kind = Literal["mind", "impressions", "log"]
"""Where impressions come from: MIND's files, a table with a row for each, or a click log."""

BEHAVIORS = ("impression", "user", "time", "history", "candidates")
NEWS = ("item", "category", "subcategory", "title", "abstract", "url", "title_entities", "abstract_entities")
"""The columns of MIND's files, https://github.com/msnews/msnews.github.io/blob/master/assets/doc/introduction.md"""

_SHOWN = re.compile(r"\s*\S+-[01](?:\s+\S+-[01])*\s*")
HUB = "hub:"


@dataclass(frozen=True)
class Location:
    """The impressions of one split.

    Attributes:
        path: The file, or the address of a data set of the Hub.
        kind: Their kind.
        names: The names of the file's columns, as far as they can be told.
    """

    path: Path | str
    kind: Kind
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundFiles:
    """Files to read.

    Attributes:
        splits: Where the impressions of each split are.
        news: The files of news, each once.
    """

    splits: dict[str, Location]
    news: list[Path]


def find_recorded(data: RecommendationData, training: bool, *, news: bool = True) -> FoundFiles:
    """Return the files that the settings name, after a look at the first lines of each.

    Args:
        data: The settings.
        training: Whether to require a training split.
        news: Whether to require a table of news with the impressions.

    Raises:
        UserError: No such files, or some are missing.
    """
    splits: dict[str, Location] = {}
    if data.path.startswith(HUB):
        splits["train"] = Location(data.path, "log")
    elif data.path:
        path = expand(data.path)
        folder = stat.S_ISDIR(examine(path, "data.path").st_mode)
        files = _of_folder(path) if folder else {"train": path}
        splits = {split: _location(file, data) for split, file in files.items()}
    for split in SPLITS:
        if given := getattr(data, split):
            path = expand(given)
            folder = stat.S_ISDIR(examine(path, f"data.{split}").st_mode)
            file = _called("behaviors", path) if folder else path
            if file is None:
                raise UserError(
                    f"data.{split} must be a file, or a folder with news.tsv and behaviors.tsv, got {given!r} without; "
                    "name another."
                )
            splits[split] = _location(file, data)
    splits = {split: splits[split] for split in SPLITS if split in splits}
    if "train" not in splits and (training or not splits):
        got = f"only {' and '.join(splits)} data" if splits else "none"
        raise UserError(f"expected training data, got {got}; set data.path to a folder or a file, or set data.train.")
    logs = [location.kind == "log" for location in splits.values()]
    if any(logs) and not all(logs):
        raise UserError(
            "expected either click logs or impressions for all splits, got both; name files of the same kind, and see "
            "data.candidates_column."
        )
    if training and not any(logs) and data.clicked_column != RecommendationData.clicked_column:
        raise UserError(
            f"expected data.clicked_column with a click log, got {data.clicked_column!r} with impressions, whose "
            "candidates say what was clicked, as in N1-1 N2-0; leave it out."
        )
    return FoundFiles(splits, _news(data, splits, needed=news))


def is_headed(path: Path, data: RecommendationData, names: Iterable[str]) -> bool:
    """Return whether a table has a header: all do but MIND's, which lack the columns of these names."""
    if packed_suffix(path) not in (".tsv", PLAIN):
        return True
    return not {*first_fields(path, data.encoding)}.isdisjoint(names)


def table_schema(
    columns: list[Column],
    data: RecommendationData,
    path: Path | str,
    *,
    names: Sequence[str] = (),
    predicting: bool = False,
) -> Schema:
    """Schema of a table; for `predicting`, it may lack optional columns that training had by another name.

    `names` are those of its columns, if they are known.

    Raises:
        UserError: The settings name a column that the table lacks.
    """
    schema = schema_of(columns, plain(data) if packed_suffix(Path(path)) == PLAIN else data)
    present = list(names) or ([] if str(path).startswith(HUB) else column_names(Path(path), schema))
    if present and schema.header:
        for name in chosen(columns, data):
            column = next(column for column in columns if getattr(data, column.setting) == name)
            usual = getattr(RecommendationData, column.setting)
            if name not in present and (usual in present or column.required or not predicting):
                raise UserError(
                    f"expected a column {name!r} in {named(path)}, got {', '.join(map(repr, present))}; "
                    + (did_you_mean(name, present) or f"set data.{column.setting} to one of them.")
                )
    return schema


def plain(data: RecommendationData) -> RecommendationData:
    """Return the settings for a .txt file: fields separated by tabs, the first being user, text and clicked."""
    usual = {field.name: field.default for field in dataclasses.fields(data)}
    columns = {"user_column": "1", "text_column": "2", "clicked_column": "3"}
    changed: dict[str, Any] = {name: place for name, place in columns.items() if getattr(data, name) == usual[name]}
    if data.delimiter == "auto":
        changed["delimiter"] = "tab"
    return dataclasses.replace(data, header=False, **changed)


def _location(path: Path, data: RecommendationData) -> Location:
    """Kind of a file, from its first line."""
    if packed_suffix(path) in (".tsv", PLAIN):
        fields = first_fields(path, data.encoding)
        shown = len(fields) == len(BEHAVIORS) and _SHOWN.fullmatch(fields[-1])
        as_mind = path.name.startswith("behaviors.") and data.candidates_column not in fields
        if shown or as_mind:
            return Location(path, "mind")
    if packed_suffix(path) == PLAIN:
        return Location(path, "log")
    # Only the names count here: what else is wrong is said when it is read.
    names = column_names(path, schema_of(impression_columns(data), data))
    if data.candidates_column in names or (data.history_column in names and data.clicked_column not in names):
        return Location(path, "impressions", tuple(names))
    of_logs = (data.text_column, data.clicked_column, data.item_column)
    if names and {*names}.isdisjoint(of_logs):
        wanted = (data.history_column, data.candidates_column, *of_logs)
        hints = (hint for name in names if (hint := did_you_mean(name, wanted)))
        raise UserError(
            f"expected impressions, with a column {data.history_column!r} or {data.candidates_column!r}, or a click "
            f"log, with {data.text_column!r}, in {named(path)}, got {', '.join(map(repr, names))}; "
            + next(hints, "rename columns, or set data.text_column, data.history_column and so on.")
        )
    return Location(path, "log", tuple(names))


def _of_folder(path: Path) -> dict[str, Path]:
    """Return the file of each split in a folder."""
    if own := _called("behaviors", path):
        return {"train": own}
    found: dict[str, Path] = {}
    for name in sub_folders(path):
        words = re.split(r"[^a-z]+", name.lower())
        for split in dict.fromkeys(SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES):
            file = _called("behaviors", path / name)
            if file is None:
                continue
            if split in found:
                raise UserError(
                    f"expected one folder for the {split} split in {str(path)!r}, got {found[split].parent.name!r} and "
                    f"{name!r}; name them with data.train, data.validation and data.test."
                )
            found[split] = file
    files = [Path(entry.path) for entry in visible(path) if not is_folder(entry)]
    found = found or list_splits([file for file in files if packed_suffix(file) in (*FORMATS, PLAIN)], SPLIT_NAMES)
    if not found:
        raise UserError(
            f"expected news.tsv and behaviors.tsv in the folder {str(path)!r} or in sub-folders of it such as "
            "MINDsmall_train and MINDsmall_dev, or click logs called train and test, got neither; unpack MIND there, "
            "or name a file."
        )
    return found


def _called(stem: str, folder: Path) -> Path | None:
    """Return the table in a folder whose name without suffixes is `stem`; None if it is missing."""
    found = [
        Path(entry.path)
        for entry in visible(folder)
        if not is_folder(entry)
        and entry.name.partition(".")[0] == stem
        and packed_suffix(Path(entry.path)) in (*FORMATS, PLAIN)
    ]
    if len(found) > 1:
        raise UserError(
            f"expected one file called {stem} in the folder {str(folder)!r}, got {found[0].name!r} and "
            f"{found[1].name!r}; remove one, or name the other itself."
        )
    return found[0] if found else None


def _news(data: RecommendationData, splits: dict[str, Location], *, needed: bool) -> list[Path]:
    files: dict[Path, None] = {}
    if data.news:
        path = expand(data.news)
        if stat.S_ISDIR(examine(path, "data.news").st_mode):
            raise UserError(f"data.news must be a file, got the folder {data.news!r}; name the table of news in it.")
        files[path] = None
    for location in splits.values():
        if location.kind == "log":
            continue
        beside = _called("news", Path(location.path).absolute().parent)
        if beside is None and not data.news and needed:
            raise UserError(
                f"expected a table of news, news.tsv, next to {str(location.path)!r}, got none; set data.news to it."
            )
        if beside is not None:
            files[beside] = None
    return list({path.resolve(): path for path in files}.values())


def news_names(data: RecommendationData) -> list[str]:
    """Return the names of the columns that a table of news with a header has."""
    return [getattr(data, column.setting) for column in news_columns(data)]
