"""From a published checkpoint to scores and text, at the command line alone."""

import json
from pathlib import Path

import pytest
import torch
from published_transformer_xl import Shape, random_weights

from longspan import cli

WORDS = ["<eos>", "<unk>", "the", "cat", "purrs", *(f"w{number}" for number in range(45))]


@pytest.mark.slow
def test_convert_evaluate_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape, checkpoint, out = Shape(), tmp_path / "published", str(tmp_path / "run")
    checkpoint.mkdir()
    torch.save(random_weights(shape, "transformers"), checkpoint / "pytorch_model.bin")
    (checkpoint / "config.json").write_text(json.dumps(shape.settings), encoding="utf-8")
    (checkpoint / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    assert cli.main(["convert", str(checkpoint), out]) == 0
    shown = capsys.readouterr().out
    for part in (
        "a checkpoint of transformers",
        "2 layers of width 16 with 2 heads",
        "50 words",
        "memory, which starts as zeros",
    ):
        assert part in shown
    assert cli.main(["convert", str(checkpoint), out, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocabulary"] == 50

    (tmp_path / "text.txt").write_text("the cat purrs\nthe dog w3\n" * 10, encoding="utf-8")
    command = ["evaluate", out, "--data", str(tmp_path / "text.txt"), "--json"]
    assert cli.main([*command, "--attention-length", "20"]) == 0
    result = json.loads(capsys.readouterr().out)
    # Three words and a line's end twice, ten times; "dog" is not in the vocabulary.
    assert (result["tokens"], result["unknown"], result["attention_length"]) == (80, 10, 20)

    command = ["generate", out, "--prompt", "the cat", "--max-new-tokens", "40", "--ignore-end", "--seed", "3"]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert set(text.split()) <= set(WORDS)
    # The end of a line is one, and words stand apart.
    assert "<eos>" not in text
    assert len(text.split()) + text.count("\n") >= 40
