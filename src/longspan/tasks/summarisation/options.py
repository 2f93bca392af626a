"""Options of summarisation."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.options import Range, option
from longspan.tasks.base.options import LengthTrainingOptions, SearchOptions

__all__ = ["EvaluationOptions", "PredictionOptions", "SummaryData", "TrainingOptions"]


@dataclass(frozen=True)
class SummaryData(DataConfig):
    """Long documents, perhaps questions about them, and summaries.

    Besides tables, `path`, `train`, `validation` and `test` may name folders with a JSON file for each document, such
    as QMSum's: its meetings, with general and specific queries and their answers.
    """

    max_length: int = option(
        0,
        "maximum number of tokens read of a question and its document, end tokens included; 0 reads documents in "
        "full. Of longer documents only the beginning is read, which results and predictions say.",
    )
    document_column: str = option(
        "document", "column with the documents: text, or a list of parts such as turns, which become lines"
    )
    question_column: str = option(
        "question",
        "column with a question about the document, read if it is there. With another name than the default, each row "
        "must have a question.",
    )
    summary_column: str = option("summary", "column with the summary, or the answer to the question")
    questions_column: str = option(
        "questions",
        "column with a list of questions about the same document, instead of these two; each is an object with "
        '"question" and "summary"',
    )
    text_column: str = option("", "replaces `document_column`, as `longspan predict --text-column` sets it")
    vocab_size: int = 8000
    select_words: int = option(
        0,
        "maximum number of words read of a document; 0 for any number. Of longer documents those lines, or sentences "
        "of a single line, are read that match the question best, with their neighbours (BM25), in their order; "
        "without a question, the first and the last ones. Results and predictions say how much was read.",
        Range(0),
    )


@dataclass(frozen=True)
class TrainingOptions(LengthTrainingOptions):
    """Training of summarisation; `batch_tokens` counts documents and summaries, padding included."""

    beams: int = option(
        4, "beams of the final scores and, unless they are given, of evaluations and predictions", Range(1)
    )
    summarised_examples: int = option(
        50, "validation examples summarised greedily for ROUGE during training; final scores are of all", Range(1)
    )


@dataclass(frozen=True)
class EvaluationOptions(SearchOptions):
    """Search for summaries."""

    no_repeat: int = option(
        3, "number of tokens in a row that occur only once in a summary; 0 for no such limit", Range(0)
    )


PredictionOptions = EvaluationOptions
