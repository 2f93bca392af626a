"""What is scored of a split that is too long to be scored as a whole."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainingArguments

from longspan import cli, evaluate, recipes, train
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.tasks.base.corpora import CUT, excerpt


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=40), st.integers(1, 400_000))
def test_no_more_is_scored_than_asked_for_and_not_much_less(lengths: list[int], most: int) -> None:
    targets = np.array(lengths) + 1
    scored = excerpt(lengths, most)
    assert (scored <= targets).all()
    assert 0 < scored.sum() <= most
    if targets.sum() <= most:
        assert (scored == targets).all()
    # Whatever is cut is not cut to less than this, but for what is left when the maximum is reached.
    cut = scored[(scored < targets) & (scored > 0)]
    assert (cut >= min(CUT, most)).sum() >= len(cut) - 1
    if (scored > 0).all() and (scored < targets).any():
        # Of all documents: as much as there may be of each, but for what cannot be shared out.
        assert most - scored.sum() < len(lengths)


def test_everything_by_default() -> None:
    assert excerpt([3, 0, 100_000], 0).tolist() == [4, 1, 100_001]


def test_the_beginning_of_one_long_document() -> None:
    assert excerpt([5_000_000], 250_000).tolist() == [250_000]
    assert excerpt([5_000_000], 10).tolist() == [10]


def test_short_documents_whole_and_as_much_of_all_longer_ones() -> None:
    assert excerpt([20_000, 900_000, 99, 70_000], 100_101).tolist() == [20_001, 40_000, 100, 40_000]


def test_evenly_spaced_documents_where_there_are_many() -> None:
    scored = excerpt([499] * 10_000, 250_000)
    assert scored.sum() == 250_000
    assert set(scored) == {0, 500}
    assert set(np.diff(np.flatnonzero(scored))) == {20}
    # Long ones are cut, but not to their first lines.
    scored = excerpt([90_000] * 60, 250_000)
    assert sorted(set(scored[:-1])) == [0, CUT]
    assert 15 <= np.count_nonzero(scored) <= 16


RECIPE = """
task = "language_modelling"
[data]
path = "{path}"
tokens = "characters"
validation_fraction = 0.4
test_fraction = 0.2
[model]
dim = 8
depth = 1
heads = 2
mixers = ["{mixer}"]
initializer_range = 0.3
[training]
segment_length = 16
num_train_epochs = 2
per_device_train_batch_size = 4
per_device_eval_batch_size = 3
max_eval_tokens = {most}
"""


def write(folder: Path, most: int, mixer: str = "additive") -> Path:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["a", "cat", "sat", "ön", "mats"], 40)) for _ in range(20)]
    (folder / "stories.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    path = folder / f"{mixer}-{most}.toml"
    path.write_text(RECIPE.format(path=folder / "stories.jsonl", most=most, mixer=mixer))
    return path


# Softmax attention is scored in sliding windows.
@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["additive", "softmax"])
def test_a_training_run_scores_so_many_tokens_and_says_so(
    mixer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("longspan.tasks.base.corpora.CUT", 30)
    run = tmp_path / "run"
    assert cli.main(["train", str(write(tmp_path, 200, mixer)), "--run", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    data = result["data"]
    # Of 8 documents for validation, 6 are cut to 30 tokens; the 4 of the test split are all cut to 50.
    assert (data["validation"]["documents"], data["validation"]["scored"]) == (8, 180)
    assert (data["test"]["documents"], data["test"]["scored"]) == (4, 200)
    assert "scored" not in data["train"]
    card = (run / "README.md").read_text()
    told = f"validation: scored 180 of {data['validation']['tokens']:,} tokens (training.max_eval_tokens); `longspan"
    assert told in card
    # The same tokens in all epochs and, below, when they are scored again, with the same states.
    run_losses = [row["validation_loss"] for row in result["history"] if "validation_loss" in row]
    assert len(run_losses) == 2
    assert min(run_losses) == result["validation"]["loss"]
    for split in ("validation", "test"):
        whole = evaluate(run, split=split)
        assert whole.details["tokens"] == data[split]["tokens"]
        assert whole.scores.numbers()["loss"] != result[split]["loss"]
        assert result[split]["loss"] == pytest.approx(naive(run, split, 200), rel=1e-5)
        # Characters and bytes in proportion to the tokens, which are characters here; some have two bytes.
        bits = result[split]["loss"] / math.log(2)
        assert result[split]["bits_per_character"] == pytest.approx(bits, rel=0.01)
        share = data[split]["characters"] / data[split]["bytes"]
        assert result[split]["bits_per_byte"] == pytest.approx(bits * share, rel=0.05)


@pytest.mark.parametrize("task", ["language_modelling", "masked_words"])
def test_time_budgets_count_what_is_scored(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan.tasks.base.corpora.CUT", 30)
    path = write(tmp_path, 200)
    path.write_text(path.read_text().replace("language_modelling", task))
    recipe = recipes.load(str(path))
    prepared = recipe.task.prepare(recipe)
    model = recipe.task.build_model(recipe, prepared)
    arguments = TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[])
    trainer = recipe.task.make_trainer(recipe, model, arguments, prepared)
    sizes = trainer.scoring_sizes(prepared.splits["validation"])
    # Of 8 documents, 6 are cut to 30 tokens, and the others are not read.
    assert sorted(sizes.tolist()) == [0, 0, *[30] * 6]


def naive(run: Path, split: str, most: int) -> float:
    """Score whole documents, and take the mean over what was chosen of them."""
    from longspan.data.text.long_documents import token_arrays, tokenize_documents
    from longspan.tasks.language_modelling.likelihood import token_losses
    from longspan.verbs.evaluate import load_split
    from longspan.verbs.runs import load_run

    loaded = load_run(run)
    examples, *_ = load_split(loaded, None, split)
    documents = token_arrays(
        tokenize_documents(examples, tokenizer_of(loaded.processor), loaded.recipe.data, "Tokenising")
    )
    context = "sliding" if loaded.recipe.model["mixers"] == ["softmax"] else "carried"
    losses = token_losses(loaded.model, documents, rows=1, segment_length=16, context=context)
    scored = excerpt([len(document) for document in documents], most)
    return float(np.concatenate([row[:count] for row, count in zip(losses, scored, strict=True)]).mean())


@pytest.mark.slow
def test_what_is_not_cut_says_nothing(tmp_path: Path) -> None:
    recipe = recipes.load(str(write(tmp_path, 0)), ["training.max_steps=1"])
    whole = train(recipe, run=tmp_path / "whole", progress=False)
    ample = train(
        recipes.load(str(write(tmp_path, 5000)), ["training.max_steps=1"]), run=tmp_path / "a", progress=False
    )
    assert whole.scores == ample.scores
    for result in (whole, ample):
        assert "scored" not in json.dumps(result.data)
        assert "max_eval_tokens" not in (Path(result.folder) / "README.md").read_text()
    assert evaluate(whole.folder).scores.numbers() == pytest.approx(whole.scores["test"].numbers(), rel=1e-6)


def test_fewer_than_none() -> None:
    with pytest.raises(UserError, match="max_eval_tokens must be at least 0, got -1"):
        recipes.load("shakespeare", ["training.max_eval_tokens=-1"])
