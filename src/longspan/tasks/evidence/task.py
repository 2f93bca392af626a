"""Finding evidence: `Evidence`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column
from longspan.data.columns.parts import SPECIFIC, TURNS, Parts, Questions
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits, load
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError, check_choice
from longspan.models import LongspanConfig, LongspanForEvidence
from longspan.models.limits import check_length, too_long
from longspan.report import count, share, table
from longspan.report.card import CardParts
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.tasks.base.case import Case, numbered
from longspan.tasks.base.task import Baseline, Counted, Counts, Prepared, Recipe, Run, Task, baselines_in
from longspan.tasks.evidence import baselines, report
from longspan.tasks.evidence.baselines.bm25_smoothed import Bm25Smoothed
from longspan.tasks.evidence.explaining import part_case
from longspan.tasks.evidence.options import EvidenceData, TrainingOptions
from longspan.tasks.evidence.scores import EvidenceScores, evidence_scores, probabilities
from longspan.tasks.evidence.tokens import Evidence as EvidenceColumn
from longspan.tasks.evidence.tokens import read, tokenise, truth
from longspan.tasks.evidence.trainer import EvidenceTrainer, evidence_logits
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import scoring_batches


@dataclass(frozen=True)
class EvidencePrediction(Prediction):
    """What answers each question about a document.

    Attributes:
        questions: For each, the `question` and its `evidence`, the numbers of the marked parts, counted from 0. `best`
            is the text of the likeliest part. `parts` has all parts with their `score`, a probability, likeliest first.
    """

    questions: list[dict[str, Any]] | None = None


class Evidence(Task[EvidenceScores, EvidenceData, TrainingOptions]):
    """Which parts of a long document, such as the turns of a meeting, answer a question about it."""

    data_config = EvidenceData
    length_key = ""
    training_options = TrainingOptions
    data_hint = "data.path=FOLDER (QMSum's, with a JSON file for each meeting) or data.path=FILE (JSON lines)"
    scores = EvidenceScores
    prediction = EvidencePrediction
    model_class = LongspanForEvidence
    unused = frozenset()

    def columns(self, data: EvidenceData) -> Sequence[Column]:
        several = (data.questions_column, SPECIFIC)
        return [
            Parts("parts", "parts_column", names=(data.parts_column, TURNS)),
            Questions("questions", "question_column", names=(data.question_column, *several)),
            EvidenceColumn("evidence", "evidence_column", names=(data.evidence_column, *several)),
        ]

    def load(self, data: EvidenceData) -> Splits:
        """Read and split the documents."""
        return load(data, self.columns(data))

    def prepare(self, recipe: Recipe) -> Prepared:
        loaded = self.load(recipe.data)
        training = loaded.splits["train"]
        texts = (text for row in training for text in (*row["parts"], *row["questions"]))
        tokenizer = build_tokenizer(recipe.data, texts, cache_key=f"evidence {training._fingerprint}")
        config = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "num_labels": 1}
        splits = {name: tokenise(split, tokenizer, name) for name, split in loaded.splits.items()}
        data: dict[str, Any] = {name: describe(split, loaded.splits[name]) for name, split in splits.items()}
        data |= loaded.notices()
        return Prepared(splits, TextProcessor(tokenizer), {**config, "thresholds": [0.5]}, data)

    def configure(self, settings: Mapping[str, Any], from_data: Mapping[str, Any]) -> LongspanConfig:
        return super().configure(settings, {"num_labels": 1, **from_data})

    def build_model(self, recipe: Recipe, prepared: Prepared, counted: Counted | None = None) -> PreTrainedModel:
        model = super().build_model(recipe, prepared, counted)
        assert isinstance(model, LongspanForEvidence)
        longest = max(max(split["length"][:]) for split in prepared.splits.values())
        check_length(model, longest, "a document", "set {longer}")
        model.expect(prepared.data["train"]["evidence"])
        return model

    def make_trainer(
        self,
        recipe: Recipe[EvidenceData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> LongspanTrainer:
        return EvidenceTrainer(
            model,
            arguments,
            train_dataset=prepared.splits["train"],
            eval_dataset=prepared.splits["validation"],
            batch_tokens=recipe.options.batch_tokens,
            streams=prepared.processor.streams,
            measure=_measured_by_question,
        )

    def evaluate(
        self, run: Run, examples: Dataset, split: str, options: Any, folder: Path
    ) -> tuple[EvidenceScores, dict[str, Any]]:
        tokens = tokenise(examples, tokenizer_of(run.processor), split)
        lengths = tokens["length"][:]
        check_length(run.model, max(lengths), "a document", "train a model with {longer}")
        streams = run.processor.streams
        logits = evidence_logits(run.model, tokens, _batches(run, lengths), streams=streams, progress=True)
        gold = truth(tokens)
        scores = evidence_scores(logits, gold, run.model.config.head.thresholds[0])
        report.recall_curve(scores, folder / "recall.png")
        asked = [question for questions in examples["questions"][:] for question in questions]
        report.strips(logits, gold, asked, scores.threshold, folder / "evidence.png")
        worst = report.mistakes(logits, gold, examples)
        return scores, {"documents": len(examples), "data_summary": describe(tokens, examples), "mistakes": worst}

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        for row in rows:
            yield self._answer(run, row)

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        parts, questions = row.values.get("parts") or [], row.values.get("questions") or []
        problem = row.problem or ("" if parts else "empty document") or ("" if questions else "no question")
        if problem:
            raise UserError(f"{row.where}: expected a document with a question, got {problem}; choose another row.")
        if of:
            check_choice("question", of, questions)
        question = of or questions[0]
        (found,) = self.predict(run, [Row({**row.values, "questions": [question]}, row.where)])
        assert isinstance(found, EvidencePrediction)
        if found.questions is None:
            raise UserError(f"{row.where}: {found.error}.")
        best = int(found.questions[0]["parts"][0]["part"])
        number = best if at is None else numbered(at, len(parts), "a part")
        return part_case(run, row.where, parts, question, number, found.to_dict())

    def baselines(self) -> Mapping[str, type[Baseline[EvidenceScores]]]:
        return baselines_in(baselines)

    def counts(self) -> type[Counts[EvidenceScores]]:
        return Bm25Smoothed

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        splits = {name: row for name, row in data.items() if "documents" in row}
        rows = ([name, *(write(row[key]) for key, (_, write) in _FACTS.items())] for name, row in splits.items())
        return table(["split", *(words for words, _ in _FACTS.values())], rows, style)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(self, evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe, result)

    def _answer(self, run: Run, row: Row) -> Prediction:
        parts, questions = row.values.get("parts") or [], row.values.get("questions") or []
        problem = row.problem or ("" if parts else "empty document") or ("" if questions else "no question")
        if problem:
            return self.prediction(row.where, problem)
        examples = list(read(tokenizer_of(run.processor), parts, questions))
        if problem := too_long(run.model, len(examples[0]["input_ids"])):
            return self.prediction(row.where, problem)
        batches = [[number] for number in range(len(examples))]
        logits = evidence_logits(run.model, examples, batches, streams=run.processor.streams)
        threshold = run.model.config.head.thresholds[0]
        found = [_found(*pair, parts, threshold) for pair in zip(questions, logits, strict=True)]
        return EvidencePrediction(row.where, None, found)


def describe(tokens: Dataset, examples: Dataset) -> dict[str, Any]:
    """Return what results say about a split."""
    gold, parts = truth(tokens), [len(each) for each in examples["parts"][:]]
    # A document with very many questions is there several times.
    lengths = tokens["length"][:]
    return {
        "documents": len(parts),
        "questions": len(gold),
        "parts": float(np.mean(parts)),
        "tokens": float(np.mean(lengths)),
        "longest": int(max(lengths)),
        "evidence": float(np.mean([row.mean() for row in gold])),
    }


_FACTS = {
    "documents": ("documents", count),
    "questions": ("questions", count),
    "parts": ("parts, mean", count),
    "tokens": ("tokens, mean", count),
    "longest": ("longest", count),
    "evidence": ("parts that answer", share),
}


def _found(question: str, logits: np.ndarray, parts: Sequence[str], threshold: float) -> dict[str, Any]:
    chances = probabilities(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    return {
        "question": question,
        "evidence": np.flatnonzero(chances >= threshold).tolist(),
        "best": parts[order[0]],
        "parts": [{"part": number, "score": round(float(chances[number]), 6)} for number in order],
    }


def _batches(run: Run[EvidenceData, TrainingOptions], lengths: Sequence[int]) -> list[list[int]]:
    size, most = run.recipe.training["per_device_eval_batch_size"], run.recipe.options.batch_tokens
    return scoring_batches(lengths, size, most)


def _measured_by_question(*_: Any) -> EvidenceScores:
    raise AssertionError("EvidenceTrainer scores questions, which have outputs of different sizes")
