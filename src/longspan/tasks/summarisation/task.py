"""Summarisation: `Summarisation`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Value

from longspan.data.columns.kept import Carried
from longspan.data.columns.kinds import Column
from longspan.data.sources.formats.rows import Row
from longspan.report import count, scores_table
from longspan.report.card import Hub
from longspan.results import Evaluation, Prediction
from longspan.results.outputs import write_text
from longspan.tasks.base.case import Case
from longspan.tasks.base.engine import ModelInput, read_row
from longspan.tasks.base.mistakes import Errors
from longspan.tasks.base.seq2seq.explaining import written
from longspan.tasks.base.seq2seq.search import Search
from longspan.tasks.base.seq2seq.task import (
    TargetPipeline,
    TargetTask,
    Written,
    answers,
    by_likelihood,
    data_table,
    describe,
)
from longspan.tasks.base.seq2seq.trainer import TargetTrainer
from longspan.tasks.base.task import Baseline, Recipe, Run, baselines_in
from longspan.tasks.summarisation import baselines
from longspan.tasks.summarisation.columns import columns, each_question
from longspan.tasks.summarisation.options import EvaluationOptions, PredictionOptions, SummaryData, TrainingOptions
from longspan.tasks.summarisation.reading import SummaryProcessor
from longspan.tasks.summarisation.scores import SummaryScores, rouge, summary_scores

#: Maximum number of tokens of a summary, unless it is said how many.
LONGEST = 256


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

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: Written, folder: Path
    ) -> tuple[SummaryScores, dict[str, Any]]:
        texts, references, asked = outputs.texts, encoded["target"][:], each_question(examples)
        scores = self.task.score(encoded, texts, outputs.loss, True)
        first = rouge(texts, references)[:, 0]
        worst = np.where(first < 100, first, np.nan)
        write_text(folder / "summaries.txt", "".join(f"{text}\n" for text in texts))
        lowest = Errors("ROUGE-1", worst, references.__getitem__, texts.__getitem__, lowest=True)
        return scores, {
            "data_table": describe(encoded),
            "search": str(self.how),
            "cut_summaries": outputs.cut,
            "padding_fraction": outputs.padding,
            "samples": summary_samples(asked, texts, outputs.losses),
            "mistakes": lowest.among(asked, ["document"]),
        }


class Summarisation(TargetTask[SummaryScores, SummaryData, TrainingOptions]):
    """A short text about each long document, perhaps for a question, by an encoder and a decoder."""

    data_config = SummaryData
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
        return Search(
            beams=options.beams or recipe.options.beams,
            candidates=options.candidates,
            length_penalty=options.length_penalty,
            least=options.min_new_tokens or 0,
            most=options.max_new_tokens or LONGEST,
            once=options.no_repeat,
            batch_size=recipe.training["per_device_eval_batch_size"],
            batch_tokens=recipe.options.batch_tokens,
        )

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

    def baselines(self) -> Mapping[str, type[Baseline[SummaryScores]]]:
        return baselines_in(baselines)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        scores, details, split = evaluation.scores, evaluation.details, evaluation.split
        kind = type(scores).shown()
        told = [
            f"{kind[name]}: 95 % interval {low:.2f} to {high:.2f}" for name, (low, high) in scores.intervals.items()
        ]
        told.append(f"ROUGE is {scores.signature}.")
        told.append(
            f"Summaries have {scores.words:.1f} words, references {scores.reference_words:.1f}, with "
            f"{details['search']}. Of their word pairs, {scores.novelty:.1%} are not in the document. Of the sources, "
            f"{scores.source_read:.1%} was read."
        )
        if details["cut_summaries"]:
            told.append(
                f"{count(details['cut_summaries'])} of {count(scores.examples)} summaries never ended, and were cut."
            )
        if scores.empty:
            told.append(f"{count(scores.empty)} of {count(scores.examples)} summaries are empty.")
        shown = (
            f"{row['where']} ({row['loss']:.2f} nats per token)\n"
            + (f"  question:  {row['question']}\n" if row["question"] else "")
            + f"  reference: {row['reference']}\n  summary:   {row['summary']}"
            for row in details["samples"]
        )
        parts = [
            data_table({split: details["data_table"]}),
            scores_table({split: scores}),
            "\n".join(told),
            "From the likeliest reference to the least likely one:\n\n" + "\n".join(shown),
            f"written to {evaluation.folder} (summaries.txt has all summaries)",
        ]
        return "\n\n".join(parts)


def _as_text(found: SummaryPrediction) -> str:
    """Return summaries as text, one line for each question."""
    return "\n".join(one["summary"] for one in found.questions) if found.questions else found.summary or ""


def summary_samples(examples: Dataset, texts: Sequence[str], losses: np.ndarray) -> list[dict[str, Any]]:
    """Return some examples, from the one whose reference is most likely to the least likely one, as JSON."""
    return [
        {
            "where": examples[row]["where"],
            "question": (examples[row]["questions"] or [None])[0],
            "reference": examples[row]["summaries"][0],
            "summary": texts[row],
            "loss": float(losses[row, 0] / losses[row, 1]),
        }
        for row in by_likelihood(losses)
    ]
