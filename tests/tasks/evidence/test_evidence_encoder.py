"""Evidence in documents that a pretrained encoder reads."""

from pathlib import Path

import pytest
from encoders import make_encoder
from talks import write_talks
from transformers import BertConfig

from longspan import evaluate, predict, recipes, train
from longspan.data.sources.formats.rows import Row

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

BERT = BertConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
)


@pytest.mark.slow
@pytest.mark.parametrize("question", ["front", "context"])
def test_a_pretrained_encoder_reads_documents_and_questions(question: str, tmp_path: Path) -> None:
    make_encoder(tmp_path / "bert", BERT)
    named = [f"data.path={write_talks(tmp_path / 'talks.jsonl', 12)}", f"model.encoder={tmp_path / 'bert'}"]
    named += ["data.validation_fraction=0.25", "model.dim=16", "model.heads=2", f"model.question={question}"]
    named += ["model.cross_mixers=" + ("[]" if question == "front" else "linear"), "training.num_train_epochs=1"]
    result = train(recipes.load("evidence", named), run=tmp_path / "run", progress=False)
    scores = evaluate(tmp_path / "run", split="validation").scores.to_dict()
    kept = result.scores["validation"].to_dict()
    assert scores["average_precision"] == pytest.approx(kept["average_precision"])
    (answer,) = predict(tmp_path / "run", [Row({"parts": ["good films", "a fox"], "questions": ["films"]}, "here")])
    assert len(answer.to_dict()["questions"]) == 1
