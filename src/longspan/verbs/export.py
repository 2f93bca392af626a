"""Write a trained model for others: as a program that runs without longspan, or for the Hub: `export`."""

import contextlib
import copy
import dataclasses
import glob
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from longspan.data.sources.paths import read_paths
from longspan.errors import UserError, check_choice
from longspan.machine.floors import interleaved
from longspan.machine.locks import lock_folder
from longspan.models import LongspanForSequenceClassification, remote_code
from longspan.models.limits import limits
from longspan.models.model import LongspanPreTrainedModel
from longspan.programs import hub, making, onnx
from longspan.programs.exported import Export, Int8
from longspan.programs.int8 import quantized
from longspan.programs.predicting import ANSWERS, FILE, MARK
from longspan.programs.readme import readme
from longspan.results.outputs import write_json, write_text
from longspan.tasks.base.task import Run, Task
from longspan.verbs.evaluate import load_split
from longspan.verbs.runs import as_run

FORMATS = {
    "torch": ("model.pt2", making.save_torch, making.load_torch),
    "onnx": (FILE, onnx.save_onnx, onnx.load_onnx),
}
#: The largest difference between a program's outputs and the model's, as a share of the largest output. Sums in another
#: order differ by some units in the last place of float32, 1e-7, times what the layers make of it.
TOLERANCE = 1e-4
#: With 8 bits, a number that lies between two steps of 1/127 may fall to either.
INT8_TOLERANCE = 2e-2
#: Files of every export of one kind: nothing else is replaced.
_MARKS = (MARK, remote_code.FILE)
#: Texts that a program is checked and timed on, and their longest; documents that 8 bits are scored on.
_TEXTS, _TOKENS, _SCORED = 32, 4096, 1000
#: Positions of a batch of several texts: attention to all positions stores the square of its length for each text.
_POSITIONS = 8192
_ROUNDS = 7


