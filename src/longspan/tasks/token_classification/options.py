"""Options of token classification."""

import re
from dataclasses import dataclass
from typing import Literal

from longspan.data.config import DataConfig
from longspan.errors import UserError, check_choice
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "TokenData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions

UNITS = ("document", "sentence")


@dataclass(frozen=True)
class TokenData(DataConfig):
    """Documents as words, each with a label.

    Attributes:
        path: A file in columns (a word with its label per line, an empty line after each sentence; CoNLL-U). Or a table
            (csv, tsv, jsonl or parquet) with lists of words and labels. Or a folder with such a file of columns for
            each split, named train, dev or valid, and test. Or "hub:NAME" / "hub:NAME/CONFIG" (a data set of the
            Hugging Face Hub). Text formats may be compressed: .gz, .xz, .zst or .zip.
        text_column: The column with the words; in files of columns its number, counted from 1, or a name of CoNLL-U,
            "tokens" being the first (form).
        label_column: The column with the labels; in files of columns "labels" is the last (upos in CoNLL-U).
        feature_column: A column with a further feature of each word for the model to read, such as its part of speech;
            empty for none.
        sentences_column: The column of a table that says how many words each sentence of a document has, if it does.
        unit: What is read at once: a "document", where the data mark documents, or a "sentence".
        strip: What is removed from each word, a regular expression: "^en:" for a prefix.
        mend_labels: Whether an I- that begins a span counts as B-, as the script conlleval of the shared tasks reads
            it, rather than as an error.
        max_length: Maximum number of tokens read at once; 0 reads documents in full. Longer ones are read in
            overlapping windows, and each word is labelled in the one where it has most context.
    """

    text_column: str = "tokens"
    label_column: str = "labels"
    feature_column: str = ""
    sentences_column: str = "sentences"
    unit: Literal["document", "sentence"] = "document"
    strip: str = ""
    mend_labels: bool = False
    tokens: str = "pieces"
    vocab_size: int = 8000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("data.unit", self.unit, UNITS)
        try:
            re.compile(self.strip)
        except re.error as error:
            raise UserError(
                f"expected data.strip to be a regular expression, got {self.strip!r} ({error}); correct it."
            ) from None
