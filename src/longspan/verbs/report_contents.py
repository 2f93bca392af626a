"""Contents of the reports of `train`, `evaluate`, `compare` and `write_report`: results, figures, commands and words.

Words and phrases that speak for each class are those of a sample of documents: `weighed_words` reads them from the
weights of the model's count-based part, `explained_words` from explanations.
"""

import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from longspan.data.processor import json_object
from longspan.data.sources.formats.rows import Row
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.models.wide.classifier import Wide
from longspan.report import selection
from longspan.report.explanation import Piece, around
from longspan.report.run_report import NAME, ComparisonReport, RunReport, Word, Words
from longspan.results import Evaluation, TrainingResult
from longspan.results.html import png_address
from longspan.tasks.base.case import explained
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.task import Run, Task

#: Documents from which words are taken.
_SAMPLE = 300
_ROW = re.compile(r"(?P<file>.*), (?P<kind>row|line) (?P<number>\d+)")


def after_training(run: Run, result: TrainingResult, figures: Path, validation: Dataset) -> RunReport:
    """Return the report of a run that was just trained, for which the model computes nothing more.

    Args:
        run: The model.
        result: Its results.
        figures: Where its figures are.
        validation: The validation split as the model reads it.
    """
    words = weighed_words(run, islice(read_tokens(run, validation), _SAMPLE))
    note = f"The worst mistakes are missing: {shlex.join(['longspan', 'report', str(run.folder)])} adds them."
    return run_report(run, result, figures_in(figures), words=words, notes=[note])


def write_evaluated(run: Run, evaluation: Evaluation, examples: Any) -> None:
    """Write the report of a run with an evaluation: next to the run's files, or to those of a checkpoint."""
    notes = []
    try:
        result = training_result(run)
    except UserError as error:
        # The evaluation was made without them.
        result, notes = TrainingResult(run.task.name, str(run.folder)), [f"Results of training are missing: {error}"]
    words = weighed_words(run, read_rows(run, sample_rows(run, examples)))
    figures = figures_in(run.folder) | figures_in(Path(evaluation.folder))
    run_report(run, result, figures, evaluation=evaluation, words=words, notes=notes).save(report_path(run))


def comparison_report(folder: Path) -> ComparisonReport:
    """Return the report of a folder that `compare` wrote.

    Raises:
        UserError: Its `comparison.json` is damaged.
    """
    values = json_object(folder / "comparison.json")
    found = sorted(path for path in folder.glob(f"*/{NAME}") if path.is_file())
    links = {path.parent.name: quote(f"./{path.parent.name}/{NAME}") for path in found}
    return ComparisonReport(values, figures_in(folder), links)


def report_path(run: Run) -> Path:
    """Return where the report of a run goes; that of a checkpoint goes beside its scores."""
    below = () if run.checkpoint is None else ("evaluation", f"checkpoint-{run.checkpoint}")
    return run.folder.joinpath(*below, NAME)


def training_result(run: Run) -> TrainingResult:
    """Return the results of training; empty ones if the folder has none. Raises UserError if they are damaged."""
    path = run.folder / "metrics.json"
    values = json_object(path) if path.is_file() else {}
    return TrainingResult.from_dict({**values, "task": run.task.name, "folder": str(run.folder)}, run.task.scores)


def sample_rows(run: Run, examples: Any) -> Iterator[Row]:
    """Yield some examples of a split, evenly spaced, as predictions read them; none of what is no table of them."""
    if not isinstance(examples, Dataset) or "where" not in examples.column_names:
        return
    names = [one.name for one in run.task.inputs(run.recipe.data) if one.name in examples.column_names]
    count = min(_SAMPLE, len(examples))
    for number in np.linspace(0, len(examples) - 1, count).round().astype(int).tolist():
        row = examples[number]
        yield Row({name: row[name] for name in names}, row["where"])


def figures_in(folder: Path) -> dict[str, str]:
    """Return the PNG figures of a folder as `data:` addresses, by title."""
    found = {path.stem.replace("_", " ").capitalize(): png_address(path) for path in sorted(folder.glob("*.png"))}
    return {title: address for title, address in found.items() if address}


def run_report(run: Run, result: TrainingResult, figures: Mapping[str, str], **more: Any) -> RunReport:
    """Return a report with these and `more` of its fields."""
    recipe, evaluation = run.recipe, more.get("evaluation")
    chosen = [sentence] if (sentence := selection(result)) else []
    return RunReport(
        name=recipe.name,
        description=recipe.description,
        result=result,
        recipe=recipe.to_toml(),
        figures=figures,
        commands={} if evaluation is None else _commands(run, evaluation),
        baselines=_baselines(run.folder),
        **more | {"notes": [*more.get("notes", ()), *chosen]},
    )