def export(
    run: Run | Path | str,
    out: Path | str | None = None,
    *,
    format: str = "torch",
    int8: bool = False,
    data: str | None = None,
    split: str | None = None,
    checkpoint: int | str | None = None,
    overwrite: bool = False,
    allow_imports: Iterable[str] = (),
) -> Export:
    """Write a run's model as a program for rows of any number and length, and check it on real text.

    The format "hub" writes the model itself, for whoever loads it with `trust_remote_code=True` and has longspan
    installed: see `longspan.programs.hub`. It reads no data.

    Args:
        run: The run folder, or what `longspan.verbs.runs.load_run` returned for it.
        out: The folder to write, complete or not at all: the program, the processor, the labels and a README with the
            lines that load and run it. By default `export-FORMAT` in the run folder.
        format: "torch" for a file of torch.export (model.pt2), "onnx" for onnxruntime and others (model.onnx), "hub"
            for a folder that transformers loads without importing longspan.
        int8: Whether linear layers compute in 8 bits. Then the program is also timed against the one in float32, and
            both models are scored.
        data: A file or folder with other text to check on, as `longspan.predict` reads it; with `int8` it needs what
            the scores need, as for `longspan.evaluate`.
        split: Which split to check on, by default test, or validation where there is no other.
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        overwrite: Whether `out` may replace an earlier export.
        allow_imports: Packages or modules that dotted paths in the run folder may import.

    Raises:
        UserError: Unknown format, missing packages, `out` exists, no such run, or no text to check on. Also a model
            that cannot be exported, and a program whose outputs differ from the model's.
    """
    check_choice("format", format, [*FORMATS, "hub"])
    if format == "hub":
        for name, given in (("int8", int8), ("data", data), ("split", split)):
            if given is not None and given is not False:
                raise UserError(
                    f"expected --{name} with a program (--format {' or '.join(FORMATS)}), got it with --format hub, "
                    "which writes the model as it is; leave it out."
                )
    if format == "onnx":
        onnx.require_packages()
    if out is not None:
        _check_out(Path(out), overwrite)
    loaded = as_run(run, checkpoint, allow_imports)
    folder = Path(out) if out is not None else loaded.folder / f"export-{format}{'-int8' if int8 else ''}"
    if format == "hub":
        hub.check(loaded)
        with _replacing(folder, overwrite) as (fresh, _):
            return hub.write(fresh, loaded, folder, TOLERANCE)
    if encoder := loaded.model.config.embeddings.pretrained:
        raise UserError(
            f"expected a model without a pretrained encoder to export, got one with {encoder!r}, which reads documents "
            "in windows; use it with longspan."
        )
    if loaded.model.config.is_encoder_decoder:
        raise UserError(
            "expected a model that reads one row of tokens to export as a program, got one with an encoder and a "
            "decoder, whose steps need states, which programs lack; export it with --format hub."
        )
    if type(loaded.task).token_rows is Task.token_rows:
        # It refuses, before examples are read that need not be rows.
        loaded.task.token_rows(loaded, Dataset.from_dict({}))
    if format == "torch" and type(loaded.task).write_answers is not Task.write_answers:
        raise UserError(
            "expected --format onnx with a token classifier, whose export `longspan predict` runs, got --format torch; "
            "choose the former, or --format hub."
        )
    _check_out(folder, overwrite)
    if data is None or int8:
        examples, _, split, source = load_split(loaded, data, split)
    else:
        examples, split, source = _read_texts(loaded, data), "all", data
    # Without gradients, so that whoever runs the program need not switch them off.
    model = copy.deepcopy(loaded.model).to("cpu", torch.float32).eval().requires_grad_(False)
    # Otherwise states would be among the outputs.
    model.config.use_cache = False
    longest = min((limit.tokens for limit in limits(model)), default=None)
    texts = [ids[:longest] for ids in _texts(loaded, examples)]
    pad_id = int(next(iter(loaded.processor.streams.values())).fill)
    batches = [making.arguments(model, *batch) for batch in _batches(texts, pad_id)]
    file, save, load = FORMATS[format]
    with _replacing(folder, overwrite) as (fresh, beside):
        save(making.export_program(model, longest), fresh / file)
        program = load(fresh / file)
        difference = _check(program, model, batches, TOLERANCE)
        told = None
        if int8:
            plain = beside / file
            (fresh / file).rename(plain)
            small, layers = quantized(model, lambda other: making.Program(other)(*batches[-1]))
            if not layers:
                raise UserError(
                    f"expected linear layers to compute in 8 bits, got none in {str(loaded.folder)!r}; export it "
                    "without --int8."
                )
            save(making.export_program(small, longest), fresh / file)
            in_8_bits = load(fresh / file)
            difference = _check(in_8_bits, small, batches, INT8_TOLERANCE)
            told = _int8(loaded, model, small, layers, examples, split, plain.stat().st_size)
            calls = {name: partial(run, *batches[-1]) for name, run in (("before", program), ("after", in_8_bits))}
            with torch.no_grad():
                for call in calls.values():
                    call()
                times = interleaved(calls, repeats=_ROUNDS)
            told = dataclasses.replace(told, float32_seconds=times["before"].median, seconds=times["after"].median)
        result = Export(
            task=loaded.task.name,
            format=format,
            folder=str(folder),
            file=file,
            bytes=(fresh / file).stat().st_size,
            longest=longest,
            data=source,
            checked=[tuple(ids.shape) for ids, *_ in batches],
            difference=difference,
            int8=told,
        )
        run = dataclasses.replace(loaded, model=model)
        _write_rest(fresh, run, model, result)
        if format == "onnx":
            onnx.check_reading(fresh, run, _spread(examples, _TEXTS), None if int8 else TOLERANCE)
    return result


