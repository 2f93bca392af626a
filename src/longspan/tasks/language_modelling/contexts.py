"""Reading of documents that a trained language model is scored on: `Reading`."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from longspan.errors import UserError
from longspan.tasks.base.options import CorpusData
from longspan.tasks.base.task import Run
from longspan.tasks.language_modelling.likelihood import attention_length, set_attention_length
from longspan.tasks.language_modelling.options import EvaluationOptions, TrainingOptions
from longspan.tasks.language_modelling.trainer import carries


@dataclass(frozen=True)
class Reading:
    """Arguments of `token_losses`, with all defaults filled in.

    Attributes:
        context: "carried" or "sliding".
        rows: Documents, or windows, in a batch.
        segment_length: Tokens read at a time with carried states.
        window: Tokens in a sliding window; 0 with carried states.
        stride: Tokens from one window to the next; 0 with carried states.
    """

    context: str
    rows: int
    segment_length: int
    window: int
    stride: int

    def at_once(self, length: int) -> int:
        """Number of positions of a document of `length` tokens, its end included, that are counted at once."""
        return min(self.window, length) if self.window else length

    def details(self, model: PreTrainedModel) -> dict[str, Any]:
        """Details of results."""
        if self.context == "sliding":
            return {"context": self.context, "window": self.window, "stride": self.stride}
        return {
            "context": self.context,
            "segment_length": self.segment_length,
            "attention_length": attention_length(model),
        }


def reading(run: Run[CorpusData, TrainingOptions], options: EvaluationOptions) -> Reading:
    """Reading of documents by the model of `run`: as `options` say, and otherwise as in training.

    Models that read each segment from an empty state are scored in sliding windows. An attention length is set in the
    model.

    Raises:
        UserError: Options that do not fit each other, or the model.
    """
    training = run.recipe.options
    context = options.context or ("carried" if carries(run.model, training) else "sliding")
    rows = run.recipe.training["per_device_eval_batch_size"]
    if context == "carried":
        if (options.window, options.stride) != (None, None):
            raise UserError(
                "expected a sliding context with window and stride, got a model whose states are carried; leave them "
                "out, or use --context sliding."
            )
        if options.attention_length is not None:
            set_attention_length(run.model, options.attention_length)
        return Reading(context, rows, options.segment_length or training.segment_length, 0, 0)
    if (options.segment_length, options.attention_length) != (None, None):
        raise UserError(
            "expected carried states with a segment length or an attention length, got the context 'sliding'; give "
            "--window instead, or --context carried."
        )
    window = options.window or training.segment_length
    stride = options.stride or (window + 1) // 2
    if stride > window:
        raise UserError(f"expected a stride of at most the window, {window}, got {stride}; make it smaller.")
    return Reading(context, rows, training.segment_length, window, stride)
