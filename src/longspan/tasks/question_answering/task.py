"""Question answering: `QuestionAnswering`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.streams import Stream, pad
from longspan.data.columns.kinds import Column, Text
from longspan.data.columns.spans import Identifier, Spans, Truth
from longspan.data.config import DataConfig
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import load
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.explanations.question import InputSequence, Question
from longspan.models import LongspanForQuestionAnswering
from longspan.models.limits import limits
from longspan.report import count, share, table
from longspan.report.card import Hub
from longspan.results import Evaluation, Prediction
from longspan.results.mistakes import Mistakes
from longspan.results.scores import check_finite
from longspan.tasks.base.case import Case, Target, no_place, number_of_class, texts_as_one
from longspan.tasks.base.engine import (
    ModelInput,
    Pipeline,
    PipelineTask,
    check_outputs,
    predictions,
    read_row,
)
from longspan.tasks.base.options import LengthTrainingOptions
from longspan.tasks.base.task import Facts, Prepared, Recipe, Run
from longspan.tasks.question_answering import answers
from longspan.tasks.question_answering.answers import Answered
from longspan.tasks.question_answering.options import QuestionsData
from longspan.tasks.question_answering.scores import AnswerScores, answer_scores, best_threshold, f1
from longspan.tasks.question_answering.windows import Layout, NoRoom, reading_of, tokenize_questions
from longspan.training.lengths import LengthTrainer, ragged_outputs, targets


def answer_case(
    run: Run, where: str, windows: Sequence[dict[str, Any]], span: tuple[int, int], name: str, said: dict[str, Any]
) -> Case:
    """Case of an answer: the log-odds of its first and of its last token, added.

    Args:
        run: The run.
        where: The place of the question.
        windows: The rows of its document, see `windows.FEATURES`.
        span: The characters of the answer in the document.
        name: The answer.
        said: Prediction as JSON.

    Raises:
        UserError: No token is in the span.
    """
    model, tokenizer = run.model, tokenizer_of(run.processor)
    for row in windows:
        offsets = np.asarray(row["offsets"]).reshape(-1, 2)
        inside = np.flatnonzero((offsets[:, 1] > span[0]) & (offsets[:, 0] < span[1]))
        # In the window that has all of it.
        if len(inside) and offsets[-1, 1] >= span[1] and offsets[0, 0] <= span[0]:
            break
    else:
        raise UserError(f"{where}: expected an answer of tokens that are read together, got {name!r}; name another.")
    first, last = (int(row["begin"] + place) for place in (inside[0], inside[-1]))
    read = pad([row], {**run.processor.streams, **PER_TOKEN})
    batch = {key: each.to(model.device) for key, each in read.items()}
    ends = [number_of_class(number, name) for number in (first, last)]

    def odds(logits: Tensor) -> Tensor:
        return sum((end.value(logits[:, place]) for place, end in enumerate(ends)), logits.new_zeros(len(logits)))

    def share(logits: Tensor) -> Tensor:
        return ends[0].share(logits[:, 0]) * ends[1].share(logits[:, 1])

    question = Question(
        model,
        batch,
        odds,
        share,
        (InputSequence(call=1 if model.config.cross_mixers else 0),),
        masked=False,
        output=lambda found: torch.stack((found.start_logits, found.end_logits), 1),
    )
    ((_, asked),) = tokens_with_offsets(tokenizer, [row["question"]])
    layout, none = Layout.of(tokenizer), np.full((1, 2), -1)
    head = np.concatenate([none.repeat(len(layout.before), 0), asked, none.repeat(len(layout.between), 0)])
    tail = none.repeat(row["length"] - row["begin"] - len(offsets), 0)
    # Characters are those of the whole document, of which the window has a part.
    document = np.concatenate([offsets - row["shift"], tail])
    places = texts_as_one([row["question"], row["text"]], [head, document])
    return Case(where, Target(name, "log-odds", odds, share), question, places, said)


#: Inputs of models in addition to the ids of tokens, and their values at padding.
PER_TOKEN = {"token_type_ids": Stream()}
#: Their outputs.
LOGITS = ("start_logits", "end_logits")


class AnswerTrainer(LengthTrainer[AnswerScores]):
    """A `LengthTrainer` whose scores are those of answers' texts.

    Where the data have questions without an answer, the threshold is chosen whenever the validation split is scored,
    so before a checkpoint is saved. No other split changes it.
    """

    def score(self, dataset: Dataset) -> AnswerScores:
        logits, config = self.outputs(dataset), self.model.config
        found = list(answers.answered(dataset, logits, config.head.longest_answer))
        expected = [one.expected for one in found]
        if dataset is self.eval_dataset and config.head.answer_threshold is not None:
            best = [one.answer(None) for one in found]
            config.head.answer_threshold = best_threshold([one.score for one in found], best, expected)
        given = [one.answer(config.head.answer_threshold) for one in found]
        loss = answers.loss(logits, dataset["length"][:], targets(dataset))
        return answer_scores(given, expected, loss=loss, threshold=config.head.answer_threshold)

    def validation_scores(self) -> AnswerScores:
        scores = super().validation_scores()
        # That of the epoch that was kept, whose weights came back without it.
        self.model.config.head.answer_threshold = scores.threshold
        return scores

    def outputs(self, dataset: Dataset, name: str | Sequence[str] = LOGITS) -> Tensor:
        """Return the model's outputs for all tokens of a data set, (sum of lengths, 2)."""
        return ragged_outputs(
            self.model,
            self.rows(dataset, ["input_ids", *PER_TOKEN]),
            sizes=dataset["length"][:],
            name=name,
            shape=() if isinstance(name, str) else (len(name),),
            **self.scoring(dataset),
        )


