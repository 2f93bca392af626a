"""Summarisation: `Summarisation`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset, Value

from longspan.data.columns.kept import Carried
from longspan.data.columns.kinds import Column
from longspan.data.sources.formats.rows import Row
from longspan.report import count
from longspan.report.card import Hub
from longspan.results import Prediction
from longspan.tasks.base.case import Case
from longspan.tasks.base.engine import ModelInput, read_row
from longspan.tasks.base.seq2seq.explaining import written
from longspan.tasks.base.seq2seq.search import Search
from longspan.tasks.base.seq2seq.task import TargetPipeline, TargetTask, answers
from longspan.tasks.base.seq2seq.trainer import TargetTrainer
from longspan.tasks.base.task import Recipe, Run
from longspan.tasks.summarisation.columns import columns, each_question
from longspan.tasks.summarisation.options import EvaluationOptions, PredictionOptions, SummaryData, TrainingOptions
from longspan.tasks.summarisation.reading import SummaryProcessor
from longspan.tasks.summarisation.scores import SummaryScores, rouge, summary_scores


@dataclass(frozen=True)
class SummaryPrediction(Prediction):
    """The summary of a document, or one for each question about it.

    Attributes:
        summary: The summary; for several questions, that for the first.
        score: Mean log probability of its tokens, end token included, in nats.
        cut: True if it never ended, and was cut at its maximum length; None otherwise.
        questions: For each of several questions, the `question`, `summary`, `score` and perhaps `cut`; None otherwise.
    """

    summary: str | None = None
    score: float | None = None
    cut: bool | None = None
    questions: list[dict[str, Any]] | None = None


#: Tokens that are read for each question, and how many are cut off.
Sources = list[tuple[list[int], int]]


class SummaryPipeline(TargetPipeline[Sources, SummaryProcessor]):
    """Documents, with a summary for each question about them."""

    example = "a document"

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[Sources]]:
        for row in rows:
            questions = row.values.get("questions") or [""]
            read = [self.processor.source(row.values["document"], question, self.data) for question in questions]
            sizes, removed = [len(ids) for ids, _ in read], sum(lost for _, lost in read)
            yield ModelInput(read, sum(sizes), removed, max(sizes))

    def forward(self, inputs: Sequence[ModelInput[Sources]]) -> Iterator[list[dict[str, Any]]]:
        sources = [ids for one in inputs for ids, _ in one.value]
        found = iter(answers(self.run, sources, self.how, "summary"))
        for one in inputs:
            yield [next(found)[0] for _ in one.value]

    def postprocess(self, row: Row, read: ModelInput[Sources], output: list[dict[str, Any]]) -> SummaryPrediction:
        several = None
        if len(output) > 1:
            pairs = zip(row.values["questions"], output, strict=True)
            several = [{"question": question, **one} for question, one in pairs]
        return SummaryPrediction(row.where, None, **output[0], questions=several)


class Summarisation(TargetTask[SummaryScores, SummaryData, TrainingOptions]):
    """A short text about each long document, perhaps for a question, by an encoder and a decoder."""

    data_config = SummaryData
    text_names = ("summary", "summaries")
    source = "document"
    longest = 256
    hub = Hub("summarization", ("summarization", "long-document"), ("rouge",))
    packages = ("rouge_score",)
    pipeline_class = SummaryPipeline
    trainer_class = TargetTrainer
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    prediction_options = PredictionOptions
    data_hint = (
        "data.path=FILE (a csv, jsonl or parquet file with a document and a summary in each row), or data.path=FOLDER "
        "(QMSum's, with a JSON file for each meeting)"
    )
    scores = SummaryScores
    prediction = SummaryPrediction
    # Models that have seen few summaries end theirs too early.
    least = (0.1, 0.25, 0.5, 0.75)
    processor = SummaryProcessor
    target = Carried("summaries", Value("large_string"), lambda summaries, _: summaries[0], "the only summary")
    sides = ("a question and its document", "a summary")

    def columns(self, data: SummaryData) -> Sequence[Column]:
        return columns(data)

    def examples(self, rows: Dataset) -> Dataset:
        return each_question(rows)

    def score_columns(self) -> Mapping[str, Carried]:
        return {"document": Carried("document")}

    def search(self, recipe: Recipe[SummaryData, TrainingOptions], options: EvaluationOptions) -> Search:
        return replace(super().search(recipe, options), once=options.no_repeat)

    def searched_examples(self, recipe: Recipe[SummaryData, TrainingOptions]) -> int:
        return recipe.options.summarised_examples

    def score(self, rows: Dataset, texts: Sequence[str], loss: float | None, intervals: bool) -> SummaryScores:
        read, lost = (np.asarray(rows[name][:], dtype=np.int64).sum() for name in ("length", "removed"))
        return summary_scores(
            texts,
            rows["target"][:],
            rows["document"],
            loss=loss,
            source_read=float(read / (read + lost)),
            intervals=intervals,
        )

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        pipeline: SummaryPipeline = self.pipeline(run)
        read_row(pipeline, row)
        asked = row.values.get("questions") or [""]
        source = pipeline.processor.source_text(row.values["document"], asked[0], run.recipe.data)
        where = f"{row.where}, the first of {len(asked):,} questions" if len(asked) > 1 else row.where
        return written(run, where, source, self.search_of(run, EvaluationOptions()), "summary", of, at)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"text": _as_text}

    def worst(self, texts: Sequence[str], references: Sequence[str]) -> tuple[str, np.ndarray]:
        first = rouge(texts, references)[:, 0]
        return "ROUGE-1", np.where(first < 100, first, np.nan)

    def sampled(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"question": (row["questions"] or [None])[0]}

    def told(self, scores: SummaryScores, search: str) -> list[str]:
        kind = type(scores).shown()
        told = [
            f"{kind[name]}: 95 % interval {low:.2f} to {high:.2f}" for name, (low, high) in scores.intervals.items()
        ]
        told += [
            f"ROUGE is {scores.signature}.",
            f"Summaries have {scores.words:.1f} words, references {scores.reference_words:.1f}, with {search}. Of "
            f"their word pairs, {scores.novelty:.1%} are not in the document. Of the sources, "
            f"{scores.source_read:.1%} was read.",
        ]
        if scores.empty:
            told.append(f"{count(scores.empty)} of {count(scores.examples)} summaries are empty.")
        return told


def _as_text(found: SummaryPrediction) -> str:
    """Return summaries as text, one line for each question."""
    return "\n".join(one["summary"] for one in found.questions) if found.questions else found.summary or ""
