"""Language modelling: the next token, from all those before it in its document."""

from typing import Any

from transformers import PreTrainedModel, TrainingArguments

from longspan.data.config import DataConfig
from longspan.data.documents import load_documents
from longspan.data.pieces import pieces, summary, tokenize_documents
from longspan.data.prepared import Prepared
from longspan.data.streams import check_enough
from longspan.data.tokens import build_tokenizer
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.models.limits import limits
from longspan.training.segments import SegmentTrainer, carries

MODEL = LongspanForCausalLM
SCORES = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "bits_per_character": "bits per character",
}
LOWER_IS_BETTER = True
TRAINING = {"segment_length": 256, "carry_states": True}
DATA = "data.path=FILE (a text file, a folder of text files, or a csv, tsv, jsonl or parquet file), or data.train=FILE"


def prepare(data: DataConfig) -> Prepared:
    """Read, split and tokenise documents; the vocabulary comes from the training split alone.

    Raises UserError for whatever is wrong with the data.
    """
    if data.max_length:
        raise UserError(
            f"data.max_length={data.max_length} cuts documents, but language modelling reads them whole, "
            "training.segment_length tokens at a time: leave it out."
        )
    loaded = load_documents(data)
    training = loaded.splits["train"]
    tokenizer = build_tokenizer(data, pieces(training, data), cache_key=training._fingerprint, end=True)
    splits = {
        name: tokenize_documents(split, tokenizer, data, f"Tokenising {name}") for name, split in loaded.splits.items()
    }
    report: dict[str, Any] = {name: summary(split) for name, split in splits.items()}
    return Prepared(splits, tokenizer, [], {**report, "skipped": loaded.skipped})


def configure(settings: dict[str, Any], **from_data: Any) -> LongspanConfig:
    """Return the configuration that a recipe's `[model]` describes, causal, with what the data decide.

    Raises UserError for settings that cannot be.
    """
    if not settings.get("causal", True):
        raise UserError("model.causal=false would show the model the tokens that it is to predict: leave it out.")
    # Before the data are read, any vocabulary will do that holds the clusters.
    from_data.setdefault("vocab_size", 1 + max([LongspanConfig.vocab_size, *(settings.get("cutoffs") or [])]))
    return LongspanConfig(**{"causal": True, **settings, **from_data})


def build_model(settings: dict[str, Any], prepared: Prepared) -> LongspanForCausalLM:
    """Return a new model of the recipe's shape for these tokens.

    Raises UserError when the tokens are fewer than the recipe's clusters begin with.
    """
    tokenizer = prepared.tokenizer
    # Documents begin with what ends them.
    end = tokenizer.eos_token_id
    return LongspanForCausalLM(
        configure(
            settings,
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=end,
            eos_token_id=end,
        )
    )


def make_trainer(
    model: PreTrainedModel, arguments: TrainingArguments, training: dict[str, Any], prepared: Prepared
) -> SegmentTrainer:
    """Return a `Trainer` that reads documents segment by segment, with or without carrying states to the next.

    Raises UserError, before anything is written, for a mixer without states, a segment length that is none, too little
    text for one step, or documents longer than the model reads.
    """
    segment_length = training.get("segment_length", 0)
    if segment_length < 1:
        raise UserError(
            "language modelling needs training.segment_length, how many tokens a row reads in one step, got "
            f"{segment_length}; 256 suits most."
        )
    # States cannot be dealt out to several GPUs by one process; torchrun starts one for each.
    arguments._n_gpu = min(1, arguments.n_gpu)
    lengths = {name: split["length"][:] for name, split in prepared.splits.items()}
    check_enough(lengths["train"], arguments.train_batch_size, segment_length, arguments.world_size)
    carried = carries(model, training)
    _check_length(model, 1 + max(map(max, lengths.values())), 0 if carried else segment_length)
    return SegmentTrainer(
        model,
        arguments,
        train_dataset=prepared.splits["train"],
        eval_dataset=prepared.splits["validation"],
        segment_length=segment_length,
        carries=carried,
        end_id=prepared.tokenizer.eos_token_id,
        pad_id=prepared.tokenizer.pad_token_id,
    )


def _check_length(model: PreTrainedModel, longest: int, segment: int) -> None:
    """Raise UserError unless the model reads as many tokens in one go as it will have to: documents, or a `segment`."""
    what, length = ("a segment", min(longest, segment)) if segment else ("a document", longest)
    for limit in limits(model):
        if limit.tokens < length:
            raise UserError(
                f"{limit.part} reach to {limit.tokens} tokens, but {what} has {length}, its end included; set "
                f"{limit.key}={length}, or choose what has no such limit."
            )


def final_scores(trainer: SegmentTrainer, prepared: Prepared) -> dict[str, Any]:
    """Return every score of `longspan.metrics.language_scores` for each split but the training's."""
    return {
        name: trainer.validation_scores() if name == "validation" else trainer.score(split)
        for name, split in prepared.splits.items()
        if name != "train"
    }
