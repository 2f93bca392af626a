"""Scores of a document classifier, its confusion and its calibration; and what predicting shares with it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longspan.data.batches import padding_fraction
from longspan.data.sources import load_splits
from longspan.data.tokens import tokenize, truncation_table
from longspan.errors import UserError
from longspan.evaluation.splits import load_split
from longspan.metrics import metrics
from longspan.report import pictures
from longspan.runs import Run
from longspan.training.lengths import outputs, scoring_batches


def evaluate(run: Run, data: str | None, split: str, folder: Path) -> dict[str, Any]:
    """Score a run's classifier and draw `confusion.png` and `calibration.png` into `folder`.

    Args:
        run: The run.
        data: A file or folder in any form a recipe's `data.path` takes; all of it is scored unless it has splits of
            its own. None is the run's own data.
        split: Which split to score.
        folder: Where the pictures go.

    Returns:
        The scores of `longspan.metrics.metrics`, and `split`, `data`, `documents`, `labels`, `truncation` (how
        many documents were cut and by how much), `padding_fraction` (of the computed positions) and `skipped` (rows
        left out, by reason).

    Raises:
        UserError: No such split, or a label the model was not trained on.
    """
    load = partial(load_splits, training=False)
    documents, skipped, split, source = load_split(run, data, split, load)
    unknown = sorted(set(documents.unique("label")) - set(run.labels))
    if unknown:
        known = ", ".join(run.labels[:20]) + (", ..." if len(run.labels) > 20 else "")
        raise UserError(
            f"the {split} data hold the label {unknown[0]!r}, which the model was not trained on (it knows {known}): "
            "remove those rows or train again."
        )
    numbers = {name: number for number, name in enumerate(run.labels)}
    tokens = tokenize(documents, run.tokenizer, run.recipe.data, numbers, f"Tokenising {split}")
    lengths = tokens["length"][:]
    batches = make_batches(run, lengths)
    examples = tokens.select_columns("input_ids").with_format("numpy")
    output = outputs(run.model, examples, batches, pad_id=run.tokenizer.pad_token_id, progress=True)
    scores = metrics(output, torch.tensor(tokens["labels"][:]), run.labels)
    pictures.confusion(scores["confusion"], run.labels, folder / "confusion.png")
    pictures.calibration(scores["reliability"], scores["calibration_error"], folder / "calibration.png")
    return {
        "split": split,
        "data": source,
        "documents": len(tokens),
        "labels": run.labels,
        **scores,
        "truncation": truncation_table(tokens),
        "padding_fraction": padding_fraction(batches, lengths),
        "skipped": skipped,
    }


def make_batches(run: Run, lengths: Sequence[int]) -> list[list[int]]:
    """Group documents of similar length into batches as large as in the run's evaluations, longest first."""
    training = run.recipe.training
    return scoring_batches(lengths, training["per_device_eval_batch_size"], training["batch_tokens"])
