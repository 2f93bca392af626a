"""What is given in place of a recipe is answered with what was meant."""

import pytest

from longspan import cli, recipes, tasks
from longspan.errors import UserError


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """A folder with all that people name where a recipe should stand."""
    monkeypatch.chdir(tmp_path)
    for folder in ("letters/good", "letters/bad", "novels", "runs/mine"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "runs/mine/recipe.toml").write_text("[data]\npath = 'table.csv'\n")
    (tmp_path / "novels/one.txt").write_text("Once upon a time.")
    for name in ("table.csv", "table.jsonl.gz", "novel.txt", "novel.md", "novel"):
        (tmp_path / name).write_text("It was a dark and stormy night.")
    (tmp_path / "table.parquet").write_bytes(b"PAR1\xff")
    (tmp_path / "settings").write_text("[data]\npath = 'table.csv'\n")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("letters", "expected a recipe first, got the folder 'letters'; did you mean 'classify data.path=letters'?"),
        ("./letters/", "did you mean 'classify data.path=./letters/'?"),
        ("novels", "got the folder 'novels'; did you mean 'model-text data.path=novels'?"),
        ("table.csv", "got the data file 'table.csv'; did you mean 'classify data.path=table.csv'?"),
        ("table.jsonl.gz", "did you mean 'classify data.path=table.jsonl.gz'?"),
        ("table.parquet", "did you mean 'classify data.path=table.parquet'?"),
        ("novel.txt", "did you mean 'model-text data.path=novel.txt'?"),
        ("novel", "did you mean 'model-text data.path=novel'?"),
        ("data.path=x.csv", "expected a recipe before 'data.path=x.csv', got none; did you mean 'classify data.path=x"),
        ("additive", "expected a recipe, got the mixer 'additive'; did you mean 'classify model.mixers=additive'?"),
        ("lstm", "did you mean 'classify model.mixers=lstm'?"),
        ("transformer", "did you mean 'classify model.mixers=softmax'?"),
        ("sentiment", "did you mean 'classify'?"),
        ("language-model", "did you mean 'model-text'?"),
        ("xyzzy", "there is no recipe 'xyzzy' (the path of a TOML file works too); the nearest of "),
        ("xyzzy.toml", "there is no recipe file 'xyzzy.toml'; check the path."),
        ("", "there is no recipe ''"),
    ],
)
def test_what_is_no_recipe(given, told, capsys) -> None:
    for verb in (["train"], ["compare", "--mixers", "additive"]):
        assert cli.main([*verb, given]) == 2
        captured = capsys.readouterr()
        assert told in captured.err
        assert captured.err.count("\n") == 1


# A recipe may have the name of its task.
@pytest.mark.slow
@pytest.mark.parametrize("task", sorted({*tasks.names()} - {*recipes.names()}))
def test_a_task_in_place_of_a_recipe_is_answered_with_its_recipes(task) -> None:
    with pytest.raises(UserError, match=f"expected a recipe, got the task '{task}'; its recipes are ") as error:
        recipes.load(task)
    named = str(error.value).rpartition(" are ")[2].removesuffix(".").split(", ")
    assert named == [name for name in recipes.names() if recipes.load(name).task.name == task]


def test_a_recipe_may_have_any_suffix_and_be_that_of_a_run(capsys) -> None:
    assert recipes.load("settings").data.path == "table.csv"
    assert recipes.load("runs/mine").name == "mine"
    for given in ("settings", "runs/mine"):
        assert cli.main(["show", given]) == 0
        assert "  data.path=table.csv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--epochs", "3"], "unrecognized argument '--epochs'; did you mean 'training.num_train_epochs=...'?"),
        (["--lr=3e-4"], "did you mean 'training.learning_rate=...'?"),
        (["--batch-size", "8"], "did you mean 'training.per_device_train_batch_size=...'?"),
        (["--overwite"], "did you mean '--overwrite'?"),
        (["--xyzzy"], "unrecognized argument '--xyzzy'; known names are --"),
    ],
)
def test_keys_given_as_flags(flags, told, capsys) -> None:
    assert cli.main(["train", "quickstart", *flags]) == 2
    assert told in capsys.readouterr().err
