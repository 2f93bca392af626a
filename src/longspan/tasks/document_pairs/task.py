"""Document pairs: `DocumentPairs`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from datasets import Dataset

from longspan.explanations.question import Read
from longspan.models import LongspanForDocumentPairs
from longspan.models.embeddings.encoder import EncoderSettings
from longspan.models.embeddings.tokens import TokenSettings
from longspan.report import count
from longspan.report.card import CardParts
from longspan.results import TrainingResult
from longspan.tasks.base import Baseline, Recipe
from longspan.tasks.baselines import baselines_in
from longspan.tasks.class_scores import ClassificationScores
from longspan.tasks.classes import ClassTask, balanced_weights
from longspan.tasks.document_pairs import baselines, report
from longspan.tasks.document_pairs.options import PairData
from longspan.tasks.document_pairs.processor import DocumentPairProcessor
from longspan.tasks.examples import Facts


class DocumentPairs(ClassTask[PairData]):
    """One label for each pair of documents, of any length."""

    data_config = PairData
    processor = DocumentPairProcessor
    embeddings = (TokenSettings, EncoderSettings)
    model_class = LongspanForDocumentPairs
    example = "a document"
    reads = (Read(), Read("second_mask", "second_counts", 1))
    data_hint = (
        "data.path=FILE (a csv, tsv, jsonl or parquet file with two documents and a label in each row), or "
        "data.train=FILE"
    )
    facts: ClassVar[Facts] = {
        "documents": ("pairs", count),
        "tokens": ("tokens", count),
        "median_length": ("median length of a pair", count),
        "longest": ("longest pair", count),
        "cut_documents": ("cut pairs", count),
        "removed_tokens": ("tokens cut off", count),
    }

    def head(self, training: Dataset, data: PairData) -> dict[str, Any]:
        balanced = data.class_weights == "balanced"
        weights = {"class_weights": balanced_weights(training["label"][:])} if balanced else {}
        return super().head(training, data) | weights

    def baselines(self) -> Mapping[str, type[Baseline[ClassificationScores]]]:
        return baselines_in(baselines)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe, result)
