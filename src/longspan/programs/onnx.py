"""Programs for ONNX and what predicts with them: `save_onnx`, `load_onnx`, `answers`. Their packages are optional."""

import importlib.util
import reprlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.export import ExportedProgram

from longspan.data.sources.formats.rows import Row
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError, first_line
from longspan.models.heads.classification import MULTI_LABEL
from longspan.models.limits import Limit
from longspan.programs.making import OUTPUT, Runner, input_names, quiet
from longspan.programs.predicting import ANSWERS, KINDS, MARK, Documents, Program, is_export
from longspan.results.outputs import json_object
from longspan.tasks.base.task import Run

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# A file of protocol buffers is smaller than this; what does not fit is in a file next to it.
_LARGEST_FILE = 2**31 - 2**24
# ONNX's numbers of types.
_UINT8, _INT32, _INT64 = 2, 6, 7


def require_packages() -> None:
    """Raise UserError unless everything is installed that ONNX needs."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the format 'onnx' needs {', '.join(_PACKAGES)}, but {', '.join(missing)} is not installed; install "
            'them with `pip install "longspan[export]"`, or export with --format torch.'
        )


def save_onnx(program: ExportedProgram, path: Path) -> None:
    """Write a program as ONNX, with its inputs by their names and the output `logits`.

    Raises:
        UserError: ONNX has no operators for what a mixer does.
    """
    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    try:
        with torch.no_grad(), quiet():
            torch.onnx.export(
                program,
                (),
                path,
                dynamo=True,
                verbose=False,
                input_names=input_names(program),
                output_names=[OUTPUT],
                external_data=size > _LARGEST_FILE,
                custom_translation_table=_translations(),
            )
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(
            f"expected mixers whose operations ONNX has, got others ({first_line(cause)}); export with --format torch."
        ) from error


def load_onnx(path: Path) -> Runner:
    """Function that runs the program in a file of `save_onnx`, through onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(input_ids: Tensor, attention_mask: Tensor, more: Mapping[str, Tensor] | None = None) -> Tensor:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, **(more or {})}
        return torch.from_numpy(session.run([OUTPUT], {name: each.numpy() for name, each in given.items()})[0])

    return run


def answers(run: Run, limits: Sequence[Limit]) -> dict[str, Any]:
    """`DocumentAnswers` of a run as JSON; empty if its predictions need more than the program.

    Args:
        run: The run.
        limits: Parts of its model that limit the length of a text.
    """
    task, config = run.task, run.model.config
    # A class from elsewhere may read and answer in ways of its own.
    if not task.program_answers or "." in task.name or KINDS.get(config.problem_type) is not task.prediction:
        return {}
    tokenizer, several = tokenizer_of(run.processor), config.problem_type == MULTI_LABEL
    if not tokenizer.is_fast:
        return {}
    return {
        "problem_type": config.problem_type,
        "labels": [config.id2label[number] for number in range(config.num_labels)],
        "thresholds": list(config.head.thresholds or [0.5] * config.num_labels) if several else [],
        "data": {name: getattr(run.recipe.data, name) for name in Documents.reading},
        "limits": {limit.part: limit.tokens for limit in limits},
        "splits_special": tokenizer.split_special_tokens,
    }


def check_reading(folder: Path, run: Run, examples: Dataset, tolerance: float | None) -> None:
    """Raise UserError unless an export that predicts reads texts as its run does, or labels words so.

    Args:
        folder: The export.
        run: The run.
        examples: Some of its examples.
        tolerance: The largest difference of probabilities of words; None where they differ more.
    """
    if not is_export(folder) or ANSWERS not in json_object(folder / MARK):
        return
    program = Program(folder)
    if isinstance(program.task, Documents):
        for text, ids in zip(examples["text"][:], run.task.token_rows(run, examples), strict=True):
            if program.task.read(text or "", program.data)[0].tolist() != list(ids):
                raise UserError(
                    f"expected the saved tokenizer to read {reprlib.repr(text)} as that of the run does, got other "
                    "tokens; nothing is written: choose --format torch."
                )
    elif tolerance is not None:
        _check_predictions(program, run, examples, tolerance)


def _check_predictions(program: Program, run: Run, examples: Dataset, tolerance: float) -> None:
    names = [column.name for column in run.task.inputs(run.recipe.data)]
    rows = [Row({name: row.get(name) for name in names}, f"text {number}") for number, row in enumerate(examples, 1)]
    # Its words once more, as a text that is to be split.
    if rows and isinstance(words := rows[0].values[names[0]], list):
        rows.append(Row({names[0]: " ".join(words)}, f"{rows[0].where} as raw text"))
    # Rounded to 4 digits, either of them.
    most = tolerance + 1e-4
    found = run.task.predict(run, iter(rows)), program.task.predict(program, rows)
    for row, wanted, given in zip(rows, *found, strict=True):
        if not _agree(wanted.to_dict(), given.to_dict(), most):
            raise UserError(
                f"expected the export to answer as the run does to within {most:.1e}, got something else for "
                f"{row.where}; nothing is written: use the run folder, or --format hub."
            )


def _agree(wanted: Any, given: Any, most: float) -> bool:
    """Whether values of JSON are equal, floating-point numbers to within `most`."""
    if isinstance(wanted, dict):
        return wanted.keys() == given.keys() and all(_agree(wanted[key], given[key], most) for key in wanted)
    if isinstance(wanted, list):
        return len(wanted) == len(given) and all(map(partial(_agree, most=most), wanted, given))
    return abs(wanted - given) <= most if isinstance(wanted, float) else bool(wanted == given)


def _translations() -> dict[Any, Any]:
    """Translations of operators that torch.onnx does not know."""
    from onnxscript import opset18

    # Its signatures have no symbolic values, which is what these functions are given.
    op: Any = opset18

    def sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        # Of equal values, the first stays first.
        count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
        return op.TopK(op.Cast(x, to=_INT64), count, axis=dim, largest=int(descending))

    def int_mm(left: Any, right: Any) -> Any:
        # onnxruntime is six times as fast with unsigned numbers on the left, whose zero is 128.
        shifted = op.Add(op.Cast(left, to=_INT32), op.Cast(op.Constant(value_ints=[128]), to=_INT32))
        zero = op.Cast(op.Constant(value_int=128), to=_UINT8)
        return op.MatMulInteger(op.Cast(shifted, to=_UINT8), right, zero)

    return {torch.ops.aten.sort.stable: sort, torch.ops.aten._int_mm.default: int_mm}
