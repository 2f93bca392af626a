"""Options of finding evidence."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.errors import UserError
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "EvidenceData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class EvidenceData(DataConfig):
    """Long documents in parts, with questions, and the parts that answer each.

    Attributes:
        parts_column: The column with the parts of a document: a list of texts.
        question_column: The column with a question.
        questions_column: Instead of that one and of `evidence_column`, a column with a list of questions about the same
            document, each an object with "question" and "evidence".
        evidence_column: The column with the numbers of the parts that answer the question, counted from 0.
    """

    parts_column: str = "parts"
    question_column: str = "question"
    questions_column: str = "questions"
    evidence_column: str = "evidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length:
            raise UserError(
                f"expected data.max_length=0, as documents with evidence are read in full, got {self.max_length}; "
                "leave it out."
            )