def _commands(run: Run, evaluation: Evaluation) -> dict[str, str]:
    """Return the commands that explain examples with mistakes, by their places, where these are files."""
    if type(run.task).case is Task.case:
        return {}
    lists = [evaluation.mistakes, *([evaluation.label_issues] if evaluation.label_issues else [])]
    found = {}
    for where in {one.where: None for mistakes in lists for one in mistakes.worst}:
        row = _ROW.fullmatch(where)
        name, source = row["file"] if row else where, Path(evaluation.data)
        path = source if row and source.name == name else source / name
        number = _number(path, row["kind"], int(row["number"])) if row and path.is_file() else 0
        if path.is_file() and (number or not row):
            chosen = ["--row", str(number)] if number else []
            found[where] = shlex.join(["longspan", "explain", str(run.folder), str(path), *chosen])
    return found


def _number(path: Path, kind: str, number: int) -> int:
    """Return the number of an example from its row or line in a file; 0 where a line does not say it."""
    if kind == "row":
        return number
    if path.suffix != ".jsonl":
        return 0
    with path.open("rb") as lines:
        return sum(bool(line.strip()) for line in islice(lines, number))


def _baselines(folder: Path) -> list[dict[str, Any]]:
    """Return the baselines of the comparison that a run is a part of, if it is, by name with their scores."""
    path = folder.absolute().parent / "comparison.json"
    try:
        rows = json_object(path).get("baselines") if path.is_file() else []
    except UserError:
        return []
    kept = [row for row in rows if isinstance(row, dict) and "error" not in row] if isinstance(rows, list) else []
    return [{"baseline": row.get("baseline"), **_flat(row)} for row in kept]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a baseline by split and name."""
    return {
        f"{split} {name}": value
        for split in ("validation", "test")
        if isinstance(row.get(split), Mapping)
        for name, value in row[split].items()
    }


# Words

#: Words of each class that are shown, and characters, or tokens, on either side of one in its place.
_SHOWN, _AROUND, _BESIDE = 15, 40, 6
#: Classes that have words, and the n-grams of a sample times classes that are in memory at once.
_CLASSES, _CELLS = 50, 20_000_000
#: Candidates for each word that is shown: most are parts of others.
_CANDIDATES = 20
#: Documents and seconds for explanations.
_EXPLAINED, _SECONDS = 200, 20.0


class TextTokens(NamedTuple):
    """A document as a model reads it.

    Attributes:
        where: Its place; "" if that is not known.
        ids: `(t,)` tokens.
        named: From the first token of a phrase and the one after its last to its text, and what is before and after it.
        unknown: The token that stands for words that are not in the vocabulary.
    """

    where: str
    ids: np.ndarray
    named: Callable[[int, int], tuple[str, str, str]]
    unknown: int | None


def read_rows(run: Run, rows: Iterable[Row]) -> Iterator[TextTokens]:
    """Yield the documents of rows that can be read, with phrases as they are in their texts."""
    processor, data = run.processor, run.recipe.data
    unknown = tokenizer_of(processor).unk_token_id
    for row in rows:
        if row.problem or processor.problem(row.values):
            continue
        encoded, places = processor.placed(row.values, data)
        ids = np.asarray(encoded.streams[next(iter(processor.streams))])
        yield TextTokens(row.where, ids, partial(_in_text, places.text, places.spans), unknown)


def read_tokens(run: Run, examples: Dataset) -> Iterator[TextTokens]:
    """Yield documents that are tokens already, with phrases as their tokens are written."""
    tokenizer = tokenizer_of(run.processor)
    tokens = examples.select_columns([next(iter(run.processor.streams))]).with_format("numpy")
    for row in tokens:
        (ids,) = row.values()
        yield TextTokens("", ids, partial(_in_tokens, tokenizer, ids), tokenizer.unk_token_id)


def _in_text(text: str, spans: Any, begin: int, end: int) -> tuple[str, str, str]:
    start, stop = int(spans[begin][0]), int(spans[end - 1][1])
    if not 0 <= start < stop:
        return "", "", ""
    # A token may begin with the space before a word.
    found = text[start:stop].strip()
    start += text[start:stop].index(found)
    return found, *around(text, Piece(found, start, start + len(found), 0.0), _AROUND)


def _in_tokens(tokenizer: PreTrainedTokenizerBase, ids: np.ndarray, begin: int, end: int) -> tuple[str, str, str]:
    before, found, after = (
        tokenizer.decode(part) for part in (ids[max(0, begin - _BESIDE) : begin], ids[begin:end], ids[end:][:_BESIDE])
    )
    return found.strip(), f"{before} ", f" {after}"


def weighed_words(run: Run, read: Iterable[TextTokens]) -> Words | None:
    """Return the n-grams that add most to the log-odds of each class by the weights of the model's count-based part.

    Nothing but these weights is computed. What an n-gram adds is compared with the mean of the other classes.
    Words are ranked by their mean score times the root of the number of documents that have them.

    Args:
        run: The trained model.
        read: Documents.

    Returns:
        None for models without such weights.
    """
    wide, config = getattr(run.model, "wide", None), run.model.config
    if not isinstance(wide, Wide) or not 2 <= config.num_labels <= _CLASSES:
        return None
    names = [config.id2label[number] for number in range(config.num_labels)]
    documents: list[TextTokens] = []
    found = []
    size, scale = 0, float(wide.scales[0])
    for number, one in enumerate(read):
        shares = wide.ngrams(torch.from_numpy(one.ids).long().to(wide.keys.device))
        adds = shares.logits.float().cpu().numpy() * scale
        adds = (adds - adds.mean(1, keepdims=True)) * (len(names) / (len(names) - 1))
        columns = [tensor.cpu().numpy() for tensor in (shares.hash, shares.begin, shares.end)]
        documents.append(one)
        found.append((*columns, np.full(len(adds), number), adds))
        size += adds.size
        if size > _CELLS:
            break
    if not documents:
        return None
    hashes, begins, ends, owners = (np.concatenate([one[column] for one in found]) for column in range(4))
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    totals = np.zeros((len(first), len(names)))
    np.add.at(totals, group, np.concatenate([one[4] for one in found]))
    counts = np.bincount(np.unique(np.stack((group, owners)), axis=1)[0], minlength=len(first))
    by_class = {}
    for label, name in enumerate(names):
        words: list[Word] = []
        for number in np.argsort(-_rank(totals[:, label], counts), kind="stable")[: _SHOWN * _CANDIDATES].tolist():
            if totals[number, label] <= 0 or counts[number] < 2 or len(words) == _SHOWN:
                break
            place = int(first[number])
            document, begin, end = documents[int(owners[place])], int(begins[place]), int(ends[place])
            if document.unknown in document.ids[begin:end]:
                continue
            text, before, after = document.named(begin, end)
            # Phrases that begin or end with a sign say no more than those without it.
            if text[:1].isalnum() and text[-1:].isalnum() and not _overlaps(text, words):
                score = float(totals[number, label] / counts[number])
                words.append(Word(text, score, int(counts[number]), before, after, document.where))
        by_class[name] = words
    source = (
        f"These are n-grams of {len(documents):,} documents. What each adds to the log-odds of a class is exact: the "
        "model's count-based part has a weight for each n-gram. They are ranked by it and by how many documents have "
        "them."
    )
    return Words(source, by_class)


def explained_words(run: Run, rows: Iterable[Row]) -> Words | None:
    """Return the words with the highest removal scores in explanations of what the model says of documents.

    It stops after 200 documents or 20 seconds.

    Args:
        run: The trained model.
        rows: Documents.

    Returns:
        None where predictions are not of whole examples, or not explained by words.
    """
    if not isinstance(run.task, ExampleTask):
        return None
    began, count = time.perf_counter(), 0
    by_class: dict[str, dict[str, _Sum]] = {}
    for row in rows:
        if count == _EXPLAINED or time.perf_counter() - began > _SECONDS:
            break
        try:
            found = explained(run.task.case(run, row, "", None), "removal", False)
        except UserError:
            if count:
                # Of single documents there may be nothing to say.
                continue
            return None
        if found.places != "characters" or not found.prediction.get("probabilities"):
            return None
        count += 1
        own = by_class.setdefault(found.of, {})
        for piece in found.pieces():
            if any(map(str.isalnum, piece.text)):
                own.setdefault(piece.text.casefold(), _Sum()).add(piece, found.text, found.where)
    if not count:
        return None
    words = {
        name: [one.word() for one in sorted(own.values(), key=lambda one: -one.rank())[:_SHOWN] if one.rank() > 0]
        for name, own in sorted(by_class.items())
    }
    source = (
        f"These are words of {count:,} documents, by how much their removal would lower the log-odds of the class that "
        "the model says (first-order effect). They are ranked by it and by how many documents have them."
    )
    return Words(source, words)


@dataclass
class _Sum:
    """The scores of a word so far, and its strongest place."""

    total: float = 0.0
    documents: set[str] = field(default_factory=set)
    best: Piece | None = None
    place: tuple[str, str, str] = ("", "", "")

    def add(self, piece: Piece, text: str, where: str) -> None:
        self.total += piece.score
        self.documents.add(where)
        if self.best is None or piece.score > self.best.score:
            self.best, self.place = piece, (*around(text, piece, _AROUND), where)

    def rank(self) -> float:
        return float(_rank(np.array([self.total]), np.array([len(self.documents)]))[0])

    def word(self) -> Word:
        assert self.best is not None
        count = len(self.documents)
        return Word(self.best.text, self.total / count, count, *self.place)


def _rank(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean scores of words times the roots of how many documents have them; -1 for words of a single one."""
    return np.where(counts > 1, totals / np.sqrt(counts), -1.0)


def _overlaps(text: str, words: Sequence[Word]) -> bool:
    """Return whether a phrase is a part of another one, or has it as a part."""
    own = f" {text.casefold()} "
    return any(own in f" {one.text.casefold()} " or f" {one.text.casefold()} " in own for one in words)
