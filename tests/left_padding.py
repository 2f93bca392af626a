"""Batches with their padding on the left: `moved_left`."""

from collections.abc import Mapping
from typing import Any

import torch


def moved_left(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch that `pad` made with the padding of each row on the left; its edges go along."""
    gaps = (batch["attention_mask"] == 0).sum(1)
    found = {
        name: torch.stack([row.roll(gap) for row, gap in zip(stream, gaps.tolist(), strict=True)])
        for name, stream in batch.items()
        if name != "edges"
    }
    if "edges" in batch:
        row, *ends = batch["edges"]
        found["edges"] = torch.stack([row, *(end + gaps[row] for end in ends)])
    return found
