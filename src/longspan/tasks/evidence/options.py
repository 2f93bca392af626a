"""Options of finding evidence."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.errors import UserError
from longspan.options import option
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "EvidenceData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class EvidenceData(DataConfig):
    """Long documents in parts, with questions, and the parts that answer each."""

    parts_column: str = option("parts", "column with the parts of a document: a list of texts")
    question_column: str = option("question", "column with a question")
    questions_column: str = option(
        "questions",
        "column with a list of questions about the same document, instead of that one and of `evidence_column`: "
        'each an object with "question" and "evidence"',
    )
    evidence_column: str = option(
        "evidence", "column with the numbers of the parts that answer the question, counted from 0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length:
            raise UserError(
                f"expected data.max_length=0, as documents with evidence are read in full, got {self.max_length}; "
                "leave it out."
            )