#: Spans of each question that predictions have.
PREDICTED = 5


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """The answer to a question: `answer` is the document's text from character `start` to `end`.

    An empty answer means that the document has none. `alternatives` are the best answers, the given one among them;
    they have probabilities, and so has `no_answer` where training had questions without an answer.
    """

    id: str | None = None
    answer: str | None = None
    start: int | None = None
    end: int | None = None
    probability: float | None = None
    no_answer: float | None = None
    alternatives: list[dict[str, Any]] | None = None


QuestionsRecipe = Recipe[QuestionsData, LengthTrainingOptions]
#: Windows of a document, see `windows.FEATURES`.
Windows = list[dict[str, Any]]


class AnswerPipeline(Pipeline[Windows, answers.Answered, TextProcessor]):
    """Questions and their documents, each in as many windows as it takes."""

    example = "a question"

    def __init__(self, run: Run[QuestionsData, LengthTrainingOptions, TextProcessor], options: Any) -> None:
        super().__init__(run, options)
        self.reading = reading_of(self.processor.tokenizer, self.data, _most(self.model))
        self.head = self.model.config.head

    def problem(self, row: Row) -> str:
        missing = (name for name in ("question", "context") if not (row.values.get(name) or "").strip())
        return next((f"no {name}" for name in missing), "")

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[Windows] | str]:
        batch = {name: [row.values.get(name) for row in rows] for name in ("question", "context", "id")}
        # Rows from Python may be called alike.
        for windows in self.reading.rows({**batch, "where": [str(number) for number in range(len(rows))]}):
            yield str(windows) if isinstance(windows, NoRoom) else ModelInput(windows)

    def forward(self, inputs: Sequence[ModelInput[Windows]]) -> Iterator[answers.Answered]:
        rows = [row for one in inputs for row in one.value]
        logits = self._logits(rows, [row["length"] for row in rows], progress=False)
        check_outputs(logits)
        return answers.answered(rows, logits, self.head.longest_answer)

    def postprocess(self, row: Row, read: ModelInput[Windows], output: answers.Answered) -> AnswerPrediction:
        return _prediction(row.where, output, self.head.answer_threshold)

    def encode(self, examples: Dataset, split: str) -> Dataset:
        return tokenize_questions(examples, self.reading, f"Tokenising {split}")

    def check_lengths(self, encoded: Dataset) -> None:
        """Do nothing: no window is longer than the model takes."""

    def outputs(self, encoded: Dataset) -> Tensor:
        read = encoded.select_columns(["input_ids", *PER_TOKEN]).with_format("numpy")
        logits = self._logits(read, encoded["length"][:], progress=True)
        check_finite(logits, "tokens")
        return logits

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: Tensor, folder: Path
    ) -> tuple[AnswerScores, dict[str, Any]]:
        threshold = self.head.answer_threshold
        found = list(answers.answered(encoded, outputs, self.head.longest_answer))
        given, expected = [one.answer(threshold) for one in found], [one.expected for one in found]
        loss = answers.loss(outputs, encoded["length"][:], targets(encoded))
        scores = answer_scores(given, expected, loss=loss, threshold=threshold)
        worst = worst_answers(found, threshold)
        return scores, {"questions": len(found), "data_table": describe(encoded), "mistakes": worst}

    def _logits(self, rows: Any, sizes: Sequence[int], *, progress: bool) -> Tensor:
        """Logits of starts and ends, (sum of sizes, 2)."""
        streams = {**self.processor.streams, **PER_TOKEN}
        how: dict[str, Any] = {"name": LOGITS, "streams": streams, "shape": (len(LOGITS),), "progress": progress}
        return ragged_outputs(self.model, rows, self.batches(sizes), sizes, **how)


