"""The optimizers of a training run: one for each kind of parameter, behind one interface."""

from collections.abc import Iterable
from typing import Any

from accelerate import DistributedType
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainingArguments

from longspan.errors import UserError
from longspan.training.arguments import Arguments
from longspan.training.depths import decay
from longspan.training.joined import Joined, take
from longspan.training.muon import Muon, matrices_of
from longspan.training.tables import apart, clip_gradients, tables_of

IN_PARTS = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA)
"""Where each process has parts of the weights."""


class JoinsOptimizers(Trainer):
    """A `Trainer` whose matrices and tables can have optimizers of their own, and whose layers their own rates.

    Attributes:
        layer_decay: what the learning rate is multiplied by for each layer above a parameter.
    """

    optimizer: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer_decay = 1.0

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: PreTrainedModel | None = None) -> tuple[Any, Any]:
        """Return the class of the optimizer that the arguments name, and what it is made with; see `Trainer`."""
        kind, settings = Trainer.get_optimizer_cls_and_kwargs(args, model)
        # Both have the same arguments.
        return (Adam if isinstance(args, Arguments) and args.coupled_adam else kind), settings

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """Create the optimizer that the arguments name, and others for matrices (Muon) and the rows of tables.

        Where processes have parts of each weight there are no rows, and one optimizer has all.

        Raises:
            UserError: Muon would have to orthogonalise matrices of which each process has a part.
        """
        given: Optimizer | None = self.optimizer
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        if given is not None:
            return optimizer
        parts, whole = {"dense": optimizer}, self.accelerator.distributed_type not in IN_PARTS
        if isinstance(self.args, Arguments) and self.args.muon:
            if not whole:
                raise UserError(
                    "expected whole weights in each process for training.optim=muon, got weights sharded over "
                    "processes; choose another."
                )
            if matrices := matrices_of(self.model):
                take(optimizer, matrices)
                parts["matrices"] = Muon(matrices, lr=self.args.learning_rate, weight_decay=self.args.weight_decay)
        if whole and (tables := tables_of(self.model)):
            sparse = self._sparse()
            parts["tables"] = apart(tables, optimizer, self.args, sparse=sparse)
            if sparse:
                self.accelerator.clip_grad_norm_ = self._clip_gradients
        if self.layer_decay != 1:
            for part in parts.values():
                decay(part, self.model, self.layer_decay)
        if len(parts) > 1:
            optimizer = self.optimizer = Joined(parts)
        return optimizer

    def _sparse(self) -> bool:
        """Return whether gradients of tables can be sparse: gloo exchanges such, and NCCL does not.

        Compiled, they would cut the model's graph in pieces, which costs a GPU more than dense ones.
        """
        kind, device = self.accelerator.distributed_type, self.args.device.type
        if device == "cuda":
            return kind == DistributedType.NO and self.args.n_gpu <= 1 and not self.args.torch_compile
        return device == "cpu" and kind in (DistributedType.NO, DistributedType.MULTI_CPU)

    def _clip_gradients(self, parameters: Iterable[Tensor], most: float) -> Tensor:
        # Those of float16 are scaled.
        self.accelerator.unscale_gradients()
        return clip_gradients(parameters, most)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (KeyError, ValueError) as error:
            raise UserError(
                f"expected the state of this run's optimizer in {checkpoint}, got that of another one (an older "
                "version's, or that of processes that shared weights in another way); resume as the run was started, "
                "or start again with --overwrite."
            ) from error
        # The optimizer's learning rate is that of the schedule with which the checkpoint was saved. If the run was
        # given more steps, the next one would still be taken with it, which at the end of a schedule is zero.
        if checkpoint is not None and isinstance(self.lr_scheduler, LambdaLR):
            scheduler = self.lr_scheduler
            for group, base, factor in zip(
                scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
            ):
                group["lr"] = base * factor(scheduler.last_epoch)
