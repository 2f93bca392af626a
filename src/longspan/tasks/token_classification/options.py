"""Options of token classification."""

import re
from dataclasses import dataclass
from typing import Literal

from longspan.data.config import UnlabelledData
from longspan.errors import UserError
from longspan.options import option
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "TokenData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class TokenData(UnlabelledData):
    """Documents as words, each with a label."""

    path: str = option(
        "",
        "file in columns (a word with its label per line, an empty line after each sentence; CoNLL-U). Or a table "
        "(csv, tsv, jsonl or parquet) with lists of words and labels. Or texts with spans, as spaCy, Prodigy, Label "
        "Studio and doccano write them (jsonl or json). Or a folder with such a file of columns for "
        'each split, named train, dev or valid, and test. Or "hub:NAME" / "hub:NAME/CONFIG" (a data set of the '
        "Hugging Face Hub). Text formats may be compressed: .gz, .xz, .zst or .zip.",
    )
    max_length: int = option(
        0,
        "maximum number of tokens read at once; 0 reads documents in full. Longer ones are read in overlapping "
        "windows, and each word is labelled in the one where it has most context.",
    )
    text_column: str = option(
        "tokens",
        'column with the words; in files of columns its number, counted from 1, or a name of CoNLL-U, "tokens" being '
        "the first (form)",
    )
    label_column: str = option(
        "labels", 'column with the labels; in files of columns "labels" is the last (upos in CoNLL-U)'
    )
    feature_column: str = option(
        "",
        "column with a further feature of each word for the model to read, such as its part of speech; empty for none",
    )
    sentences_column: str = option(
        "sentences", "column of a table that says how many words each sentence of a document has, if it does"
    )
    unit: Literal["document", "sentence"] = option(
        "document", 'unit that is read at once: a "document", where the data mark documents, or a "sentence"'
    )
    strip: str = option("", 'regular expression to remove from each word: "^en:" for a prefix')
    mend_labels: bool = option(
        False,
        "whether an I- that begins a span counts as B-, as the script conlleval of the shared tasks reads it, rather "
        "than as an error",
    )
    tokens: str = "pieces"
    vocab_size: int = 8000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column == self.label_column:
            raise UserError(
                f"data.text_column and data.label_column must name two columns, got {self.text_column!r} for both; "
                "change one."
            )
        try:
            re.compile(self.strip)
        except re.error as error:
            raise UserError(
                f"expected data.strip to be a regular expression, got {self.strip!r} ({error}); correct it."
            ) from None
