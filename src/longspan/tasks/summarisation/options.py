"""Options of summarisation."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.tasks.base.options import LengthTrainingOptions, SearchOptions, check_at_least, option

__all__ = ["EvaluationOptions", "PredictionOptions", "SummaryData", "TrainingOptions"]


@dataclass(frozen=True)
class SummaryData(DataConfig):
    """Long documents, perhaps questions about them, and summaries.

    Besides tables, `path`, `train`, `validation` and `test` may name folders with a JSON file for each document, such
    as QMSum's: its meetings, with general and specific queries and their answers.

    Attributes:
        document_column: The column with the documents: text, or a list of parts such as turns, which become lines.
        question_column: The column with a question about the document, read if it is there. With another name than the
            default, each row must have a question.
        summary_column: The column with the summary, or the answer to the question.
        questions_column: Instead of these two, a column with a list of questions about the same document, each an
            object with "question" and "summary".
        text_column: Instead of `document_column`, as `longspan predict --text-column` sets it.
        max_length: Maximum number of tokens read of a question and its document, end tokens included; 0 reads documents
            in full. Of longer documents only the beginning is read, which results and predictions say.
        select_words: Maximum number of words read of a document; 0 for any number. Of longer documents those lines, or
            sentences of a single line, are read that match the question best, with their neighbours (BM25), in their
            order; without a question, the first and the last ones. Results and predictions say how much was read.
    """

    document_column: str = "document"
    question_column: str = "question"
    summary_column: str = "summary"
    questions_column: str = "questions"
    text_column: str = ""
    vocab_size: int = 8000
    select_words: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, select_words=0)


@dataclass(frozen=True)
class TrainingOptions(LengthTrainingOptions):
    """How summarisation is trained; `batch_tokens` counts documents and summaries, padding included."""

    beams: int = option(4, "beams of the final scores and, unless they are given, of evaluations and predictions")
    summarised_examples: int = option(
        50, "validation examples summarised greedily for ROUGE during training; final scores are of all"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, beams=1, summarised_examples=1)


@dataclass(frozen=True)
class EvaluationOptions(SearchOptions):
    """How summaries are made."""

    no_repeat: int = option(3, "number of tokens in a row that occur only once in a summary; 0 for no such limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, no_repeat=0)


PredictionOptions = EvaluationOptions
