"""Scores of a language model: perplexity, bits per byte and character, and the loss by position in the document."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.data.documents import load_documents
from longspan.data.pieces import summary, tokenize_documents
from longspan.data.streams import token_arrays
from longspan.errors import UserError
from longspan.evaluation.splits import load_split
from longspan.likelihood import set_attention_length, token_losses
from longspan.metrics import language_scores, loss_by_position
from longspan.mixers.base import Mixer
from longspan.models.limits import limits
from longspan.report import pictures
from longspan.runs import Run
from longspan.training.segments import carries


def evaluate(
    run: Run,
    data: str | None,
    split: str,
    folder: Path,
    *,
    context: str = "",
    window: int = 0,
    stride: int = 0,
    attention_length: int | None = None,
    segment_length: int = 0,
) -> dict[str, Any]:
    """Score a run's language model and draw `loss_by_position.png` into `folder`.

    Args:
        run: The run.
        data: A text file, or anything else a recipe's `data.path` takes; all of it is scored unless it has splits of
            its own. None is the run's own data.
        split: Which split to score.
        folder: Where the picture goes.
        context: What a token is predicted from, see `longspan.likelihood.token_losses`: "carried" or "sliding"; empty
            is as in training: "sliding" for models that read each segment from an empty state.
        window: Tokens in a sliding window; 0 is as many as in a segment.
        stride: Tokens from one window to the next; 0 is half a window.
        attention_length: Positions that `relative` mixers remember; None is as many as in training.
        segment_length: Tokens read at a time with carried states; 0 is as many as in training.

    Returns:
        The scores of `longspan.metrics.language_scores`; `split` and `data`; `documents`, `tokens` (without the ends
        of documents, whose losses count nevertheless), `characters`, `bytes` and `unknown` (tokens that stand for what
        the tokenizer does not know); `context`, with `segment_length` and `attention_length` (None without `relative`
        mixers) or `window` and `stride`; `by_position`, as `longspan.metrics.loss_by_position` returns it; and
        `skipped` (rows left out, by reason).

    Raises:
        UserError: No such split, options that do not go together, or documents longer than the model reads.
    """
    documents, skipped, split, source = load_split(run, data, split, partial(load_documents, training=False))
    tokens = tokenize_documents(documents, run.tokenizer, run.recipe.data, f"Tokenising {split}")
    counts = summary(tokens)
    context = context or ("carried" if carries(run.model, run.recipe.training) else "sliding")
    if context == "sliding" and (segment_length or attention_length is not None):
        raise UserError(
            "segment length and attention length are for carried states, but the context is 'sliding': give --window "
            "instead, or --context carried."
        )
    if attention_length is not None:
        set_attention_length(run.model, attention_length)
    segment_length = segment_length or run.recipe.training["segment_length"]
    if context == "sliding":
        window = window or segment_length
        stride = stride or (window + 1) // 2
    _check_length(run.model, counts["longest"] + 1, window if context == "sliding" else 0)
    losses = token_losses(
        run.model,
        token_arrays(tokens),
        rows=run.recipe.training["per_device_eval_batch_size"],
        segment_length=segment_length,
        context=context,
        window=window,
        stride=stride,
        progress=True,
    )
    scores = language_scores(losses, counts["characters"], counts["bytes"])
    by_position = loss_by_position(losses)
    pictures.loss_by_position(by_position, folder / "loss_by_position.png")
    carried = {"segment_length": segment_length, "attention_length": _attention_length(run.model)}
    return {
        "split": split,
        "data": source,
        **counts,
        **scores,
        "context": context,
        **(carried if context == "carried" else {"window": window, "stride": stride}),
        "by_position": by_position,
        "skipped": skipped,
    }


def _attention_length(model: PreTrainedModel) -> int | None:
    mixers = (module for module in model.modules() if isinstance(module, Mixer))
    return max((mixer.memory for mixer in mixers if mixer.memory is not None), default=None)


def _check_length(model: PreTrainedModel, longest: int, window: int) -> None:
    """Raise UserError where positions end before a document does, or a window of them if not 0."""
    for limit in limits(model):
        length = min(window, longest) if window else longest
        if length > limit.tokens:
            what = "a window" if window else "a document"
            raise UserError(
                f"{limit.part} reach to {limit.tokens} tokens, but {what} has {length}: score it in smaller windows, "
                f"with --context sliding --window {limit.tokens}."
            )
