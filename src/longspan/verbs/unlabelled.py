"""Texts without labels, from which a model learns masked words before it learns a task: `pretrained`."""

import contextlib
import dataclasses
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, concatenate_datasets, config

from longspan import recipes
from longspan.data.columns.kinds import Text
from longspan.data.config import UnlabelledData
from longspan.data.processor import json_object
from longspan.data.sources.duplicates import documents
from longspan.data.sources.loading import load
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.recipes.starting import shape_of
from longspan.tasks.base.corpora import starting_from, unlabelled_texts
from longspan.tasks.base.documents import DocumentTask
from longspan.tasks.base.task import Recipe
from longspan.training import processes
from longspan.verbs.run_folders import RunFolder

#: Share of the texts from which those with labels are learned from, too: a few more labels cost no new pretraining.
LABELLED_SHARE = 0.1
#: Epochs of masked words within a time budget, which ends them earlier where there is much text.
EPOCHS = 10
#: Steps from one checkpoint to the next.
SAVE_STEPS = 100
#: Characters of a token, and rows that a text of few tokens is read in at least.
_CHARACTERS, _ROWS = 5, 16


@dataclasses.dataclass(frozen=True)
class Unlabelled:
    """Texts without labels that a model learned from.

    Attributes:
        documents: Number of texts.
        skipped: Number of those left out, by reason.
        in_test: Number of rows of the test split whose text is among them.
        test: Whether `data.unlabelled_test` says so.
        pretraining: Scores of the masked words on a tenth of the texts, if they were learned.
        minutes: Minutes that it took, when it was not in the cache.
    """

    documents: int
    skipped: dict[str, int]
    in_test: int
    test: bool
    pretraining: dict[str, Any] | None = None
    minutes: float = 0.0


def pretrained(recipe: Recipe, train: Callable[[Recipe, RunFolder], Any]) -> tuple[Recipe, Unlabelled | None]:
    """Recipe that starts from masked words of its texts without labels; as it is, and None, where it has none.

    They are trained once for the same texts and settings, in the cache of data sets, with half of the time budget. An
    interrupted pretraining goes on. A recipe of documents with an n-gram part, which learns more from the texts in
    seconds, stays as it is.

    Args:
        recipe: The recipe.
        train: Trains a recipe in a folder.

    Raises:
        UserError: There are no such texts, or the model cannot learn from them.
    """
    data = recipe.data
    if not isinstance(data, UnlabelledData) or not data.unlabelled:
        return recipe, None
    if recipe.model.get("encoder"):
        raise UserError(
            f"expected data.unlabelled or model.encoder, which is pretrained already, got both ({data.unlabelled!r} "
            f"and {recipe.model['encoder']!r}); leave one of them out."
        )
    texts, facts = processes.in_turn(lambda: _texts(recipe))
    if recipe.model.get("wide") and isinstance(recipe.task, DocumentTask):
        return recipe, Unlabelled(len(texts), *facts, data.unlabelled_test)
    options, base = recipe.options, recipes.load("masked-words")
    characters = sum(map(len, texts["text"][:]))
    rows = max(_ROWS, characters // _CHARACTERS // base.options.segment_length)
    training = {
        "seed": recipe.training["seed"],
        "per_device_train_batch_size": min(base.training["per_device_train_batch_size"], max(1, rows // _ROWS)),
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": SAVE_STEPS,
        "save_total_limit": 1,
        **({"num_train_epochs": EPOCHS} if options.max_minutes else {}),
    }
    shape = {key: value for key, value in recipe.model.items() if key in shape_of(base.task)}
    length = max(1, min(base.options.segment_length, characters // _CHARACTERS // _ROWS))
    first = dataclasses.replace(
        base,
        data=dataclasses.replace(unlabelled_texts(data), path="", text_column="text", validation_fraction=0.1),
        model=shape | {"dropout": 0.0},
        start_from=recipe.start_from,
        training=base.training | training,
        options=dataclasses.replace(base.options, max_minutes=options.max_minutes / 2, segment_length=length),
    )
    first = processes.in_turn(lambda: first.reading(texts))
    name = hashlib.sha256(first.to_toml().encode()).hexdigest()[:32]
    folder = Path(config.HF_DATASETS_CACHE, "longspan_pretrained", name)
    if not (folder / "metrics.json").exists():
        if processes.rank() == 0:
            note(f"learning masked words of {len(texts):,} texts without labels in {str(folder)!r}, a cache")
        train(first, RunFolder(folder, "resume" if (folder / "recipe.toml").exists() else "new"))
    found = json_object(folder / "metrics.json")
    minutes = dataclasses.replace(options, max_minutes=options.max_minutes / 2)
    ready = dataclasses.replace(starting_from(recipe, str(folder)), options=minutes)
    return ready, Unlabelled(len(texts), *facts, data.unlabelled_test, found["validation"], found["seconds"] / 60)


def _texts(recipe: Recipe) -> tuple[Dataset, tuple[dict[str, int], int]]:
    """Texts to learn from, how many were left out, by reason, and how many rows of the test split are among them."""
    data, own = recipe.data, unlabelled_texts(recipe.data)
    column = Text("text", "text_column")
    found = load(own, [column])
    texts = concatenate_datasets([rows.select_columns("text") for rows in found.splits.values()])
    # What is said of them is said when they are prepared.
    with contextlib.redirect_stderr(io.StringIO()):
        labelled = load(data, recipe.task.columns(data), stratify=recipe.task.stratify).splits
    splits = {name: _joined(rows, column) for name, rows in labelled.items()}
    test = splits.get("test")
    shared = 0
    if test is not None:
        numbers = documents({"train": texts, "test": test}, [column])
        shared = int(np.isin(numbers["test"], numbers["train"]).sum())
        if data.unlabelled_test:
            texts, shared = concatenate_datasets([texts, test]), len(test)
        elif shared:
            note(
                f"{shared:,} of {len(test):,} texts of the test split are in data.unlabelled as well, so the scores "
                "are of texts that were read without their labels; set data.unlabelled_test=true where that is meant"
            )
    elif data.unlabelled_test:
        raise UserError(
            "expected a test split where data.unlabelled_test=true, got none; set data.test, or leave it out."
        )
    size = [sum(map(len, rows["text"][:])) for rows in (splits["train"], texts)]
    if size[0] >= LABELLED_SHARE * size[1]:
        texts = concatenate_datasets([texts, splits["train"]])
    return texts, (found.skipped, shared)


def _joined(rows: Dataset, column: Text) -> Dataset:
    """Texts of labelled documents, those of words joined by spaces."""
    name = next(name for name in ("text", "tokens") if name in rows.column_names)
    cells = rows[name][:]
    texts = [cell if isinstance(cell, str) else " ".join(cell) for cell in cells]
    return Dataset.from_dict({"text": texts}, Features({"text": column.feature}))
