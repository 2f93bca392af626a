"""The settings of a recipe's `[data]` table."""

import math
from dataclasses import dataclass
from typing import ClassVar

from longspan.data.sources.files.decoding import check_encoding
from longspan.data.sources.formats.schema import QUOTING, check_delimiter
from longspan.errors import UserError
from longspan.options import Options, Range, option

TRAINED_TOKENS = ("bytes", "characters", "words", "whitespace", "bpe", "pieces")
"""The kinds of tokens that do not need a pretrained tokenizer."""

BYTE_PAIRS = ("bpe", "pieces")
"""Those that are learned by byte-level BPE."""

OF_THE_TOKENIZER = ("tokens", "vocab_size", "lowercase")
"""Settings that a trained model does not change with."""

OF_THE_SPLITS = ("split_seed", "validation_fraction", "test_fraction", "sample", "corrections")
"""Settings that decide which rows a model was trained on."""

SMALLEST_BPE = 258
"""Byte-level BPE starts with the 256 bytes, the padding token and the unknown token."""


@dataclass(frozen=True)
class SourceData(Options):
    """Where examples come from, and how they are split: the keys of `[data]` that every task has."""

    table = "data"
    #: Whether `sample` may be a share of the rows.
    samples: ClassVar[bool] = True

    path: str = option(
        "",
        'file (csv, tsv, jsonl or parquet), "packages" (the sources of the installed Python packages), or "hub:NAME" '
        '/ "hub:NAME/CONFIG". The last is a data set of the Hugging Face Hub, or a local folder as "hub:./folder". If '
        "each document has one label, also a folder with one sub-folder of text files per class, or with such folders "
        "under train/ and test/. If documents have no label, also a text file, which is one document, or a folder of "
        "text files, optionally with train/, valid/ and test/. In folders, any file is a document whose suffix is not "
        "that of a table, a picture or the like; of HTML pages, mail, Word, PDF and other documents "
        "(docs/guides/documents.md), the text is read. Text files and text formats may be compressed: .gz, .xz, .zst "
        "or .zip.",
    )
    train: str = option("", "file or folder for training, instead of `path`")
    validation: str = option("", "file or folder for validation; replaces the validation split of `path`")
    test: str = option("", "file or folder for testing; replaces the test split of `path`")
    corrections: str = option(
        "",
        "file with more rows for training, as `longspan serve` writes it (jsonl). A row replaces those with the same "
        "document, and the last one counts; documents of validation and test data stay there as they are.",
    )
    encoding: str = option(
        "utf-8",
        'encoding of text files and tables, such as "utf-8" or "latin-1". "auto" detects it for each file: UTF-8 if '
        "the file is valid UTF-8, and otherwise the guess of charset-normalizer.",
    )
    delimiter: str = option(
        "auto",
        'separator of fields in csv and tsv files: a character or its name, such as semicolon or tab. "auto" is a '
        "comma in csv, a tab in tsv.",
    )
    quoting: str = option(
        "auto",
        '"quotes" if fields of csv and tsv files may stand in quotation marks, "none" if these are characters like '
        'others. "auto" is "none" in a file with tabs whose quotation marks would join rows, and else "quotes".',
        QUOTING,
    )
    header: bool = option(
        True,
        "whether the first row of csv and tsv files has the names of the columns; if not, these are numbered from 1: "
        "data.text_column=2 is the second",
    )
    validation_fraction: float = option(
        0.1,
        "share of the training rows used for validation, class by class, if the source has no validation split; 0 for "
        "none. A single document is cut, and its end used.",
        Range(0, below=1),
        advice="0.1 is a tenth of the rows",
    )
    test_fraction: float = option(
        0.0,
        "share of the training rows used for testing, likewise",
        Range(0, below=1),
        advice="0.1 is a tenth of the rows",
    )
    split_seed: int = option(0, "seed of those splits", Range(0))
    sample: float = option(
        0.0,
        "share of the rows that are read, drawn by `split_seed`. Validation and test data of their own that are small "
        "are read whole; of a single document, the beginning is read. 0 reads all, but with `training.max_minutes` "
        "as large a share as can be prepared in a third of the time; 1 reads all in any case.",
        Range(0, most=1),
    )
    skip_bad_rows: bool = option(
        False,
        "whether to drop and count bad rows instead of stopping. Bad rows have no label, an empty document, broken "
        "text, or the wrong number of csv fields. Lines that are not a JSON object and files that cannot be read, "
        "such as recordings, are bad, too.",
    )
    classes: int = option(0, 'for "packages" only: number of packages, largest first; 0 means 10', Range(0))
    files_per_class: int = option(0, 'for "packages" only: maximum number of files per package; 0 means all', Range(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path and self.train:
            raise UserError(
                f"expected training data from either data.path or data.train, got both ({self.path!r} and "
                f"{self.train!r}); set only one."
            )
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                "data.validation_fraction and data.test_fraction must add up to less than 1, got "
                f"{self.validation_fraction + self.test_fraction:g}, which leaves nothing to train on; lower either."
            )
        if self.corrections and not self.samples:
            raise UserError(
                f"expected data of rows with data.corrections, got data that are read whole ({self.corrections!r}); "
                "leave it out."
            )
        if self.sample not in (0, 1) and not self.samples:
            raise UserError(
                f"data.sample must be 0 or 1 for data that are read whole, got {self.sample:g}; leave it out."
            )
        check_encoding(self.encoding)
        check_delimiter(self.delimiter)
        if self.classes == 1:
            raise UserError("data.classes must be at least 2 (or 0 for the default), got 1; raise it.")


@dataclass(frozen=True)
class DataConfig(SourceData):
    """Texts: where they come from, how they are split, and how they are tokenised."""

    text_column: str = option("text", "column with the documents")
    file_column: str = option(
        "",
        "column of a table with the paths of files, relative to the table, whose texts are the documents; instead of "
        "`text_column`",
    )
    tokens: str = option(
        "bpe",
        'kind of tokens: "bytes", "characters", "words" (punctuation split off), "whitespace" (split at white space '
        'alone, line breaks kept as tokens), "bpe" or "pieces" (BPE within words, punctuation split off). Any other '
        "value is the name or folder of a pretrained tokenizer.",
    )
    tokenizer_from: str = option(
        "",
        "run folder whose tokenizer is used instead of learning one; `tokens`, `vocab_size` and `lowercase` are then "
        "those of that run. `model.start_from` sets it.",
    )
    vocab_size: int = option(16000, 'maximum number of tokens to learn, special tokens included; "bytes" ignores it')
    lowercase: bool = option(False, "whether to lower-case documents first (not with a pretrained tokenizer)")
    max_length: int = option(0, "maximum number of tokens per document, special tokens included; 0 keeps all", Range(0))
    keep: str = option("first", 'tokens to keep of a longer document: the "first" or the "last"', ("first", "last"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tokens:
            raise UserError("data.tokens must be a name, got an empty text; leave it out to use the default.")
        smallest = SMALLEST_BPE if self.tokens in BYTE_PAIRS else 3
        if self.vocab_size < smallest:
            raise UserError(
                f"data.vocab_size must be at least {smallest} for tokens={self.tokens!r}, got "
                f"{self.vocab_size}; raise it."
            )
        if self.lowercase and self.tokens not in TRAINED_TOKENS:
            raise UserError(
                f"data.lowercase needs data.tokens to be one of {', '.join(TRAINED_TOKENS)}, got {self.tokens!r}, a "
                "pretrained tokenizer, which handles case itself; set data.lowercase=false."
            )


@dataclass(frozen=True)
class StreamedData(DataConfig):
    """Texts that may be more than fit onto a disk or into memory."""

    streaming: bool = option(
        False,
        "whether training rows are read and tokenised in each pass, in bounded memory and without a copy on disk. "
        "`path` or `train` is a file, a folder or a pattern ('data/*.jsonl') of csv, tsv, jsonl, parquet or txt files, "
        "or hub:NAME. Vocabulary, labels, counts and held-out rows are those of a sample (docs/guides/large-data.md).",
    )
    streaming_megabytes: float = option(
        16.0, "size of that sample of `streaming`, in millions of characters", Range(above=0, below=math.inf)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        stored = ("sample", "corrections", "file_column", "join_rows", "unlabelled")
        for name in (name for name in stored if self.streaming and getattr(self, name, None)):
            raise UserError(
                f"expected data that are stored for data.{name}, got data.streaming=true; leave one of them out."
            )


@dataclass(frozen=True)
class UnlabelledData(DataConfig):
    """Documents, some with labels, and perhaps many more without."""

    unlabelled: str = option(
        "",
        "file or folder of texts without labels, read as `path` is where documents have none; in tables, the column "
        'that `text_column` names ("text" where that has words). The n-gram part of documents learns which words go '
        "together. Networks without it learn masked words first (docs/guides/few-labels.md).",
    )
    unlabelled_test: bool = option(
        False, "whether the texts of the test split are such texts, too, without their labels; results then say so"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unlabelled_test and not self.unlabelled:
            raise UserError(
                "expected data.unlabelled where data.unlabelled_test=true, got none; name a file or folder of texts."
            )


def check_override(override: str) -> tuple[str, str]:
    """Name and text of a setting of reading, such as `data.encoding=auto`, with which a trained model is used.

    Raises:
        UserError: It is no setting of data, or one that the model was trained with.
    """
    key, _, text = override.partition("=")
    name = key.strip().removeprefix("data.")
    if not key.strip().startswith("data."):
        raise UserError(
            f"expected keys of data, such as data.encoding=auto, got {override!r}; leave it out, or train again."
        )
    if name in OF_THE_TOKENIZER:
        raise UserError(f"data.{name} is what the model was trained with; leave it out.")
    if name in OF_THE_SPLITS:
        raise UserError(
            f"data.{name} decides which rows the model was trained on, and those are never scored; leave it out."
        )
    return name, text.strip()
