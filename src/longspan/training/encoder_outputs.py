"""Outputs of a frozen encoder, computed once for each data set and kept on disk: `EncoderOutputs`.

They are float16 in one file per set of documents, from which an epoch reads what it needs, document by document. The
file's name is a hash of everything that they depend on: weights, windows and token ids. Other mixers, seeds and labels
thus find it again; other encoders and documents do not.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets import Dataset
from datasets.utils import tqdm
from filelock import FileLock

from longspan.data.batches.streams import Stream, pad
from longspan.data.fingerprints import fingerprint
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.models.window_encoder import WindowEncoder
from longspan.report import size
from longspan.training import processes

#: Documents whose outputs are written before they are marked as done, so that little is lost by an interruption.
_SAVED_TOGETHER = 256
#: Documents and tokens that are read together.
_DOCUMENTS, _TOKENS = 64, 32768
_BYTES = 2
#: Outputs computed for examples in addition to their streams, in the place of the main one and of a second document.
COMPUTED = {"inputs_embeds": Stream("float16"), "second_embeds": Stream("float16")}
#: The stream and the column of lengths that each is computed from.
_SOURCES = {"inputs_embeds": ("input_ids", "length"), "second_embeds": ("second_ids", "second_length")}
_TOKENS_READ = {"input_ids": Stream(mask="attention_mask")}


class EncoderOutputs:
    """Outputs of a frozen encoder for the tokens of documents, as data sets that a model reads with them.

    Args:
        encoder: the encoder, in evaluation mode.
    """

    def __init__(self, encoder: WindowEncoder) -> None:
        self.encoder = encoder
        self.folder = Path(datasets.config.HF_DATASETS_CACHE, "longspan_encoder_outputs")
        self._fingerprint: str | None = None
        self._files: dict[str, Path] = {}

    def store(self, splits: Iterable[Dataset]) -> None:
        """Compute missing outputs, reporting their size beforehand; resume where an earlier computation stopped.

        Args:
            splits: data sets with the columns `input_ids` and `length`, and perhaps `second_ids` and `second_length`.

        Raises:
            UserError: There is not enough room on the disk, or it cannot be written to.
        """
        wanted = {self._file(each): each for split in splits for each in _documents(split).values()}
        missing = {file: split for file, split in wanted.items() if not self._is_whole(file, split)}
        if not missing:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._announce(missing)
            device = next(self.encoder.parameters()).device
            self.encoder.to(torch.accelerator.current_accelerator(check_available=True) or device)
            for file, split in missing.items():
                # One of several processes computes them, and the others find them.
                with FileLock(f"{file}.lock"):
                    if not self._is_whole(file, split):
                        self._compute(file, split)
            self.encoder.to(device)
        except OSError as error:
            raise UserError(
                f"expected to write the encoder's outputs to {str(self.folder)!r}, but writing failed "
                f"({error.strerror or error}); free some space, or set HF_DATASETS_CACHE to a folder on another disk."
            ) from error

    def joined_to(self, rows: Dataset, dataset: Dataset, *, stand_ins: bool = False) -> "WithOutputs":
        """Return the rows of a data set together with the outputs for them, which are computed if they are missing.

        Args:
            rows: what is read of each row of `dataset`.
            dataset: has the columns of `store`.
            stand_ins: whether to have zeros in place of outputs, to see what reading them costs.
        """
        if not stand_ins:
            self.store([dataset])
        stored = {
            name: (None if stand_ins else self._file(each), _lengths(each))
            for name, each in _documents(dataset).items()
        }
        return WithOutputs(rows, stored, self.encoder.width)

    def _file(self, dataset: Dataset) -> Path:
        """Return the file for a data set, hashing its ids once."""
        name = fingerprint(dataset)
        if name not in self._files:
            if self._fingerprint is None:
                self._fingerprint = self.encoder.fingerprint()
            digest = hashlib.sha256(self._fingerprint.encode())
            for start in range(0, len(dataset), 1000):
                rows = dataset.select_columns(["input_ids"]).with_format("numpy")[start : start + 1000]["input_ids"]
                for ids in rows:
                    digest.update(len(ids).to_bytes(8, "little") + np.asarray(ids, dtype=np.int32).tobytes())
            self._files[name] = self.folder / f"{digest.hexdigest()[:40]}.float16"
        return self._files[name]

    def _size(self, dataset: Dataset) -> int:
        return int(_lengths(dataset).sum()) * self.encoder.width * _BYTES

    def _is_whole(self, file: Path, dataset: Dataset) -> bool:
        # Only whole files have this name; one that somebody has cut is computed again.
        return file.is_file() and file.stat().st_size == self._size(dataset)

    def _announce(self, missing: Mapping[Path, Dataset]) -> None:
        needed = sum(map(self._size, missing.values()))
        begun = sum(_blocks(part) for file in missing if (part := _unfinished(file)).is_file())
        free = shutil.disk_usage(self.folder).free
        if needed - begun > free:
            raise UserError(
                f"expected {size(needed - begun)} on the disk of {str(self.folder)!r} for the encoder's outputs, got "
                f"{size(free)}; free some, set HF_DATASETS_CACHE to a folder on another disk, or cut documents "
                "with data.max_length."
            )
        documents = sum(map(len, missing.values()))
        note(f"caching the encoder's outputs for {documents:,} documents in {self.folder}: {size(needed)}")

    def _compute(self, file: Path, dataset: Dataset) -> None:
        lengths = _lengths(dataset)
        starts = np.cumsum(lengths) - lengths
        done = _Done(Path(f"{file}.done"), len(dataset))
        unfinished = _unfinished(file)
        if not (unfinished.is_file() and done.marked.any()):
            done.marked[:] = False
        rows = dataset.select_columns(["input_ids"]).with_format("numpy")
        hidden = datasets.are_progress_bars_disabled() or processes.rank() > 0
        bar = tqdm(total=int(lengths.sum()), desc="Encoding", unit="token", unit_scale=True, disable=hidden)
        # Positions between those that are written hold nothing, on disks that know of such files.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        with bar, os.fdopen(os.open(unfinished, flags, 0o644), "r+b") as target:
            bar.update(int(lengths[done.marked].sum()))
            waiting: list[int] = []
            for batch in _batches(lengths, done.marked):
                padded = pad([{"input_ids": rows[row]["input_ids"]} for row in batch], _TOKENS_READ)
                device = next(self.encoder.parameters()).device
                found = self.encoder(padded["input_ids"].to(device), padded["attention_mask"].to(device).bool())
                values = found.to("cpu", torch.float16).numpy()
                for place, row in enumerate(batch):
                    target.seek(int(starts[row]) * self.encoder.width * _BYTES)
                    target.write(values[place, : lengths[row]].tobytes())
                waiting += batch
                bar.update(int(lengths[batch].sum()))
                if len(waiting) >= _SAVED_TOGETHER:
                    done.mark(waiting, target)
                    waiting = []
            done.mark(waiting, target)
            target.truncate(self._size(dataset))
        unfinished.replace(file)
        done.path.unlink()


class WithOutputs(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows, each with the outputs of an encoder for the tokens of its documents, (t, width) float16.

    Args:
        rows: the rest of the rows.
        stored: by what rows call the outputs, one of `COMPUTED`: the file with those of all rows, one after the other,
            or None for zeros; and (n,) tokens of the document of each row.
        width: that of the outputs.
    """

    def __init__(self, rows: Dataset, stored: Mapping[str, tuple[Path | None, np.ndarray]], width: int) -> None:
        self.rows, self.width = rows, width
        self.stored = {name: (file, sizes, np.cumsum(sizes) - sizes) for name, (file, sizes) in stored.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {**self.rows[row], **{name: self._outputs(row, *one) for name, one in self.stored.items()}}

    def _outputs(self, row: int, file: Path | None, sizes: np.ndarray, starts: np.ndarray) -> np.ndarray:
        if file is None:
            return np.zeros((int(sizes[row]), self.width), dtype=np.float16)
        # Read, not mapped: a copy for another process is small, and a file that is cut meanwhile ends in an error.
        count, place = int(sizes[row]) * self.width, int(starts[row]) * self.width * _BYTES
        return np.fromfile(file, dtype=np.float16, count=count, offset=place).reshape(-1, self.width)


class _Done:
    """Documents whose outputs are on disk, in a file next to these."""

    def __init__(self, path: Path, documents: int) -> None:
        self.path = path
        found = np.fromfile(path, dtype=np.uint8) if path.is_file() else np.zeros(0, dtype=np.uint8)
        self.marked = found.astype(bool) if len(found) == documents else np.zeros(documents, dtype=bool)

    def mark(self, documents: Sequence[int], written: Any) -> None:
        """Mark documents once what was written of them is safe."""
        written.flush()
        os.fsync(written.fileno())
        self.marked[documents] = True
        beside = self.path.with_suffix(".marks")
        beside.write_bytes(self.marked.astype(np.uint8).tobytes())
        beside.replace(self.path)


def _batches(lengths: np.ndarray, done: np.ndarray) -> Iterable[list[int]]:
    """Yield batches of documents of similar length that are not done, longest first: too long ones fail at once."""
    batch: list[int] = []
    for row in np.argsort(-lengths, kind="stable"):
        if done[row]:
            continue
        if batch and (len(batch) >= _DOCUMENTS or (len(batch) + 1) * lengths[batch[0]] > _TOKENS):
            yield batch
            batch = []
        batch.append(int(row))
    if batch:
        yield batch


def _blocks(file: Path) -> int:
    """Bytes that a file takes of the disk, where the system says so."""
    return int(getattr(file.stat(), "st_blocks", 0)) * 512


def _unfinished(file: Path) -> Path:
    return Path(f"{file}.unfinished")


def _documents(dataset: Dataset) -> dict[str, Dataset]:
    """Return the documents of a data set's rows by the names of what is computed of them, each as `input_ids` and
    `length`."""
    found = {}
    for name, (ids, length) in _SOURCES.items():
        if ids in dataset.column_names:
            new = {ids: "input_ids", length: "length"}
            found[name] = dataset.select_columns([*new]).rename_columns(new)
    return found


def _lengths(dataset: Dataset) -> np.ndarray:
    return np.asarray(dataset["length"][:], dtype=np.int64)
