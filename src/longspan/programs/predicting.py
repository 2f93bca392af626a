"""Predictions of programs for ONNX by onnxruntime and tokenizers alone: `Program`. PyTorch is not imported."""

import contextlib
import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longspan.data.columns.kinds import Column, Text
from longspan.data.config import DataConfig, check_override
from longspan.data.familiarity import Familiarity
from longspan.data.sources.formats.rows import Row
from longspan.data.text.truncation import special_ids, truncated
from longspan.errors import UserError, first_line
from longspan.machine.limits import cores
from longspan.options import check_type, coerce, hints, make
from longspan.results import Prediction
from longspan.results.outputs import json_object
from longspan.results.predictions import ClassPrediction, MultiLabelPrediction, NumberPrediction
from longspan.tasks import answering
from longspan.tasks.base.answering import Answering, Answers, damaged, windows

#: File of an export that describes it, the key of what predictions need, and its program's file for ONNX.
MARK, ANSWERS, FILE = "export.json", "predict", "model.onnx"
#: No description of an export has as many bytes.
_LARGEST = 1 << 26
#: Class of the predictions by kind of answers.
KINDS: dict[str, type[Prediction]] = {
    "single_label_classification": ClassPrediction,
    "multi_label_classification": MultiLabelPrediction,
    "regression": NumberPrediction,
}


@dataclass(frozen=True)
class DocumentAnswers(Answers):
    """Answers to whole texts.

    Attributes:
        problem_type: Kind of answers.
        thresholds: Probability from which each label is given, where several labels are.
        splits_special: Whether names of special tokens in a text are text.
    """

    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"]
    thresholds: list[float]
    splits_special: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        several = self.problem_type == "multi_label_classification"
        if self.problem_type == "regression" and len(self.labels) != 1:
            raise UserError(f"labels must be a single name for regression, got {len(self.labels)}; restore it.")
        if len(self.thresholds) != (len(self.labels) if several else 0):
            raise UserError(f"thresholds must be as many as labels, got {len(self.thresholds)}; restore them.")
        if any(threshold != threshold for threshold in self.thresholds):
            raise UserError("thresholds must be numbers, got NaN; restore them.")


def is_export(run: Any) -> bool:
    """Whether this is the folder of an exported program, rather than a run."""
    if not isinstance(run, Path | str):
        return False
    return Path(run, MARK).is_file() and not Path(run, "recipe.toml").is_file()


class Documents(Answering):
    """Answers to whole texts; see `Answering`."""

    answers = DocumentAnswers
    reading = (
        *("text_column", "encoding", "delimiter", "quoting", "header", "max_length", "keep", "classes"),
        "files_per_class",
    )

    def __init__(self, answers: DocumentAnswers, folder: Path, tokenizer: Any) -> None:
        self._answers, self._folder, self.prediction = answers, folder, KINDS[answers.problem_type]
        tokenizer.encode_special_tokens = answers.splits_special
        self._encode = lambda text, *, add_special_tokens: (
            tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        )
        self._special = special_ids(self._encode, 1, str(folder))
        self._familiarity = Familiarity.read(folder)
        self.false_alarms = 0.0 if self._familiarity is None else self._familiarity.validation

    def inputs(self, data: DataConfig) -> Sequence[Column]:
        return [Text("text", "text_column")]

    def windows(self, run: "Program", rows: Iterable[Row]) -> Iterator[list[Row]]:
        return windows(rows, most=1)

    def predict(self, run: "Program", rows: Iterable[Row]) -> Iterator[Prediction]:
        for row in rows:
            text = row.values.get("text") or ""
            problem = row.problem or ("" if text.strip() else "empty document")
            ids, removed = (None, 0) if problem else self.read(text, run.data)
            if ids is not None:
                problem = self._too_long(len(ids))
            if ids is None or problem:
                yield self.prediction(row.where, problem)
                continue
            found = self._answer(row.where, self._logits(ids, run))
            if removed:
                found = replace(found, tokens_read=len(ids), tokens_total=len(ids) + removed)
            unfamiliar = self._familiarity is not None and self._familiarity.unfamiliar(ids)
            yield replace(found, unfamiliar=True) if unfamiliar else found

    def read(self, text: str, data: DataConfig) -> tuple[np.ndarray, int]:
        """Token ids of a text, as the program reads them, and the number of tokens that are left out."""
        ids = np.array(self._encode(text, add_special_tokens=False), np.int32)
        return truncated([ids], self._special, data.max_length, data.keep)

    def _too_long(self, tokens: int) -> str:
        short = [f"at most {most} tokens for {part}" for part, most in self._answers.limits.items() if most < tokens]
        return f"expected {' and '.join(short)}, got {tokens}" if short else ""

    def _logits(self, ids: np.ndarray, run: "Program") -> np.ndarray:
        # A text without any tokens is padding.
        row, mask = (ids, np.ones(len(ids))) if len(ids) else (np.zeros(1), np.zeros(1))
        logits = run.compute({"input_ids": row[None].astype(np.int64), "attention_mask": mask[None].astype(np.int64)})
        if logits.shape != (1, len(self._answers.labels)):
            raise damaged(self._folder, f"a program with outputs of the shape {logits.shape}")
        row_of_logits: np.ndarray = logits[0]
        return row_of_logits

    def _answer(self, where: str, logits: np.ndarray) -> Prediction:
        answers = self._answers
        if answers.problem_type == "regression":
            return NumberPrediction.of(where, logits[0])
        if answers.problem_type == "multi_label_classification":
            small = np.exp(-np.abs(logits.astype(np.float64)))
            shares = np.where(logits >= 0, 1, small) / (1 + small)
            return MultiLabelPrediction.of(where, answers.labels, shares.tolist(), answers.thresholds)
        powers = np.exp(logits - logits.max())
        return ClassPrediction.of(where, answers.labels, (powers / powers.sum()).tolist())