class QuestionAnswering(PipelineTask[AnswerScores, QuestionsData, LengthTrainingOptions, TextProcessor]):
    """The span of a document, of any length, that answers a question; or an empty answer."""

    data_config = QuestionsData
    hub = Hub("question-answering", ("question-answering", "long-document"), ("f1", "exact_match"))
    pipeline_class = AnswerPipeline
    trainer_class = AnswerTrainer
    training_options: ClassVar[type[LengthTrainingOptions]] = LengthTrainingOptions
    data_hint = (
        "data.path=FILE (a json file as SQuAD's, or a jsonl, parquet or csv file with the columns question, context "
        "and answers), or data.train=FILE"
    )
    scores = AnswerScores
    prediction = AnswerPrediction
    cuts_examples = False
    model_class = LongspanForQuestionAnswering
    unused = frozenset()
    facts: ClassVar[Facts] = {
        "questions": ("questions", count),
        "unanswered": ("without an answer", count),
        "tokens": ("tokens", count),
        "median_length": ("median length", count),
        "longest": ("longest", count),
        "windows": ("windows", count),
    }

    def columns(self, data: DataConfig) -> Sequence[Column]:
        return [
            Text("question", "question_column"),
            Text("context", "text_column", together=True),
            Truth("impossible", "impossible_column", required=False, target=True),
            Spans("answers", "answers_column", of="context", none="impossible"),
            Identifier("id", "id_column", required=False),
        ]

    def prepare(self, recipe: Recipe[QuestionsData, LengthTrainingOptions]) -> Prepared:
        data = recipe.data
        loaded = load(data, self.columns(data))
        training = loaded.splits["train"]
        # Documents are read whole, in windows if need be.
        whole = replace(data, max_length=0)
        tokenizer = build_tokenizer(whole, _texts(training), cache_key=fingerprint(training), end=True)
        config: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        reading = reading_of(tokenizer, data, _most(self.without_values(recipe.model)))
        splits = {
            name: tokenize_questions(split, reading, f"Tokenising {name}") for name, split in loaded.splits.items()
        }
        config |= _settings(splits["train"])
        described: dict[str, Any] = {name: describe(split) for name, split in splits.items()}
        described |= loaded.notices()
        return Prepared(splits, TextProcessor(tokenizer), config, described)

    def trainer_options(
        self, recipe: QuestionsRecipe, model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared
    ) -> dict[str, Any]:
        return {
            "batch_tokens": recipe.options.batch_tokens,
            "streams": {**prepared.processor.streams, **PER_TOKEN},
        }

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        no_place(at)
        pipeline: AnswerPipeline = self.pipeline(run)
        windows = read_row(pipeline, row).value
        (prediction,) = predictions(pipeline, [row])
        assert isinstance(prediction, AnswerPrediction)
        document: str = row.values["context"]
        best = next(iter(prediction.alternatives or []), None)
        if of and of not in document:
            raise UserError(f"{row.where}: expected an answer that the document has, got {of!r}; copy it from there.")
        if not of and best is None:
            raise UserError(f"{row.where}: expected a document with an answer, got none; name a part of it as one.")
        given_span = None if best is None else (best["start"], best["end"])
        start = document.find(of)
        span = (start, start + len(of)) if of or given_span is None else given_span
        return answer_case(run, row.where, windows, span, document[slice(*span)], prediction.to_dict())

    def sections(self, evaluation: Evaluation) -> list[str]:
        parts, kinds = super().sections(evaluation), evaluation.scores.kinds
        if kinds:
            rows = (
                [f"questions with {'an' if name == 'answer' else ''} {name}".replace("  ", " "),
                 count(row["questions"]), share(row["f1"]), share(row["exact_match"])]
                for name, row in kinds.items()
            )  # fmt: skip
            parts.append(table(["kind", "questions", "F1", "exact match"], rows))
        return parts


