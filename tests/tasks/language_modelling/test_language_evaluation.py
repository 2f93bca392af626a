"""Scoring a run folder of a language model."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_runs import make_run
from PIL import Image

from longspan import cli, evaluate, recipes, train
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.results import Evaluation
from longspan.tasks.language_modelling.scores import LanguageScores
from longspan.verbs.runs import load_run

TEXT = "".join(f"line {number} of the öld dog's fox.\n" for number in range(12))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", TEXT)


def scored(*arguments: Any, **options: Any) -> dict[str, Any]:
    return evaluate(*arguments, **options).to_dict()


@torch.no_grad()
def nats(run_dir: Path, text: str) -> np.ndarray:
    """The losses of one document, its end included, from one forward pass."""
    run = load_run(run_dir)
    end = run.model.config.eos_token_id
    ids = torch.tensor([end, *tokenizer_of(run.processor).encode(text, add_special_tokens=False), end])
    logits = run.model(ids[None, :-1]).logits[0]
    found: np.ndarray = -logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].double().numpy()
    return found


def test_scores_its_own_split(run_dir: Path) -> None:
    """The end of the only document: 0.3 of its bytes."""
    result = scored(run_dir)
    raw = TEXT.encode()
    text = raw[len(raw) - math.ceil(0.3 * len(raw)) :].decode()
    losses = nats(run_dir, text)
    assert (result["task"], result["split"], result["documents"]) == ("language_modelling", "test", 1)
    assert (result["tokens"], result["characters"], result["bytes"]) == (len(text), len(text), len(text.encode()))
    # The end of the document is predicted too. float32 products.
    assert result["loss"] == pytest.approx(losses.sum() / (len(text) + 1), rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))
    assert result["bits_per_character"] == pytest.approx(losses.sum() / math.log(2) / len(text), rel=1e-5)
    assert result["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / len(text.encode()), rel=1e-5)
    assert (result["context"], result["segment_length"], result["attention_length"]) == ("carried", 8, None)
    assert result["data"] == str(run_dir.parent / "text.txt")
    assert json.loads((run_dir / "evaluation/metrics.json").read_text()) == result
    with Image.open(run_dir / "evaluation/loss_by_position.png") as picture:
        assert picture.width > picture.height
    for row in result["by_position"]:
        assert row["loss"] == pytest.approx(losses[row["from"] - 1 : row["to"]].mean(), rel=1e-5)
    assert result["by_position"][-1]["to"] == len(text) + 1


def test_results_are_typed(run_dir: Path) -> None:
    result = evaluate(run_dir)
    assert isinstance(result, Evaluation)
    assert isinstance(result.scores, LanguageScores)
    assert result.to_dict()["loss"] == result.scores.loss
    assert (result.split, result.folder) == ("test", str(run_dir / "evaluation"))
    # A run that is loaded already gives the same.
    assert evaluate(load_run(run_dir)).to_dict() == result.to_dict()


def test_scores_any_text_file(run_dir: Path, tmp_path: Path) -> None:
    """Whole, although the recipe takes splits of its own data; with what the model does not know counted."""
    text = "the fox & the dog §"
    (tmp_path / "other.txt").write_text(text, encoding="utf-8")
    result = scored(run_dir, str(tmp_path / "other.txt"))
    assert (result["split"], result["documents"], result["tokens"], result["unknown"]) == ("all", 1, len(text), 2)
    assert result["loss"] == pytest.approx(nats(run_dir, text).mean(), rel=1e-5)


def test_a_sliding_context(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("the old fox", encoding="utf-8")
    result = scored(run_dir, str(tmp_path / "other.txt"), context="sliding", window=4, stride=1)
    run, losses = load_run(run_dir), []
    end = run.model.config.eos_token_id
    ids = [end, *tokenizer_of(run.processor).encode("the old fox", add_special_tokens=False), end]
    for at in range(1, len(ids)):
        with torch.no_grad():
            logits = run.model(torch.tensor([ids[max(0, at - 4) : at]])).logits[0, -1]
        losses.append(-logits.log_softmax(-1)[ids[at]].item())
    assert result["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert (result["window"], result["stride"]) == (4, 1)
    assert "segment_length" not in result


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "carry_states"), [("softmax", True), ("additive", False)])
def test_models_that_carried_no_states_are_scored_in_windows(mixer: str, carry_states: bool, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", TEXT, mixer, carry_states=carry_states)
    result = scored(run_dir)
    assert (result["context"], result["window"], result["stride"]) == ("sliding", 8, 4)
    carried = scored(run_dir, context="carried")
    assert carried["context"] == "carried"
    assert carried["loss"] == pytest.approx(nats(run_dir, TEXT.encode()[-carried["bytes"] :].decode()).mean(), rel=1e-5)


@pytest.mark.slow
def test_an_attention_length(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", TEXT, "relative", mixer_options={"relative": {"memory": 8}})
    usual, longer = scored(run_dir), scored(run_dir, attention_length=200)
    assert (usual["attention_length"], longer["attention_length"]) == (8, 200)
    assert abs(usual["loss"] - longer["loss"]) > 1e-4
    assert longer["loss"] == pytest.approx(nats(run_dir, TEXT.encode()[-longer["bytes"] :].decode()).mean(), rel=1e-5)
    assert scored(run_dir, segment_length=5)["segment_length"] == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "slidng"}, r"no context 'slidng'; did you mean 'sliding'\?"),
        ({"window": 4}, "expected a sliding context with window and stride, got .* use --context sliding"),
        ({"context": "sliding", "window": 2, "stride": 3}, "a stride of at most the window, 2, got 3; make it smaller"),
        ({"context": "sliding", "attention_length": 3}, "expected carried states with .* got the context 'sliding'"),
        ({"context": "sliding", "segment_length": 3}, "expected carried states with .* got the context 'sliding'"),
        ({"attention_length": 3}, "mixers that have a memory, .* got one without"),
        ({"segment_length": -1}, "segment_length must be at least 1"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"context": "sliding", "window": "4"}, r"^window expected an integer, got '4'; correct it\.$"),
        ({"context": 4}, "context expected one of .*sliding.*, got 4"),
        ({"context": "sliding", "stride": 0}, "stride must be at least 1, got 0"),
        ({"context": "sliding", "window": -3}, "window must be at least 1, got -3"),
        ({"attention_length": -1}, "attention_length must be at least 0, got -1"),
        ({"split": "tset"}, "expected a split 'tset' in .*, got only train, validation, test"),
        ({"data": "nowhere.txt"}, "there is no file or folder 'nowhere.txt'"),
    ],
)
def test_what_cannot_be(run_dir: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(run_dir, **options)


def test_positions_that_end(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", TEXT, position="learned", max_positions=12)
    with pytest.raises(
        UserError, match=r"at most 12 tokens .*, got 1\d\d in a document with its end; score it in smaller windows, "
    ):
        evaluate(run_dir)
    with pytest.raises(UserError, match=r"got 13 in a window; .* with --context sliding --window 12"):
        evaluate(run_dir, context="sliding", window=13)
    assert scored(run_dir, context="sliding", window=12)["window"] == 12


def test_options_of_another_task(run_dir: Path) -> None:
    with pytest.raises(
        UserError, match=r"'language_modelling' of '.*run' has no option 'labels'; .*attention_length, context, "
    ):
        evaluate(run_dir, labels=3)
    with pytest.raises(UserError, match=r"has no option 'strides'; did you mean 'stride'\?"):
        evaluate(run_dir, strides=3)


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(tmp_path / "run", TEXT, "relative")
    assert cli.main(["evaluate", str(run_dir), "--attention-length", "16", "--segment-length", "4"]) == 0
    shown = capsys.readouterr()
    for part in ("bits per byte", "perplexity", "Documents were read 4 tokens at a time with carried states, with 16",
                 "32 to 63", "have no bytes and no characters"):  # fmt: skip
        assert part in shown.out
    assert "Scoring" in shown.err
    assert cli.main(["evaluate", str(run_dir), "--context", "sliding", "--window", "6", "--stride", "2"]) == 0
    assert "predicted from at most 6 before it, in windows 2 apart" in capsys.readouterr().out
    assert cli.main(["evaluate", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "language_modelling"


@pytest.mark.slow
def test_the_loss_of_what_is_trained_is_that_of_the_network_alone(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the cat. " * 40, encoding="utf-8")
    keys = [f"data.path={tmp_path / 'text.txt'}", "data.tokens=characters", "model.dim=16", "model.heads=2"]
    keys += ["training.max_minutes=0", "training.max_steps=4", "training.segment_length=16"]
    result = train(recipes.load("model-text", keys), run=tmp_path / "run", progress=False)
    row = next(row for row in reversed(result.history) if "validation_loss" in row)
    assert row["validation_loss_as_trained"] != row["validation_loss"]
    run = load_run(tmp_path / "run")
    evaluation = evaluate(run, split="validation")
    assert set(evaluation.details["without"]) == {"network", "counts", "cache"}
    assert "without" in run.recipe.task.evaluation_report(evaluation)
    run.model.wide = None
    alone = evaluate(run, split="validation").scores.loss
    assert "without" not in evaluate(run, split="validation").details
    # Float32 sums, in segments of the same length.
    assert row["validation_loss_as_trained"] == pytest.approx(alone, rel=1e-5)
