"""Checkpoints that survive kills, full disks and damage: which are complete, which one to resume from, means of them.

The last file written to a checkpoint is its seal: the hashes of all other files. If it is missing, the save was cut
short, by a kill for example, and the checkpoint is useless; a file that differs from its hash is damaged. So no file
needs to be opened, let alone unpickled, to know whether training can resume from a checkpoint.
"""

import json
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.trainer_utils import rotate_checkpoints

from longspan.data.fingerprints import file_digest
from longspan.errors import UserError
from longspan.results.outputs import write_json
from longspan.training import processes

SEAL = "seal.json"
STATE = "trainer_state.json"
"""File of the Trainer's own state, in each checkpoint."""


@dataclass(frozen=True)
class Averaged:
    """Result of averaging the last checkpoints.

    Attributes:
        steps: Steps after which the checkpoints were saved, in order.
        metric: The score by which models are chosen; empty where there are too few checkpoints for a mean.
        value: That of the mean on the validation split; None without validation.
        best: That of the best checkpoint.
        kept: Whether the mean is the model that was kept.
    """

    steps: list[int]
    metric: str
    value: float | None
    best: float | None
    kept: bool

    def announcement(self) -> str:
        """One sentence for users."""
        if len(self.steps) < 2:
            found = "1 checkpoint" if self.steps else "no checkpoint"
            return f"training.average_last found {found}, of which there is no mean; kept the model as it was."
        mean = f"the mean of the last {len(self.steps)} checkpoints"
        if self.value is None or self.best is None:
            return f"kept {mean}, without validation."
        chosen = "kept the mean" if self.kept else "kept the checkpoint"
        return f"{mean} has a validation {self.metric} of {self.value:.4g}, the best one {self.best:.4g}; {chosen}."


def load_mean(model: nn.Module, folders: Sequence[Path]) -> None:
    """Give a model the mean of the parameters in the folders of checkpoints; its buffers, such as fitted counts, stay.

    Sums are in float64, so that their order and number do not matter.

    Raises:
        UserError: A checkpoint lacks a parameter, as those of adapters do.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    sums = {name: torch.zeros_like(each, dtype=torch.float64, device="cpu") for name, each in parameters.items()}
    for checkpoint in folders:
        missing = set(sums)
        for path in sorted(checkpoint.glob("model*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in missing & set(file.keys()):
                    sums[name] += file.get_tensor(name)
                missing -= set(file.keys())
        if missing:
            raise UserError(
                f"expected all weights of the model in {checkpoint} for training.average_last, got none named "
                f"{min(missing)}; leave training.average_last out."
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(sums[name] / len(folders))


def rotate(folder: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints beyond a limit, but for the best one."""
    # transformers would remark on checkpoints of one second, which it sorts by their steps.
    logger = logging.getLogger("transformers.trainer_utils")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        rotate_checkpoints(str(folder), save_total_limit=limit, best_model_checkpoint=best, use_mtime=True)
    finally:
        logger.setLevel(before)


