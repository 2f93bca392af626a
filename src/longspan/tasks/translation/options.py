"""Options of translation."""

from dataclasses import dataclass

from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.errors import UserError
from longspan.options import Range, option
from longspan.tasks.base.options import LengthTrainingOptions, SearchOptions

__all__ = ["EvaluationOptions", "PredictionOptions", "TrainingOptions", "TranslationData"]


@dataclass(frozen=True)
class TranslationData(DataConfig):
    """Pairs of texts: a source and its translation, the target.

    Besides tables, `path`, `train`, `validation` and `test` may name parallel text files, one text per line: both as
    "corpus.en,corpus.de", or their common beginning "corpus", with `source_column` "en" and `target_column` "de". With
    these columns, a folder may have train.en and train.de, val.en and val.de, and test.en and test.de. In .tmx files,
    columns are languages.
    """

    max_length: int = option(
        0,
        "maximum number of tokens of a source and of a target, end tokens included; 0 for no limit. Training leaves "
        "out longer pairs and counts them. Otherwise sources are cut.",
    )
    source_column: str = option(
        "source", "column with the sources; of parallel files, the end of their names; of .tmx files, a language"
    )
    target_column: str = option("target", "same for the targets")
    text_column: str = option("", "replaces `source_column`, as `longspan predict --text-column` sets it")
    vocab_size: int = 8000
    shared_vocabulary: bool = option(
        True,
        "whether source and target share their tokens, learned from both. With false each side has tokens of its own, "
        "which suits languages of different scripts.",
    )
    target_vocab_size: int = option(0, "then the maximum number of tokens of the target; 0 for `vocab_size`", Range(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_vocabulary and self.target_vocab_size:
            raise UserError(
                f"expected no data.target_vocab_size with one vocabulary, got {self.target_vocab_size}; leave it out, "
                "or set data.shared_vocabulary=false."
            )
        if not self.shared_vocabulary and self.tokens not in TRAINED_TOKENS:
            raise UserError(
                "expected tokens that are learned from each side, such as data.tokens=bpe, with "
                f"data.shared_vocabulary=false, got {self.tokens!r}; set another, or leave it out."
            )
        if self.keep != "first":
            raise UserError(f"data.keep must be 'first' for translation, got {self.keep!r}; leave it out.")


@dataclass(frozen=True)
class TrainingOptions(LengthTrainingOptions):
    """Training of translation; `batch_tokens` counts sources and targets, padding included."""

    beams: int = option(
        4, "beams of the final scores and, unless they are given, of evaluations and predictions", Range(1)
    )
    translated_examples: int = option(
        200,
        "validation examples translated greedily for BLEU and chrF during training; final scores are of all",
        Range(1),
    )
    bpe_dropout: float = option(
        0.0,
        "BPE-dropout: share of the merges of data.tokens=bpe that are left out at random, so that training texts are "
        "split into other tokens in each epoch; 0 for none",
        Range(0, below=1),
    )


EvaluationOptions = SearchOptions


@dataclass(frozen=True)
class PredictionOptions(SearchOptions):
    """Search for translations."""

    best: int = option(
        1, "translations of each source, from the best; at most as many as there are beams or candidates", Range(1)
    )
    alignments: bool = option(False, "pairs of source and target words that are translations of each other")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beams is not None and self.best > self.beams:
            raise UserError(f"best must be at most beams={self.beams}, got {self.best}; raise beams.")
        if self.candidates and self.best > self.candidates:
            raise UserError(f"best must be at most candidates={self.candidates}, got {self.best}; raise candidates.")
