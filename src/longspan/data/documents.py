"""Documents without labels as callers load them that have not moved to `longspan.data.loading` yet."""

from longspan.data.columns import Text
from longspan.data.config import DataConfig
from longspan.data.loading import Splits, load


def load_documents(config: DataConfig, *, training: bool = True) -> Splits:
    """Read documents and split them."""
    return load(config, [Text("text", "text_column")], training=training)
