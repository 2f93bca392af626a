"""Options of question answering."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.errors import UserError
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "QuestionsData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class QuestionsData(DataConfig):
    """Questions, each with a document and the spans of it that answer the question.

    Documents are read in full. If `max_length` or a mixer limits the tokens that are read at once, question and special
    tokens included, a document is read in windows.

    Attributes:
        text_column: The column with the documents.
        question_column: The column with the questions.
        answers_column: The column with the answers: {"text": [...], "answer_start": [...]}, or a list of {"text",
            "answer_start"}, starts counted in characters; empty where the document has no answer.
        impossible_column: A column that marks questions without an answer; it may be missing.
        id_column: A column with what questions are called, which may be missing.
        overlap: How many tokens of the document two neighbouring windows share, half a window at most.
    """

    text_column: str = "context"
    question_column: str = "question"
    answers_column: str = "answers"
    impossible_column: str = "is_impossible"
    id_column: str = "id"
    overlap: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap < 0:
            raise UserError(f"data.overlap must be at least 0, got {self.overlap}; raise it.")
        if self.keep != "first":
            raise UserError(
                "data.keep is for documents that are cut, and question answering reads them in full, got "
                f"data.keep={self.keep!r}; leave it out."
            )