def seal(checkpoint: Path, rows: int = 0) -> None:
    """Write the hashes of a checkpoint's files, once all processes have written theirs.

    Args:
        checkpoint: The folder.
        rows: Rows in a batch of all processes, by which others can take the same steps; 0 if unknown.
    """
    files = {
        path.relative_to(checkpoint).as_posix(): file_digest(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    write_json(checkpoint / SEAL, {"processes": processes.count(), "rows": rows, "sha256": files})


def complete(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder` whose saves were not cut short, the newest first."""
    sealed = {step(path): path for path in folder.glob("checkpoint-*") if step(path) >= 0 and _is_sealed(path)}
    return [sealed[number] for number in sorted(sealed, reverse=True)]


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder` whose save was not cut short."""
    return next(iter(complete(folder)), None)


def find(folder: Path, step: int | str) -> Path:
    """Return an undamaged checkpoint in `folder`.

    Args:
        folder: Where the checkpoints of a run are.
        step: The step after which it was saved, or "last" for the newest whose save was not cut short.

    Raises:
        UserError: Missing or damaged checkpoint.
    """
    sealed = {checkpoint.name.removeprefix("checkpoint-"): checkpoint for checkpoint in complete(folder)}
    if not sealed:
        raise UserError(f"expected a checkpoint in {folder}, got none; leave out --checkpoint.")
    wanted = next(iter(sealed)) if step == "last" else str(step)
    if wanted not in sealed:
        steps = " and ".join(sorted(sealed, key=int))
        raise UserError(f"expected a checkpoint in {folder}, got {step!r}; choose from {steps}, or last.")
    if damage := _damage(sealed[wanted]):
        others = [name for name in sealed if name != wanted]
        raise UserError(
            f"{sealed[wanted]} is damaged ({damage}); "
            + (f"choose from {' and '.join(sorted(others, key=int))}." if others else "there is no other.")
        )
    return sealed[wanted]


def step(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was saved; -1 for another folder."""
    number = checkpoint.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() else -1


def planned_steps(checkpoint: Path) -> int:
    """Number of steps that were planned in all when a checkpoint was saved."""
    return int(_read_json(checkpoint / "trainer_state.json")["max_steps"])


def to_resume_from(folder: Path, *, any_processes: bool = False, rows: int = 0) -> Path | None:
    """Return the newest undamaged checkpoint in `folder`, the same in all processes; None if none is complete.

    The first process reports damaged and incomplete ones on standard error, and removes them, as they would be in the
    way of later checkpoints.

    Args:
        folder: Where the checkpoints are.
        any_processes: Whether it may have been saved by another number of processes, as for what only reads its model.
        rows: Rows in a batch of all processes. With as many as before, another number of processes takes the same
            steps. 0 where batches have no fixed number of rows: then only as many processes as before do.

    Raises:
        UserError: All checkpoints are damaged, or the one with the best model so far is, or these processes would take
            other steps than those that saved the checkpoint.
    """
    return processes.on_first(lambda: _choose(folder, any_processes, rows))


def _choose(folder: Path, any_processes: bool, rows: int) -> Path | None:
    sealed = complete(folder)
    damages: dict[Path, str] = {}
    chosen = None
    for checkpoint in sealed:
        damage = _damage(checkpoint)
        if not damage:
            chosen = checkpoint
            break
        damages[checkpoint] = f"{checkpoint.name} is damaged ({damage})"
    if sealed and chosen is None:
        raise UserError(
            f"expected a checkpoint in {folder} to resume from, got none undamaged, as "
            f"{' and '.join(damages.values())}; start again with --overwrite."
        )
    if chosen is not None:
        _check(chosen, any_processes, rows)
        if damages:
            print(f"longspan: {' and '.join(damages.values())}; resuming from {chosen.name}.", file=sys.stderr)
    unsealed = sorted(set(folder.glob("checkpoint-*")) - set(sealed), key=lambda path: (len(path.name), path.name))
    if unsealed and chosen is None:
        names = " and ".join(path.name for path in unsealed)
        print(
            f"longspan: {names} in {folder} cannot be resumed from (no {SEAL}: the save was cut short, or an older "
            "version wrote it); starting from scratch.",
            file=sys.stderr,
        )
    for path in [*damages, *unsealed]:
        shutil.rmtree(path, ignore_errors=True)
    return chosen


def _check(checkpoint: Path, any_processes: bool, rows: int) -> None:
    """Raise UserError unless training can resume from `checkpoint` and end as if never interrupted."""
    sealed, count = _read_json(checkpoint / SEAL), processes.count()
    saved_by, before = sealed.get("processes"), sealed.get("rows")
    if before and rows and not any_processes:
        if before != rows:
            each = f"set training.per_device_train_batch_size={before // count}"
            raise UserError(
                f"expected {before} rows in a batch of all processes, as when {checkpoint} was saved, got {rows} in "
                f"{count}; {f'start a number of processes that divides {before}' if before % count else each}."
            )
    elif not any_processes and saved_by != count:
        raise UserError(
            f"expected {saved_by} processes, as many as saved {checkpoint}, got {count}; resume with as "
            "many as before, or start again with --overwrite."
        )
    best = _read_json(checkpoint / STATE).get("best_model_checkpoint")
    if best is None or Path(best).name == checkpoint.name:
        return
    holds_best = checkpoint.parent / Path(best).name
    damage = _damage(holds_best) if _is_sealed(holds_best) else "it is not complete"
    if damage:
        raise UserError(
            f"expected the best model so far in {holds_best}, got a damaged checkpoint ({damage}); start again with "
            "--overwrite."
        )


def _damage(checkpoint: Path) -> str:
    """Damage of a complete checkpoint; empty if there is none."""
    written = _read_json(checkpoint / SEAL).get("sha256")
    if not isinstance(written, dict) or STATE not in written:
        return f"{SEAL} cannot be read"
    # Names that lead elsewhere could lead to a pipe, and reading it would wait forever.
    found = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()}
    for name, digest in written.items():
        if name not in found:
            return f"{name} is missing"
        try:
            if file_digest(checkpoint / name) != digest:
                return f"{name} has changed"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return ""


def _is_sealed(checkpoint: Path) -> bool:
    return (checkpoint / SEAL).is_file()


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file is missing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
