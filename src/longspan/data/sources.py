"""Labelled documents as callers load them that have not moved to `longspan.data.loading` yet."""

from longspan.data.columns import Label, Text
from longspan.data.config import DataConfig
from longspan.data.loading import Splits, load

__all__ = ["Splits", "load_splits"]


def load_splits(config: DataConfig, *, training: bool = True) -> Splits:
    """Read documents and labels and split them class by class."""
    columns = [Text("text", "text_column"), Label("label", "label_column")]
    return load(config, columns, training=training, stratify="label")
