"""The loss of the learning curve: the same quantity in training and validation, whatever training minimises."""

from typing import Any

from torch import Tensor, nn
from transformers import Trainer

from longspan.errors import UserError
from longspan.models.model import LongspanPreTrainedModel


class PlainLosses(Trainer):
    """A `Trainer` that logs the training loss without label smoothing and class weights, as validation measures it.

    A model that trains with either returns a `plain_loss` in addition to the loss to minimise. Both use the same
    logits, so the second loss costs little.

    Raises:
        UserError: for `label_smoothing_factor` with a longspan model whose labels are not single classes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plain_loss: Tensor | None = None
        if self.label_smoother is not None and isinstance(self.model, LongspanPreTrainedModel):
            self._let_the_model_smooth()

    def _let_the_model_smooth(self) -> None:
        """Leave label smoothing to the model: `Trainer` would replace the model's loss, and so lose class weights."""
        smoothing, self.label_smoother = self.args.label_smoothing_factor, None
        if not getattr(self.model, "smooths_labels", False):
            raise UserError(
                "expected training.label_smoothing_factor=0 for a model whose labels are not single classes, got "
                f"{smoothing}; leave it out."
            )
        self.model.config.head.label_smoothing = smoothing

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Take gradients of the loss to minimise, and return the loss to log."""
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        plain, self._plain_loss = self._plain_loss, None
        return loss if plain is None else plain.mean()

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return this batch's share of the loss to minimise, and keep the plain one for the log; see `Trainer`."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        plain = getattr(outputs, "plain_loss", None)
        if plain is not None:
            # `Trainer` multiplies it by the number of processes, as it does the other.
            plain = super().compute_loss(lambda **_: {"loss": plain}, inputs, num_items_in_batch=num_items_in_batch)
        self._plain_loss = plain
        return (loss, outputs) if return_outputs else loss
