"""From a model to a program: `export_program`, `save_torch`, `load_torch`."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from longspan.errors import UserError, first_line
from longspan.models.model import LongspanPreTrainedModel

#: Function that runs a program: `arguments` to logits.
Runner = Callable[..., Tensor]
OUTPUT = "logits"
# Sizes of the inputs it is traced with: primes, so that they are no size of the model by chance.
_ROWS, _LENGTH = 3, 41
# What tracing notes of the source code, with the paths of this machine.
_NOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


class Program(nn.Module):
    """A model as a function of tensors that returns one."""

    def __init__(self, model: LongspanPreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, more: dict[str, Tensor] | None = None) -> Tensor:
        """Return the logits, (b, num_labels) of a classifier and (b, t, vocab_size) of a language model."""
        return self.model.program_output(input_ids=input_ids, attention_mask=attention_mask, **(more or {}))


def arguments(model: LongspanPreTrainedModel, input_ids: Tensor, attention_mask: Tensor) -> tuple[Any, ...]:
    """Arguments of a model's program: ids and mask and, where it has more inputs, these by name."""
    inputs = model.program_inputs(input_ids, attention_mask)
    main = (inputs.pop("input_ids"), inputs.pop("attention_mask"))
    return (*main, inputs) if inputs else main


def input_names(program: ExportedProgram) -> list[str]:
    """Names of the inputs of a program."""
    return [name.removeprefix("more_") for name in map(str, program.graph_signature.user_inputs)]


def export_program(model: LongspanPreTrainedModel, longest: int | None) -> ExportedProgram:
    """Return the program of a model on the CPU, for any number of rows of 1 to `longest` tokens (None: any number).

    Raises:
        UserError: The model depends on sizes or values in a way that no single program can.
    """
    length = min(_LENGTH, longest or _LENGTH)
    ids = torch.ones(_ROWS, length, dtype=torch.long)
    mask = ids.clone()
    mask[0, length - length // 3 :] = 0
    dims = {0: Dim("batch", min=1)}
    if length > 1:
        dims[1] = Dim("length", min=1, max=longest)
    try:
        with torch.no_grad(), quiet():
            inputs = arguments(model, ids, mask)
            shapes = tuple(dict.fromkeys(each, dims) if isinstance(each, dict) else dims for each in inputs)
            program = torch.export.export(Program(model).eval(), inputs, dynamic_shapes=shapes)
    except MemoryError:
        raise
    # torch.export raises errors of many classes, for what a mixer from elsewhere may do.
    except Exception as error:
        named = ", ".join(sorted(set(model.config.mixers or ())))
        raise UserError(
            f"expected mixers that torch.export can export with dynamic shapes, got {named} ({first_line(error)}); "
            "choose others, or fix them: `longspan.testing.check_mixer` says what is missing."
        ) from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                for note in _NOTES:
                    node.meta.pop(note, None)
    return program


def save_torch(program: ExportedProgram, path: Path) -> None:
    """Write a program for torch alone."""
    with quiet():
        torch.export.save(program, path)


def load_torch(path: Path) -> Runner:
    """Function that runs the program in a file of `save_torch`."""
    with quiet():
        return torch.export.load(path).module()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what torch and onnxscript say about themselves while they export; errors are raised."""
    names = ("torch.onnx", "torch.export", "torch.fx", "torch._export", "onnxscript")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
