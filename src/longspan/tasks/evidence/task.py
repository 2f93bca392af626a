"""Finding evidence: `Evidence`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column
from longspan.data.columns.parts import SPECIFIC, TURNS, Parts, Questions
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits, load
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import check_choice
from longspan.explanations.question import InputSequence, Question
from longspan.models import LongspanConfig, LongspanForEvidence
from longspan.models.limits import check_length
from longspan.report import count, share, table
from longspan.report.card import Hub
from longspan.results import Evaluation, Prediction
from longspan.tasks.base.case import Case, label_asked, numbered, texts_as_one
from longspan.tasks.base.engine import ModelInput, Pipeline, PipelineTask, predictions, read_row
from longspan.tasks.base.task import Baseline, Counted, Prepared, Recipe, Run, baselines_in
from longspan.tasks.evidence import baselines, report
from longspan.tasks.evidence.options import EvidenceData, TrainingOptions
from longspan.tasks.evidence.scores import EvidenceScores, evidence_scores, probabilities
from longspan.tasks.evidence.tokens import Evidence as EvidenceColumn
from longspan.tasks.evidence.tokens import collate, tokenise, tokenise_document, truth
from longspan.tasks.evidence.trainer import EvidenceTrainer, evidence_logits


@dataclass(frozen=True)
class EvidencePrediction(Prediction):
    """Evidence for each question about a document.

    Attributes:
        questions: For each, the `question` and its `evidence`, the numbers of the marked parts, counted from 0. `best`
            is the text of the likeliest part. `parts` has all parts with their `score`, a probability, likeliest first.
    """

    questions: list[dict[str, Any]] | None = None


class EvidencePipeline(Pipeline[list[dict[str, Any]], list[np.ndarray], TextProcessor]):
    """Long documents with questions, one document at a time."""

    example = "a document with a question"
    shorten = "train a model with {longer}"
    window = 1

    def problem(self, row: Row) -> str:
        if not row.values.get("parts"):
            return "empty document"
        return "" if row.values.get("questions") else "no question"

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[list[dict[str, Any]]] | str]:
        for row in rows:
            examples = list(tokenise_document(self.processor.tokenizer, row.values["parts"], row.values["questions"]))
            yield ModelInput(examples, longest=len(examples[0]["input_ids"]))

    def forward(self, inputs: Sequence[ModelInput[list[dict[str, Any]]]]) -> Iterator[list[np.ndarray]]:
        for one in inputs:
            batches = [[number] for number in range(len(one.value))]
            yield evidence_logits(self.model, one.value, batches, streams=self.processor.streams)

    def postprocess(
        self, row: Row, read: ModelInput[list[dict[str, Any]]], output: list[np.ndarray]
    ) -> EvidencePrediction:
        parts, threshold = row.values["parts"], self.model.config.head.thresholds[0]
        pairs = zip(row.values["questions"], output, strict=True)
        return EvidencePrediction(row.where, None, [_prediction(*pair, parts, threshold) for pair in pairs])

    def encode(self, examples: Dataset, split: str) -> Dataset:
        return tokenise(examples, self.processor.tokenizer, split)

    def outputs(self, encoded: Dataset) -> list[np.ndarray]:
        batches = self.batches(encoded["length"][:])
        return evidence_logits(self.model, encoded, batches, streams=self.processor.streams, progress=True)

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: list[np.ndarray], folder: Path
    ) -> tuple[EvidenceScores, dict[str, Any]]:
        gold = truth(encoded)
        scores = evidence_scores(outputs, gold, self.model.config.head.thresholds[0])
        report.recall_curve(scores, folder / "recall.png")
        questions = [question for row in examples["questions"][:] for question in row]
        report.strips(outputs, gold, questions, scores.threshold, folder / "evidence.png")
        worst = report.mistakes(outputs, gold, examples)
        return scores, {"documents": len(examples), "data_summary": describe(encoded, examples), "mistakes": worst}


class Evidence(PipelineTask[EvidenceScores, EvidenceData, TrainingOptions, TextProcessor]):
    """Parts of a long document, such as the turns of a meeting, that answer a question about it."""

    data_config = EvidenceData
    hub = Hub(tags=("evidence", "long-document"))
    pipeline_class = EvidencePipeline
    trainer_class = EvidenceTrainer
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
        tokenizer = build_tokenizer(recipe.data, texts, cache_key=f"evidence {fingerprint(training)}")
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

    def trainer_options(
        self,
        recipe: Recipe[EvidenceData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[TextProcessor],
    ) -> dict[str, Any]:
        return {"batch_tokens": recipe.options.batch_tokens, "streams": prepared.processor.streams}

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        pipeline: EvidencePipeline = self.pipeline(run)
        read_row(pipeline, row)
        parts, questions = row.values["parts"], row.values["questions"]
        if of:
            check_choice("question", of, questions)
        question = of or questions[0]
        (found,) = predictions(pipeline, [Row({**row.values, "questions": [question]}, row.where)])
        assert isinstance(found, EvidencePrediction)
        assert found.questions is not None
        best = int(found.questions[0]["parts"][0]["part"])
        number = best if at is None else numbered(at, len(parts), "a part")
        return part_case(run, row.where, parts, question, number, found.to_dict())

    def baselines(self) -> Mapping[str, type[Baseline[EvidenceScores]]]:
        return baselines_in(baselines)

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        splits = {name: row for name, row in data.items() if "documents" in row}
        rows = ([name, *(write(row[key]) for key, (_, write) in _FACTS.items())] for name, row in splits.items())
        return table(["split", *(words for words, _ in _FACTS.values())], rows, style)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(self, evaluation)


def describe(tokens: Dataset, examples: Dataset) -> dict[str, Any]:
    """Facts about a split for the results."""
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


def _prediction(question: str, logits: np.ndarray, parts: Sequence[str], threshold: float) -> dict[str, Any]:
    chances = probabilities(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    return {
        "question": question,
        "evidence": np.flatnonzero(chances >= threshold).tolist(),
        "best": parts[order[0]],
        "parts": [{"part": number, "score": round(float(chances[number]), 6)} for number in order],
    }


def part_case(run: Run, where: str, parts: Sequence[str], question: str, number: int, said: dict[str, Any]) -> Case:
    """Case of a part of a document as evidence: the log-odds that it is.

    Args:
        run: The run.
        where: The place of the document.
        parts: Its parts.
        question: The question.
        number: That of the part, from 0.
        said: Prediction for the question, as JSON.
    """
    model, tokenizer = run.model, tokenizer_of(run.processor)
    (example,) = tokenise_document(tokenizer, parts, [question])
    batch = {name: each.to(model.device) for name, each in collate([example], run.processor.streams).items()}
    names = [f"part {place + 1}" for place in range(len(parts))]
    asked = label_asked(names, names[number])
    texts = [question, *parts]
    spans = [characters for _, characters in tokens_with_offsets(tokenizer, texts)]
    # What has no tokens has an unknown one.
    lengths = [len(example["question_ids"][0]), *example["part_lengths"]]
    spans = [own if len(own) else np.full((length, 2), -1) for own, length in zip(spans, lengths, strict=True)]
    sequences = (InputSequence("question_mask", "question_counts", 1), InputSequence())
    settings = {"question_rows": batch.pop("question_rows")}
    question_asked = Question(model, batch, asked.value, asked.share, sequences, rows=1, settings=settings)
    return Case(f"{where}, part {number + 1:,}", asked, question_asked, texts_as_one(texts, spans), said)