class Program:
    """An export for ONNX that answers as its run does.

    Args:
        folder: The folder that `longspan export --format onnx` wrote. Nothing in it is executed but the program.

    Attributes:
        task: How rows become answers.
        data: How texts are read.
        labels: Names of the outputs.
        false_alarms: Share of validation texts that are unfamiliar.

    Raises:
        UserError: The folder is damaged, or its program alone does not answer as the run does.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        kind, answers = self._described()
        with _naming(self.folder):
            self.data = make(kind.data_config, answers.data, "data")
        self.task = kind(answers, self.folder, self._tokenizer())
        self.labels, self.false_alarms = answers.labels, self.task.false_alarms
        self._session = self._loaded()

    def reading(self, overrides: Sequence[str]) -> "Program":
        """The same program with other settings of reading, such as ["data.encoding=auto"].

        Raises:
            UserError: Unknown settings, or other values than they take.
        """
        kind: Any = self.task.data_config
        other, own = copy.copy(self), hints(kind)
        for override in overrides:
            name, text = check_override(override)
            if name not in self.task.reading:
                known = ", ".join(f"data.{each}" for each in own if each in self.task.reading)
                raise UserError(
                    f"expected one of {known} with an export, got {override!r}; leave it out, or name the run folder."
                )
            value = coerce(text, own[name])
            check_type(f"data.{name}", value, own[name])
            other.data = replace(other.data, **{name: value})
        return other

    def compute(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Output of the program, whose numbers are finite, for its inputs by name."""
        try:
            found: np.ndarray = self._session.run(["logits"], dict(inputs))[0]
        # onnxruntime raises errors of classes of its own.
        except Exception as error:
            raise damaged(self.folder, f"a program that does not run ({first_line(error)})") from error
        if not np.isfinite(found).all():
            raise UserError(
                "expected finite outputs of the program, got some that are not; export the run again, or train it "
                "again with a lower learning rate."
            )
        return found

    def _described(self) -> tuple[type[Answering], Any]:
        """Read who answers, and what `export.json` says of it."""
        path = self.folder / MARK
        if path.stat().st_size > _LARGEST:
            raise damaged(self.folder, f"{MARK} of more than {_LARGEST:,} bytes")
        values = json_object(path)
        if values.get("format") != "onnx":
            raise UserError(
                f"expected an export with --format onnx, which `longspan predict` runs, got another in "
                f"{str(self.folder)!r}; name the run folder, or export it with --format onnx."
            )
        if ANSWERS not in values:
            raise UserError(
                f"expected an export whose program alone gives predictions, got one in {str(self.folder)!r} that does "
                "not say how texts are read; name the run folder, or export it again if it classifies documents."
            )
        kind = answering(values.get("task")) or Documents
        known = hints(kind.answers)
        with _naming(self.folder):
            if not isinstance(values[ANSWERS], dict) or values[ANSWERS].keys() != known.keys():
                raise UserError(f"{ANSWERS} must have the keys {', '.join(known)}; restore it.")
            answers: Any = make(kind.answers, values[ANSWERS], ANSWERS)
            if answers.data.keys() != {*kind.reading}:
                raise UserError(f"data must have the keys {', '.join(kind.reading)}, got others; restore them.")
            return kind, answers

    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise damaged(self.folder, "no tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        # tokenizers raises plain `Exception`.
        except Exception as error:
            raise damaged(self.folder, "a damaged tokenizer.json") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _loaded(self) -> Any:
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise UserError(
                f"the export in {str(self.folder)!r} needs onnxruntime, which is not installed; install it with `pip "
                "install 'longspan[export]'`, or name the run folder."
            ) from None
        path = self.folder / FILE
        if not path.is_file():
            raise damaged(self.folder, f"no {FILE}")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        options.intra_op_num_threads = int(wanted) if wanted.isdecimal() else cores()
        # Threads that wait for others leave their cores to whoever computes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise damaged(self.folder, f"a program that onnxruntime cannot load ({first_line(error)})") from error


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Name the file in messages about what it holds."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{str(folder / MARK)!r} does not describe an export: {error}") from error