def _texts(training: Dataset) -> Iterator[str]:
    """Yield the training questions, and the documents once for all questions in a row."""
    before = None
    for row in training.select_columns(["question", "context"]):
        yield row["question"]
        if row["context"] != before:
            before = row["context"]
            yield before


def _most(model: PreTrainedModel) -> int | None:
    """Maximum number of tokens that a model reads at once; None for any number."""
    return min((limit.tokens for limit in limits(model)), default=None)


def _settings(training: Dataset) -> dict[str, Any]:
    """Return the settings of `LongspanConfig` that depend on the training data."""
    labels = targets(training)
    known = labels[(labels > 0).all(1)]
    if not len(known):
        raise UserError("expected training questions with answers, got none with any; check data.answers_column.")
    none = any(not answers for answers in training["answers"][:])
    return {
        "longest_answer": int((known[:, 1] - known[:, 0]).max()) + 1,
        "answer_threshold": 0.0 if none else None,
    }


def describe(rows: Dataset) -> dict[str, Any]:
    """Facts about the questions of a split for the results."""
    places = rows["where"][:]
    first = [number for number, where in enumerate(places) if not number or places[number - 1] != where]
    tokens = np.asarray(rows["tokens"][:], np.int64)[first]
    # All at once: a single row of a column takes milliseconds.
    answers = rows["answers"][:]
    unanswered = sum(not answers[number] for number in first)
    return {
        "questions": len(first),
        "unanswered": unanswered,
        "tokens": int(tokens.sum()),
        "median_length": float(np.median(tokens)) if len(tokens) else 0.0,
        "longest": int(tokens.max(initial=0)),
        "windows": len(places),
    }


def _prediction(where: str, found: answers.Answered, threshold: float | None) -> AnswerPrediction:
    probabilities, none = found.probabilities(threshold)
    listed = [
        {"answer": span.text, "start": span.start, "end": span.end, "probability": probability}
        for span, probability in zip(found.spans[:PREDICTED], probabilities, strict=False)
    ]
    no_answer = None if threshold is None else none
    if not listed or not found.answer(threshold):
        certain = 1.0 if no_answer is None else no_answer
        return AnswerPrediction(where, None, found.id, "", None, None, certain, no_answer, listed)
    best = found.spans[0]
    return AnswerPrediction(where, None, found.id, best.text, best.start, best.end, probabilities[0], no_answer, listed)


def worst_answers(found: Sequence[Answered], threshold: float | None) -> Mistakes:
    """Return the answers that share no word with a right one, those that the model was surest of first."""
    answers = [one.answer(threshold) for one in found]
    scores = []
    for one, given in zip(found, answers, strict=True):
        probabilities, none = one.probabilities(threshold)
        sure = probabilities[0] if given else none if threshold is not None else 1.0
        scores.append(sure if f1(given, one.expected) == 0 else np.nan)

    def tell(number: int) -> dict[str, str]:
        one = found[number]
        expected = " / ".join(dict.fromkeys(one.expected)) or "(none)"
        return {"where": one.where, "expected": expected, "said": answers[number] or "(none)", "text": one.question}

    return Mistakes.ranked("probability of the answer", scores, tell)