@contextlib.contextmanager
def _replacing(folder: Path, overwrite: bool) -> Iterator[tuple[Path, Path]]:
    """Yield a new folder, which takes the place of `folder` at the end, and one that goes away; see `_check_out`."""
    _check_out(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}-"
    for left in folder.parent.glob(f"{glob.escape(prefix)}*/fresh"):
        # Of an export that was killed; one at work holds its folder.
        with contextlib.suppress(UserError), lock_folder(left.parent, "an export"):
            shutil.rmtree(left.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as temporary:
        beside = Path(temporary)
        with lock_folder(beside, "an export"):
            fresh = beside / "fresh"
            fresh.mkdir()
            yield fresh, beside
            # Something may have come there meanwhile.
            _check_out(folder, overwrite)
            if folder.exists():
                folder.rename(beside / "old")
            fresh.rename(folder)


def _check_out(out: Path, overwrite: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite:
        raise UserError(f"{str(out)!r} exists; choose another folder, or replace it with --overwrite.")
    # Nothing else is ever deleted, as at a mistyped path.
    if out.is_symlink() or not any((out / mark).is_file() for mark in _MARKS):
        raise UserError(f"expected an exported model in {str(out)!r} to replace, got something else; choose another.")


def _read_texts(run: Run, path: str) -> Dataset:
    """Return the first texts of other data, without what is to be predicted from them."""
    columns = [column for column in run.task.columns(run.recipe.data) if not column.target]
    rows = itertools.islice((row for row in read_paths([path], columns, run.recipe.data) if not row.problem), _TEXTS)
    values = [row.values for row in rows]
    return Dataset.from_dict({column.name: [each.get(column.name) for each in values] for column in columns})


def _texts(run: Run, examples: Dataset) -> list[list[int]]:
    """Return token ids of texts evenly spread over `examples`."""
    found = [ids[:_TOKENS] for ids in run.task.token_rows(run, _spread(examples, _TEXTS)) if len(ids)]
    if not found:
        raise UserError("expected text to check the exported program on, got empty documents; give some with --data.")
    return found


def _spread(examples: Dataset, most: int) -> Dataset:
    count = min(most, len(examples))
    return examples.select([number * len(examples) // count for number in range(count)])


def _batches(texts: Sequence[Sequence[int]], pad_id: int) -> list[tuple[Tensor, Tensor]]:
    """Return ids and masks: the longest text, one token, rows of one token and two, and more and more texts."""
    longest = max(texts, key=len)
    most = max(1, min(8, _POSITIONS // len(longest)))
    chosen = [[longest], [longest[:1]], [longest[:1], longest[:2]], texts[: min(3, most)], texts[:most]]
    batches = []
    for rows in chosen:
        ids = torch.full((len(rows), max(map(len, rows))), pad_id)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)], mask[number, : len(row)] = torch.tensor(row), 1
        batches.append((ids, mask))
    return batches


@torch.no_grad()
def _check(
    run: making.Runner, model: LongspanPreTrainedModel, batches: Sequence[tuple[Any, ...]], tolerance: float
) -> float:
    """Return the largest difference between a program's outputs and the model's, or raise UserError if it is large."""
    largest = 0.0
    for batch in batches:
        expected, found = making.Program(model)(*batch), run(*batch)
        if expected.ndim == 3:
            # What a language model says at padding means nothing.
            real = batch[1].bool()
            expected, found = expected[real], found[real]
        difference = float((found - expected).abs().max())
        allowed = tolerance * max(1.0, float(expected.abs().max()))
        # NaN is not within it either.
        if not difference <= allowed:
            raise UserError(
                f"expected the exported program to give what the model gives to within {allowed:.1e}, got a difference "
                f"of {difference:.1e} on {batch[0].shape[0]} texts of up to {batch[0].shape[1]} tokens; nothing is "
                "written: try the other format, or other mixers."
            )
        largest = max(largest, difference)
    return largest


def _int8(
    run: Run, model: PreTrainedModel, small: PreTrainedModel, layers: int, examples: Dataset, split: str, size: int
) -> Int8:
    """Costs of 8 bits: the scores of both models on the same documents."""
    some = _spread(examples, _SCORED)
    scores = []
    with tempfile.TemporaryDirectory() as pictures:
        for each in (model, small):
            scored, _ = run.task.evaluate(
                dataclasses.replace(run, model=each), some, split, run.task.evaluation_options(), Path(pictures)
            )
            scores.append(scored)
    return Int8(layers, split, len(some), scores[0], scores[1], size)


def _write_rest(folder: Path, run: Run, model: PreTrainedModel, result: Export) -> None:
    run.processor.save_pretrained(folder)
    told: dict[str, Any] = result.to_dict()
    if isinstance(model, LongspanForSequenceClassification):
        told["labels"] = [model.config.id2label[number] for number in range(model.config.num_labels)]
        told["problem_type"] = model.config.problem_type
    if answers := onnx.answers(run, limits(model)) or run.task.write_answers(run, folder):
        told[ANSWERS] = answers
    write_json(folder / MARK, told)
    write_text(folder / "README.md", readme(run, model.config, result))
