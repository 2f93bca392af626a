"""Document classification: one label per document."""

from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.config import DataConfig
from longspan.data.prepared import Prepared
from longspan.data.sources import load_splits
from longspan.data.tokens import build_tokenizer, tokenize, truncation_table
from longspan.metrics import metrics
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.models.limits import check_length
from longspan.training.lengths import LengthTrainer

MODEL = LongspanForSequenceClassification
SCORES = {"accuracy": "accuracy", "macro_f1": "macro-F1", "calibration_error": "calibration error"}
LOWER_IS_BETTER = False
TRAINING = {"batch_tokens": 32768}
DATA = (
    "data.path=FOLDER (a folder with one sub-folder per class, or a csv, tsv, jsonl or parquet file), or "
    "data.train=FILE"
)


def prepare(data: DataConfig) -> Prepared:
    """Read, split and tokenise documents; vocabulary and labels come from the training split alone.

    Raises UserError for whatever is wrong with the data.
    """
    loaded = load_splits(data)
    training = loaded.splits["train"]
    # Numbers in the order of their size, then words in that of the alphabet.
    names = sorted(training.unique("label"), key=lambda name: (not name.isdigit(), name.zfill(20), name))
    numbers = {name: number for number, name in enumerate(names)}
    tokenizer = build_tokenizer(data, training["text"], cache_key=training._fingerprint)
    splits = {
        name: tokenize(split, tokenizer, data, numbers, f"Tokenising {name}") for name, split in loaded.splits.items()
    }
    report: dict[str, Any] = {name: truncation_table(split) for name, split in splits.items()}
    return Prepared(splits, tokenizer, names, {**report, "skipped": loaded.skipped})


def configure(settings: dict[str, Any], **from_data: Any) -> LongspanConfig:
    """Return the configuration that a recipe's `[model]` describes, with what the data decide.

    Raises UserError for settings that cannot be.
    """
    return LongspanConfig(**settings, **from_data)


def build_model(settings: dict[str, Any], prepared: Prepared) -> LongspanForSequenceClassification:
    """Return a new model of the recipe's shape for these tokens and labels.

    Raises UserError when a document is longer than the model takes, before anything is trained.
    """
    config = configure(
        settings,
        vocab_size=len(prepared.tokenizer),
        pad_token_id=prepared.tokenizer.pad_token_id,
        id2label=dict(enumerate(prepared.labels)),
        label2id={name: number for number, name in enumerate(prepared.labels)},
        problem_type="single_label_classification",
    )
    model = LongspanForSequenceClassification(config)
    check_length(model, max(max(split["length"][:]) for split in prepared.splits.values()))
    return model


def make_trainer(
    model: PreTrainedModel, arguments: TrainingArguments, training: dict[str, Any], prepared: Prepared
) -> LengthTrainer:
    """Return a `Trainer` that batches by length and scores the validation split."""

    def measure(outputs: Tensor, labels: Tensor) -> dict[str, Any]:
        loss = float(cross_entropy(outputs, labels))
        return {"loss": loss, **metrics(outputs, labels, prepared.labels)}

    return LengthTrainer(
        model,
        arguments,
        train_dataset=prepared.splits["train"],
        eval_dataset=prepared.splits["validation"],
        pad_id=prepared.tokenizer.pad_token_id,
        measure=measure,
        batch_tokens=training.get("batch_tokens", 0),
    )


def final_scores(trainer: LengthTrainer, prepared: Prepared) -> dict[str, Any]:
    """Return every score of `longspan.metrics.metrics`, and the loss, for each split but the training's."""
    return {
        name: trainer.validation_scores() if name == "validation" else trainer.score(split)
        for name, split in prepared.splits.items()
        if name != "train"
    }
