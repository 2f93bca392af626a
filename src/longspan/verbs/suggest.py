"""Ranking of documents to label: the least certain first, without copies of each other: `suggest`."""

import csv
import hashlib
import heapq
import re
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from longspan.data.columns.kinds import Text
from longspan.data.sources.formats.schema import Row, schema_of
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.results import Prediction
from longspan.results.outputs import check_file, new_file
from longspan.results.predictions import ClassPrediction, MultiLabelPrediction
from longspan.tasks.base.task import Run
from longspan.verbs.predict import rows_of_source
from longspan.verbs.runs import as_run

#: Documents that are compared with each other: so many times those that are suggested, and at least so many.
_TIMES, _LEAST = 10, 1000
#: Cosine above which documents are near copies.
ALIKE = 0.7
#: Width of the hashed vectors that documents are compared by.
_WIDTH = 1024
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class Suggestion:
    """A document to label.

    Attributes:
        where: Its place.
        columns: Its texts by the names of their columns.
        predicted: Label that the model would give; several are joined by commas.
        uncertainty: From 0 to 1, where two labels are equally likely.
    """

    where: str
    columns: dict[str, str]
    predicted: str
    uncertainty: float


def suggest(
    run: Run | Path | str,
    pool: Any,
    number: int = 100,
    *,
    overrides: Sequence[str] = (),
    corrections: Path | None = None,
    stdin: BinaryIO | None = None,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
) -> list[Suggestion]:
    """Documents without labels that a model learns most from, the first first.

    Documents are ranked by the margin between the two likeliest labels, with as many of each predicted label; near
    copies, by the words that they have, come last. Copies, whatever their case and white space, count once, and
    documents that have labels from the page are left out: those of `corrections` and of the run's `data.corrections`.

    Args:
        run: The run folder, or what `longspan.verbs.runs.load_run` returned for it.
        pool: Documents, in any form that `longspan.predict` reads.
        number: Number of documents that are suggested at most.
        overrides: How the pool is read where that differs from training, such as ["data.text_column=body"].
        corrections: File of `longspan.serve` with labels; by default RUN-corrections.jsonl, next to the run.
        stdin: Standard input as bytes, for "-".
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        allow_imports: Packages or modules that dotted paths in the run folder may import.

    Raises:
        UserError: The run's task gives documents no labels, or the pool cannot be used.
    """
    if number < 1:
        raise UserError(f"expected at least one document to suggest, got {number}; raise it.")
    trained = as_run(run, checkpoint, allow_imports)
    loaded = as_run(trained, overrides=overrides)
    columns = loaded.task.inputs(loaded.recipe.data)
    labelled = issubclass(loaded.task.prediction, ClassPrediction | MultiLabelPrediction)
    if not labelled or not all(isinstance(column, Text) for column in columns if column.required):
        raise UserError(
            f"expected a run that gives documents labels, got one of the task {loaded.task.name!r}; name another run."
        )
    names = schema_of(columns, loaded.recipe.data, files=False).names
    passed: deque[Row] = deque()

    def rows() -> Iterator[Row]:
        for row in rows_of_source(loaded, pool, loaded.recipe.data, stdin):
            passed.append(row)
            yield row

    best: list[tuple[float, int, Suggestion]] = []
    seen, skipped = _corrected(trained, columns, _labelled_on_page(loaded, corrections)), 0
    for place, prediction in enumerate(loaded.task.predict(loaded, rows())):
        row = passed.popleft()
        texts = {names[column.name]: row.values.get(column.name) or "" for column in columns}
        skipped += prediction.error is not None
        if prediction.error is not None or (digest := _digest(texts.values())) in seen:
            continue
        seen.add(digest)
        label, uncertainty = _uncertainty(prediction)
        # The first of equals.
        entry = (uncertainty, -place, Suggestion(row.where, texts, label, uncertainty))
        if len(best) < max(_LEAST, _TIMES * number):
            heapq.heappush(best, entry)
        else:
            heapq.heappushpop(best, entry)
    if skipped:
        note(f"{skipped:,} documents cannot be read, and are left out")
    found = [one for _, _, one in sorted(best, key=lambda entry: (-entry[0], -entry[1]))]
    vectors = word_vectors(["\n".join(one.columns.values()) for one in found])
    uncertainties = np.array([one.uncertainty for one in found])
    return [found[place] for place in diverse(uncertainties, [one.predicted for one in found], vectors, number)]


