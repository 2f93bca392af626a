"""Options of question answering."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.errors import UserError
from longspan.options import Range, option
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "QuestionsData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class QuestionsData(DataConfig):
    """Questions, each with a document and the spans of it that answer the question.

    Documents are read in full. If `max_length` or a mixer limits the tokens that are read at once, question and special
    tokens included, a document is read in windows.
    """

    text_column: str = option("context", "column with the documents")
    question_column: str = option("question", "column with the questions")
    answers_column: str = option(
        "answers",
        'column with the answers: {"text": [...], "answer_start": [...]}, or a list of {"text", "answer_start"}, '
        "starts counted in characters; empty where the document has no answer",
    )
    impossible_column: str = option("is_impossible", "column that marks questions without an answer; it may be missing")
    id_column: str = option("id", "column with what questions are called, which may be missing")
    overlap: int = option(
        128, "tokens of the document that two neighbouring windows share, half a window at most", Range(0)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep != "first":
            raise UserError(
                "data.keep is for documents that are cut, and question answering reads them in full, got "
                f"data.keep={self.keep!r}; leave it out."
            )
