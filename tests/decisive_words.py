"""A run folder whose model looks only for one word, written without training, for tests."""

from collections.abc import Sequence
from pathlib import Path

import torch

from longspan import LongspanForSequenceClassification, recipes
from longspan.data.text.tokenization import build_tokenizer

#: A mean of the embeddings of words, and nothing else.
SETTINGS = ["data.tokens=words", "model.dim=8", "model.depth=0", "model.heads=2", "model.position=none",
            "model.pooling=mean", "model.norm=none"]  # fmt: skip


def write_run(
    folder: Path, labels: Sequence[str], word: str, label: str, vocabulary: str, settings: Sequence[str] = ()
) -> Path:
    """Write a run whose log-odds of `label`, one of two, are 20 times the share of `word`, minus 1; return `folder`."""
    recipe = recipes.load("quickstart", [*SETTINGS, *settings])
    tokenizer = build_tokenizer(recipe.data, [vocabulary])
    config = LongspanForSequenceClassification.configured(
        vocab_size=len(tokenizer), id2label=dict(enumerate(labels)), **recipe.model
    )
    model, number = LongspanForSequenceClassification(config), list(labels).index(label)
    with torch.no_grad():
        model.longspan.embeddings.table.weight.zero_()
        model.longspan.embeddings.table.weight[tokenizer.convert_tokens_to_ids(word), 0] = 1.0
        model.classifier.weight.zero_()
        model.classifier.weight[number, 0] = 20.0
        model.classifier.bias.zero_()
        model.classifier.bias[1 - number] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    return folder
