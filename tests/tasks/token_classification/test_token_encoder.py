"""Labels of words in documents that a pretrained encoder reads."""

from pathlib import Path

import numpy as np
import pytest
from encoders import WORDS, forbid_reading, make_encoder
from transformers import BertConfig, pipeline

from longspan import evaluate, recipes, train

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")


@pytest.mark.slow
def test_a_pretrained_encoder_reads_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    make_encoder(tmp_path / "bert", BertConfig(vocab_size=32, max_position_embeddings=16, **size))
    random = np.random.default_rng(0)
    for split, number in (("train", 20), ("dev", 6)):
        documents = [random.choice(WORDS, size=30).tolist() for _ in range(number)]
        lines = [[f"{word}\t{'ABC'[len(word) % 3]}" for word in words] for words in documents]
        (tmp_path / "data").mkdir(exist_ok=True)
        text = "\n\n".join("\n".join(["# newdoc", *rows]) for rows in lines)
        (tmp_path / "data" / f"{split}.conll").write_text(text + "\n")
    named = [f"data.path={tmp_path / 'data'}", f"model.encoder={tmp_path / 'bert'}", "model.dim=16", "model.heads=2"]
    named += [
        "model.feed_forward_dim=16",
        "model.dropout=0.0",
        "model.token_dropout=0.0",
        "training.num_train_epochs=3",
    ]
    named += ["training.per_device_train_batch_size=2", "training.learning_rate=0.02", "model.short_convolution=0"]
    named += ["training.num_train_epochs=3"]
    made = recipes.load("pos", named)
    result = train(made, run=tmp_path / "run", progress=False)
    scores = evaluate(tmp_path / "run", split="validation").scores.to_dict()
    assert scores["accuracy"] == pytest.approx(result.scores["validation"].to_dict()["accuracy"], abs=0.01)
    # Always the most frequent label would be 0.42.
    assert scores["accuracy"] > 0.55
    (first, *_) = pipeline("token-classification", str(tmp_path / "run"))("the quick fox")
    assert first["word"] == "the"
    forbid_reading(monkeypatch)
    train(made, run=tmp_path / "again", progress=False)
