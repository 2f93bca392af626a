"""Texts without labels: masked words before the labels, the cache of what was learned, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import Trainer

from longspan import evaluate, recipes
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.verbs import unlabelled
from longspan.verbs.train import Interrupted, train

SMALL = ["model.wide=false", "model.dim=16", "model.heads=2", "training.max_steps=1", "training.max_minutes=0"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "longspan_pretrained"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Texts about cats or dogs, one of them empty."""
    words = ["purr meow whisker", "bark wag fetch"]
    rows = [f"word{number % 7} {words[number % 2]} word{number % 5} end{number}" for number in range(60)]
    path = tmp_path / "texts.csv"
    path.write_text("text\n" + "\n".join([*rows, '" "']) + "\n")
    return path


def few(animals: Path, texts: Path, *overrides: str, name: str = "classify") -> Recipe:
    return recipes.load(name, [f"data.path={animals}", f"data.unlabelled={texts}", *SMALL, *overrides])


def test_a_model_starts_from_masked_words_that_are_learned_once(animals, texts, tmp_path, cache, capsys):
    recipe = few(animals, texts)
    result = train(recipe, run=tmp_path / "run", progress=False)
    (first,) = cache.iterdir()
    told = result.details["unlabelled"]
    assert (told["documents"], told["skipped"], told["in_test"], told["test"]) == (60 + 216, {"no text": 1}, 0, False)
    assert told["pretraining"]["loss"] > 0
    assert result.details["start_from"]["run"] == str(first)
    assert "longspan" in result.details["start_from"]["loaded"]
    assert "learning masked words of 276 texts" in capsys.readouterr().err
    # The recipe is as it was, and the run needs the cache no more.
    written = recipes.load(str(tmp_path / "run"))
    assert written.to_toml() == recipe.to_toml()
    assert not written.start_from
    when = (first / "metrics.json").stat().st_mtime_ns
    again = train(recipe, run=tmp_path / "again", progress=False)
    assert "learning masked words" not in capsys.readouterr().err
    assert again.scores == result.scores
    assert [(path / "metrics.json").stat().st_mtime_ns for path in cache.iterdir()] == [when]
    first.rename(tmp_path / "gone")
    assert evaluate(tmp_path / "run", animals, split="train").details["documents"] == 240


def test_an_ngram_part_reads_the_texts_instead(animals, texts, tmp_path, cache):
    details = train(few(animals, texts, "model.wide=true"), run=tmp_path / "run", progress=False).details
    assert (details["unlabelled"]["documents"], details["unlabelled"]["pretraining"]) == (276, None)
    assert not cache.exists()
    assert "It also read 276 texts without labels." in (tmp_path / "run" / "README.md").read_text()


def test_few_labels_more_need_no_new_pretraining(animals, texts, tmp_path, cache):
    many = tmp_path / "many.txt"
    many.write_text(f"{animals.read_text()} {texts.read_text()}\n" * 20)
    rows = animals.read_text().splitlines()
    for number in (40, 50):
        table = tmp_path / f"{number}.csv"
        table.write_text("\n".join(rows[: number + 1]) + "\n")
        train(few(table, many), run=tmp_path / str(number), progress=False)
    assert len(list(cache.iterdir())) == 1


def test_pretraining_goes_on_where_it_was_stopped(animals, texts, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(unlabelled, "SAVE_STEPS", 1)
    monkeypatch.setattr(unlabelled, "EPOCHS", 4)
    recipe = few(animals, texts, "training.max_minutes=20", "training.max_steps=-1", "training.num_train_epochs=1")
    whole = train(recipe, run=tmp_path / "whole", progress=False)
    (first,) = cache.iterdir()
    first.rename(tmp_path / "first")
    steps: list[int] = []
    usual = Trainer.training_step

    def stopped(self: Any, *args: Any, **options: Any) -> torch.Tensor:
        steps.append(self.state.global_step)
        if self.state.global_step == 3 and len(steps) < 5:
            raise Interrupted("as ctrl-C does")
        return usual(self, *args, **options)

    monkeypatch.setattr(Trainer, "training_step", stopped)
    with pytest.raises(Interrupted, match="run the same command again"):
        train(recipe, run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    assert train(recipe, run=tmp_path / "run", progress=False).scores == whole.scores
    assert steps[:5] == [0, 1, 2, 3, 3]
    weights = [path / "model.safetensors" for path in (tmp_path / "first", *cache.iterdir())]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_texts_of_the_test_split_are_counted(animals, tmp_path, cache, capsys):
    recipe = few(animals, animals, "data.test_fraction=0.1", "training.max_steps=1")
    assert train(recipe, run=tmp_path / "run", progress=False).details["unlabelled"]["in_test"] == 24
    assert "24 of 24 texts of the test split are in data.unlabelled as well" in capsys.readouterr().err


def test_the_texts_of_the_test_split_may_be_read_where_that_is_meant(animals, texts, tmp_path, cache, capsys):
    recipe = few(animals, texts, "data.test_fraction=0.1", "data.unlabelled_test=true")
    told = train(recipe, run=tmp_path / "run", progress=False).details["unlabelled"]
    assert (told["documents"], told["in_test"], told["test"]) == (60 + 24 + 192, 24, True)
    assert "as well" not in capsys.readouterr().err
    assert "The 24 texts of the test split are among them." in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.unlabelled=nowhere"], "nowhere"),
        (["data.unlabelled_test=true"], "got none; set data.test, or leave it out"),
        (["data.unlabelled=", "data.unlabelled_test=true"], "expected data.unlabelled where"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(animals, texts, tmp_path, cache, overrides, message):
    with pytest.raises(UserError, match=message):
        train(few(animals, texts, *overrides), run=tmp_path / "run", progress=False)


@pytest.mark.parametrize("text", ["a", "one short text", "a longer text without labels, in ein paar Sprachen 猫 " * 40])
def test_one_text_is_enough(animals, tmp_path, cache, text):
    path = tmp_path / "one.txt"
    path.write_text(text)
    assert train(few(animals, path), run=tmp_path / "run", progress=False).details["unlabelled"]["documents"] > 0


def test_empty_texts_alone_are_refused(animals, tmp_path, cache):
    path = tmp_path / "empty.csv"
    path.write_text('text\n" "\n""\n')
    with pytest.raises(UserError, match="only bad rows"):
        train(few(animals, path), run=tmp_path / "run", progress=False)


def test_words_with_labels_start_from_texts(texts, tmp_path, cache):
    path = tmp_path / "words.jsonl"
    rows = [{"tokens": ["purr", f"word{number % 5}"], "labels": ["B-CAT", "O"]} for number in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    told = train(few(path, texts, name="ner"), run=tmp_path / "run", progress=False).details
    # The words with labels are less than a tenth of the text.
    assert told["unlabelled"]["documents"] == 60
    assert told["start_from"]["loaded"]
