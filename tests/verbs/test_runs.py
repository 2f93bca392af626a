"""Loading of run folders: weights that fit their configuration are loaded, whatever their sizes."""

import random
import string
from pathlib import Path

import pytest
import target_tasks

from longspan import recipes, train
from longspan.verbs.runs import load_run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked-spans", "summarisation"])
def test_a_shared_vocabulary_may_outweigh_the_rest_of_a_model(name: str, tmp_path: Path) -> None:
    """The tables of encoder, decoder and output are one tensor, which the file of weights has once."""
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=6)) for _ in range(400)]
    texts = [" ".join(draw.choices(words, k=8)) for _ in range(200)]
    rows = ["text", *texts] if name == "masked-spans" else ["document,summary", *(f"{one},{one}" for one in texts)]
    (tmp_path / "words.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    keys = ["data.tokens=bpe", "data.vocab_size=1200", "data.max_length=32", "model.dim=16", "model.heads=2"]
    keys += ["model.feed_forward_dim=16", "model.depth=1", "training.max_steps=1", *target_tasks.evaluated(1)]
    train(recipes.load(name, [f"data.path={tmp_path / 'words.csv'}", *keys]), run=tmp_path / "run", progress=False)
    model = load_run(tmp_path / "run").model
    table = model.get_input_embeddings().weight
    assert 2 * table.numel() > model.num_parameters()
    assert model.get_output_embeddings().weight is table