def write_suggestions(run: Run, found: Sequence[Suggestion], path: Path) -> None:
    """Write a csv file: rank, place, predicted label, uncertainty, texts, and an empty column for the label.

    Raises:
        UserError: The path does not end in .csv, or columns of the data have the names of others.
    """
    check_file(path, ".csv")
    data = run.recipe.data
    texts = list(found[0].columns) if found else []
    targets = [getattr(data, column.setting) for column in run.task.columns(data) if column.target]
    own = ["rank", "where", "predicted", "uncertainty"]
    if taken := [name for name in own if name in (*texts, *targets)]:
        raise UserError(f"expected other columns than {', '.join(own)}, got {taken[0]!r} in the data; rename it.")
    with new_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*own, *texts, *targets])
        for rank, one in enumerate(found, 1):
            writer.writerow(
                [rank, one.where, one.predicted, f"{one.uncertainty:.4f}", *one.columns.values(), *[""] * len(targets)]
            )


def diverse(uncertainties: np.ndarray, labels: Sequence[str], vectors: np.ndarray, number: int) -> list[int]:
    """Places of examples that are uncertain and unlike each other, the first first.

    Predicted labels take turns, each with the most uncertain of its examples that is no near copy of one before it.
    Near copies, whose cosine is above `ALIKE`, come after all others.

    Args:
        uncertainties: (n,), from 0 to 1.
        labels: Predicted labels.
        vectors: (n, d), of length 1.
        number: How many are wanted.
    """
    turns, counts = np.zeros(len(labels), np.int64), Counter[str]()
    for place in np.argsort(-uncertainties, kind="stable").tolist():
        turns[place] = counts[labels[place]]
        counts[labels[place]] += 1
    nearest, found, copies = np.zeros(len(vectors)), list[int](), list[int]()
    for place in np.lexsort((-uncertainties, turns)).tolist():
        if len(found) == number:
            break
        if nearest[place] > ALIKE:
            copies.append(place)
            continue
        found.append(place)
        nearest = np.maximum(nearest, vectors @ vectors[place])
    return [*found, *copies][:number]


def word_vectors(texts: Sequence[str]) -> np.ndarray:
    """TF-IDF of the words of texts, hashed to `_WIDTH` columns with signs, of length 1, (n, `_WIDTH`) float32."""
    counts = [Counter(zlib.crc32(word.encode()) for word in _WORDS.findall(text.lower())) for text in texts]
    frequencies = Counter(code for own in counts for code in own)
    vectors = np.zeros((len(texts), _WIDTH), np.float32)
    for vector, own in zip(vectors, counts, strict=True):
        # Checksums of words that are alike are alike.
        codes = np.fromiter(own, np.uint64, len(own)) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
        rarity = np.log((1 + len(texts)) / (1 + np.fromiter((frequencies[code] for code in own), float, len(own)))) + 1
        weights = (1 + np.log(np.fromiter(own.values(), float, len(own)))) * rarity
        np.add.at(vector, codes % _WIDTH, weights * np.where(codes // _WIDTH % 2, 1, -1))
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _uncertainty(prediction: Prediction) -> tuple[str, float]:
    """Label of a prediction, and 1 minus the margin of the likeliest; of several labels, that of the least certain."""
    if isinstance(prediction, ClassPrediction):
        first, second, *_ = sorted((prediction.probabilities or {}).values(), reverse=True)
        return prediction.label or "", 1 - (first - second)
    assert isinstance(prediction, MultiLabelPrediction)
    shares = (prediction.probabilities or {}).values()
    return ", ".join(prediction.labels or ()), 1 - min(abs(2 * share - 1) for share in shares)


def _digest(texts: Iterable[str]) -> bytes:
    plain = "\0".join(" ".join(text.casefold().split()) for text in texts)
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _labelled_on_page(run: Run, corrections: Path | None) -> list[Path]:
    """Files with labels from the page: the given one or that next to the run, and the one it was trained with."""
    default = run.folder.with_name(f"{run.folder.name}-corrections.jsonl")
    found = [corrections or default] if corrections or default.is_file() else []
    if trained := run.recipe.data.corrections:
        if Path(trained).is_file():
            found.append(Path(trained))
        else:
            note(f"{trained}, the data.corrections of this run, is missing, so its documents may be suggested")
    return found


def _corrected(run: Run, columns: Sequence[Any], paths: list[Path]) -> set[bytes]:
    """Digests of the documents in files whose columns have the names that they had in training."""
    rows = rows_of_source(run, paths, run.recipe.data, None) if paths else ()
    return {_digest(row.values.get(column.name) or "" for column in columns) for row in rows if not row.problem}
