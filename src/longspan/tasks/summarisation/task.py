"""Summarisation: `Summarisation`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Value

from longspan.data.columns.kept import Carried
from longspan.data.columns.kinds import Column
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.models.limits import too_long
from longspan.report.card import CardParts
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.results.outputs import write_text
from longspan.tasks.base.case import Case
from longspan.tasks.base.engine import windows
from longspan.tasks.base.mistakes import Wrong
from longspan.tasks.base.seq2seq.explaining import written
from longspan.tasks.base.seq2seq.search import Search
from longspan.tasks.base.seq2seq.task import TargetTask, answers, describe
from longspan.tasks.base.task import Baseline, Recipe, Run, baselines_in
from longspan.tasks.summarisation import baselines, report
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


class Summarisation(TargetTask[SummaryScores, SummaryData, TrainingOptions]):
    """A short text about each long document, perhaps for a question, by an encoder and a decoder."""

    data_config = SummaryData
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    prediction_options = PredictionOptions
    data_hint = (
        "data.path=FILE (a csv, jsonl or parquet file with a document and a summary in each row), or data.path=FOLDER "
        "(QMSum's, with a JSON file for each meeting)"
    )
    scores = SummaryScores
    prediction = SummaryPrediction
    processor = SummaryProcessor
    target = Carried("summaries", Value("large_string"), lambda summaries, _: summaries[0], "the only summary")
    sides = ("a question and its document", "a summary")

    def columns(self, data: SummaryData) -> Sequence[Column]:
        return columns(data)

    def examples(self, rows: Dataset) -> Dataset:
        return each_question(rows)

    def kept(self) -> Mapping[str, Carried]:
        return {"document": Carried("document")}

    def search(self, recipe: Recipe[SummaryData, TrainingOptions], options: EvaluationOptions) -> Search:
        return Search(
            beams=options.beams or recipe.options.beams,
            candidates=options.candidates,
            length_penalty=options.length_penalty,
            least=options.min_new_tokens,
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

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: EvaluationOptions, folder: Path
    ) -> tuple[SummaryScores, dict[str, Any]]:
        how = self.search(run.recipe, options)
        found = self.written(run, examples, split, how)
        scores = self.score(found.rows, found.texts, found.loss, True)
        asked, references = each_question(examples), found.rows["target"][:]
        first = rouge(found.texts, references)[:, 0]
        lowest = np.where(first < 100, first, np.nan)
        write_text(folder / "summaries.txt", "".join(f"{text}\n" for text in found.texts))
        return scores, {
            "data_table": describe(found.rows),
            "search": str(how),
            "cut_summaries": found.cut,
            "padding_fraction": found.padding,
            "samples": report.samples(asked, found.texts, found.losses),
            "mistakes": Wrong("ROUGE-1", lowest, references.__getitem__, found.texts.__getitem__, lowest=True).among(
                asked, ["document"]
            ),
        }

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        how = self.search(run.recipe, run.prediction or PredictionOptions())
        for window in windows(rows):
            yield from self._summarised(run, window, how)

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        processor = run.processor
        assert isinstance(processor, SummaryProcessor)
        if problem := row.problem or processor.problem(row.values):
            raise UserError(f"{row.where}: expected a document to summarise, got {problem}; choose another row.")
        asked = row.values.get("questions") or [""]
        source = processor.source_text(row.values["document"], asked[0], run.recipe.data)
        where = f"{row.where}, the first of {len(asked):,} questions" if len(asked) > 1 else row.where
        return written(run, where, source, self.search(run.recipe, EvaluationOptions()), "summary", of, at)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"text": _as_text}

    def baselines(self) -> Mapping[str, type[Baseline[SummaryScores]]]:
        return baselines_in(baselines)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe, result)

    def _summarised(self, run: Run, window: list[Row], how: Search) -> Iterator[Prediction]:
        processor, data = run.processor, run.recipe.data
        assert isinstance(processor, SummaryProcessor)
        problems, sources = [], []
        for row in window:
            problem = row.problem or processor.problem(row.values)
            asked = [] if problem else row.values.get("questions") or [""]
            read = [processor.source(row.values["document"], question, data) for question in asked]
            problem = problem or next(filter(None, (too_long(run.model, len(ids)) for ids, _ in read)), "")
            problems.append(problem)
            sources.append([] if problem else read)
        with torch.inference_mode():
            found = iter(answers(run, [ids for read in sources for ids, _ in read], how, "summary"))
        for row, problem, read in zip(window, problems, sources, strict=True):
            if problem:
                yield self.prediction(row.where, problem)
                continue
            made = [next(found)[0] for _ in read]
            several = None
            if len(read) > 1:
                several = [{"question": asked, **one} for asked, one in zip(row.values["questions"], made, strict=True)]
            prediction = SummaryPrediction(row.where, None, **made[0], questions=several)
            lost = sum(lost for _, lost in read)
            total = sum(len(ids) for ids, _ in read)
            yield replace(prediction, tokens_read=total, tokens_total=total + lost) if lost else prediction


def _as_text(found: SummaryPrediction) -> str:
    """Return summaries as text, one line for each question."""
    return "\n".join(one["summary"] for one in found.questions) if found.questions else found.summary or ""
