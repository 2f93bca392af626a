"""Label documents with a trained model, in order and in constant memory: `predict`."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from longspan.data.files import BROKEN, Row, missing, read_rows
from longspan.data.tokens import encode
from longspan.errors import UserError
from longspan.evaluation.classification import make_batches
from longspan.models.limits import limits
from longspan.runs import Run, load_run
from longspan.training.lengths import outputs

#: One window of documents is read, grouped by length and labelled at a time.
WINDOW_DOCUMENTS = 512
WINDOW_CHARACTERS = 1_000_000


def predict(run: Run | Path | str, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Label documents.

    Args:
        run: A run folder, or what `longspan.runs.load_run` returns for it.
        rows: Documents, as `read_documents` or `longspan.data.files.read_rows` yield them. At most
            `WINDOW_DOCUMENTS` are read ahead, fewer once they have `WINDOW_CHARACTERS` together.

    Yields:
        For each row, in order, its `where`, the `label` and the `probabilities` of all labels; or its `where` and an
        `error`, for a document that is empty, could not be read, or is longer than learned positions reach.

    Raises:
        UserError: The run cannot be used, or `rows` raises it: then after what was read before has been yielded.
    """
    loaded = run if isinstance(run, Run) else load_run(run)
    for window in _windows(rows):
        yield from _label(loaded, window)


def read_documents(path: str, text_column: str, stdin: BinaryIO) -> Iterator[Row]:
    """Read what is to be labelled, one document at a time.

    Args:
        path: A csv, tsv, jsonl or parquet file, one document per row; a txt file, which is one document; a folder,
            each txt file in which is one; or "-" for `stdin`: one document per line, where a line that is a JSON
            object gives its `text_column`.
        text_column: The column of the text.
        stdin: Standard input, as bytes.

    Raises:
        UserError: No such file, or one of an unknown kind.
    """
    if path == "-":
        return _lines(stdin, text_column)
    file = Path(path)
    if file.is_dir():
        found = sorted(file.rglob("*.txt"))
        if not found:
            raise UserError(f"there are no txt files in the folder {path!r}: expected one for each document.")
        return (_whole(entry) for entry in found)
    if not file.exists():
        raise UserError(missing(file))
    if file.suffix.lower() == ".txt":
        return iter([_whole(file)])
    return read_rows(file, text_column=text_column, label_column=None)


def _whole(file: Path) -> Row:
    try:
        return Row(file.read_text(encoding="utf-8"), None, str(file))
    except UnicodeDecodeError:
        return Row(None, None, str(file), BROKEN)


def _lines(stdin: BinaryIO, text_column: str) -> Iterator[Row]:
    for number, line in enumerate(stdin, 1):
        where = f"standard input, line {number}"
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            yield Row(None, None, where, BROKEN)
        else:
            yield Row(_column(text, text_column), None, where)


def _column(line: str, name: str) -> str | None:
    """The text of a line: itself, or the column of the JSON object it is."""
    if not line.lstrip().startswith("{"):
        return line
    try:
        value = json.loads(line)
    except ValueError:
        # Not every text that starts with a brace is JSON.
        return line
    found = value.get(name)
    return found if found is None or isinstance(found, str) else str(found)


def _windows(rows: Iterable[Row]) -> Iterator[list[Row]]:
    window: list[Row] = []
    characters = 0
    failure = None
    remaining = iter(rows)
    while True:
        try:
            row = next(remaining, None)
        except UserError as error:
            row, failure = None, error
        if row is None:
            break
        window.append(row)
        characters += len(row.text or "")
        if len(window) >= WINDOW_DOCUMENTS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
    if failure is not None:
        raise failure


def _label(run: Run, window: list[Row]) -> Iterator[dict[str, Any]]:
    tokens = encode(run.tokenizer, [row.text or "" for row in window], run.recipe.data)
    problems = [_problem(run, row, len(ids)) for row, ids in zip(window, tokens, strict=True)]
    usable = [number for number, problem in enumerate(problems) if not problem]
    examples = [{"input_ids": tokens[number]} for number in usable]
    batches = make_batches(run, [len(tokens[number]) for number in usable])
    probabilities = iter(outputs(run.model, examples, batches, pad_id=run.tokenizer.pad_token_id).softmax(-1).tolist())
    for row, problem in zip(window, problems, strict=True):
        if problem:
            yield {"where": row.where, "error": problem}
            continue
        shares = dict(zip(run.labels, next(probabilities), strict=True))
        yield {"where": row.where, "label": max(shares, key=lambda name: shares[name]), "probabilities": shares}


def _problem(run: Run, row: Row, length: int) -> str:
    """Say why a document of `length` tokens cannot be labelled; empty if it can."""
    if row.problem or row.text is None:
        return row.problem or "no text"
    if not length or not row.text.strip():
        return "empty document"
    for limit in limits(run.model):
        if length > limit.tokens:
            return f"{length} tokens, but {limit.part} reach to {limit.tokens}"
    return ""
