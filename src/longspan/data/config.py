"""The settings of a recipe's `[data]` table."""

from dataclasses import dataclass

from longspan.data.opening import check_encoding
from longspan.errors import UserError

TRAINED_TOKENS = ("bytes", "characters", "words", "whitespace", "bpe")
"""The kinds of tokens that need no pretrained tokenizer."""

SMALLEST_BPE = 258
"""Byte-level BPE starts from the 256 bytes, padding and the unknown token."""


@dataclass(frozen=True)
class DataConfig:
    """Where examples come from, how they are split, and how they become tokens.

    Attributes:
        path: A file (csv, tsv, jsonl or parquet), "packages" (the sources of the installed Python packages), or
            "hub:NAME" / "hub:NAME/CONFIG" (a data set of the Hugging Face Hub, or a local folder as "hub:./folder").
            Where documents have one label each, also a folder with one sub-folder of text files per class, or with
            such folders under train/ and test/; where they have none, a text file, which is one document, or a folder
            of them, perhaps with train/, valid/ and test/. Text files and text formats also as .gz, .xz, .zst or .zip.
        train: A file or a folder for training, instead of `path`.
        validation: A file or a folder for validation; replaces the validation split of `path`.
        test: A file or a folder for the test; replaces the test split of `path`.
        encoding: What text files, csv, tsv and lines of JSON are encoded in, such as "utf-8", "utf-16" or "latin-1".
        text_column: The column with the documents.
        join_rows: Language modelling only: rows of a table or of a Hub data set are not documents but the lines of one.
        label_column: The column with the classes; "rating" reads it from file names ID_RATING.txt in class folders.
        validation_fraction: Share of the training rows taken for validation, class by class, where the source has
            no validation split; 0 takes none. Of a single document, its end is taken.
        test_fraction: Likewise for the test.
        split_seed: Seed of those splits.
        tokens: "bytes", "characters", "words" (punctuation split off), "whitespace" (words as they stand between white
            space, and line breaks), "bpe", or the name or folder of a pretrained tokenizer.
        vocab_size: Number of tokens learned at most, special ones included; "bytes" ignores it.
        lowercase: Lower-case documents first (not with a pretrained tokenizer).
        max_length: Tokens kept of each document, special tokens included; 0 keeps all.
        keep: Which end of a document survives the cut, "first" or "last".
        skip_bad_rows: Drop and count rows without a label, empty documents, broken text, lines that are not a
            JSON object and csv rows with the wrong number of fields instead of stopping.
        classes: For "packages" only: how many packages, largest first; 0 means 10.
        files_per_class: For "packages" only: at most so many files of each package; 0 means all.
    """

    path: str = ""
    train: str = ""
    validation: str = ""
    test: str = ""
    encoding: str = "utf-8"
    text_column: str = "text"
    join_rows: bool = False
    label_column: str = "label"
    validation_fraction: float = 0.1
    test_fraction: float = 0.0
    split_seed: int = 0
    tokens: str = "bpe"
    vocab_size: int = 16000
    lowercase: bool = False
    max_length: int = 0
    keep: str = "first"
    skip_bad_rows: bool = False
    classes: int = 0
    files_per_class: int = 0

    def __post_init__(self) -> None:
        if self.path and self.train:
            raise UserError(
                f"data.path and data.train both name training data ({self.path!r} and {self.train!r}): set only one."
            )
        for name in ("text_column", "label_column", "tokens"):
            if not getattr(self, name):
                raise UserError(f"data.{name} must be a name, but it is empty: leave it out to use the default.")
        if self.text_column == self.label_column:
            raise UserError(
                f"data.text_column and data.label_column are both {self.text_column!r}: they must name two columns."
            )
        for name in ("validation_fraction", "test_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"data.{name} must be at least 0 and below 1, but is {getattr(self, name)}: 0.1 takes a tenth."
                )
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                f"data.validation_fraction and data.test_fraction add up to "
                f"{self.validation_fraction + self.test_fraction:g}, which leaves nothing to train on: "
                "make them less than 1 together."
            )
        for name in ("split_seed", "max_length", "classes", "files_per_class"):
            if getattr(self, name) < 0:
                raise UserError(f"data.{name} must be 0 or more, but is {getattr(self, name)}.")
        check_encoding(self.encoding)
        if self.keep not in ("first", "last"):
            raise UserError(f"data.keep must be 'first' or 'last', but is {self.keep!r}: name the end to keep.")
        if self.classes == 1:
            raise UserError("data.classes must be at least 2 (or 0 for the default), but is 1.")
        smallest = SMALLEST_BPE if self.tokens == "bpe" else 3
        if self.vocab_size < smallest:
            raise UserError(
                f"data.vocab_size must be at least {smallest} for tokens={self.tokens!r}, but is {self.vocab_size}."
            )
        if self.lowercase and self.tokens not in TRAINED_TOKENS:
            raise UserError(
                f"data.lowercase works with tokens {', '.join(TRAINED_TOKENS)}, but tokens is {self.tokens!r}, which "
                "decides on case itself: set data.lowercase=false."
            )
