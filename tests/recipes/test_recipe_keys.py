"""Every key of a recipe is explained, and what people call it elsewhere leads to it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
from transformers import TrainingArguments

from longspan import LongspanConfig, mixers, options, recipes, tasks
from longspan.errors import UserError, listing, nearest, suggestion
from longspan.mixers.aliases import MEANT
from longspan.recipes import keys, recipe_files


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.names())
def test_every_key_is_explained(name: str) -> None:
    task = tasks.load(name)
    explained = keys.explained(task)
    assert len({(key.table, key.name) for key in explained}) == len(explained)
    for key in explained:
        assert len(key.meaning) > 10, f"{key.table}.{key.name} of {name} has no explanation"
        assert key.type
    for table in ("data", "model"):
        assert [key.name for key in explained if key.table == table] == [*keys.table_keys(table, task)]
    told = {key.name for key in explained if key.table == "training"} | {*keys.further_keys(task)}
    assert told == {*keys.table_keys("training", task)}


@pytest.mark.slow
def test_defaults_are_those_that_hold() -> None:
    for task in map(tasks.load, tasks.names()):
        found = {key.name: key.default for key in keys.explained(task) if key.table == "data"}
        assert found == dataclasses.asdict(task.data_config())
    every = {(key.table, key.name): key.default for key in keys.explained(tasks.load("language_modelling"))}
    assert every["training", "learning_rate"] == recipes.TRAINING_DEFAULTS["learning_rate"]
    assert every["training", "segment_length"] == 256
    assert every["model", "dim"] == LongspanConfig().dim
    # The task's own, and what follows from other keys.
    assert every["model", "causal"] is True
    assert every["model", "feed_forward_dim"] is None


def test_what_is_said_of_training_is_what_a_run_does(tmp_path) -> None:
    from longspan.verbs.run_folders import RunFolder, arguments_of

    arguments = arguments_of(recipes.load("movie-reviews"), RunFolder(tmp_path, "new"), False)
    for name, value in keys.UNWRITTEN_DEFAULTS.items():
        assert getattr(arguments, name) == ([] if (name, value) == ("report_to", "none") else value), name


def test_meanings_are_read_from_docstrings_and_fields() -> None:
    @dataclass(frozen=True)
    class Base:
        """A base.

        Attributes:
            first: One line.
            second: Two
                lines: with a colon.

        Raises:
            third: Not a field.
        """

        first: int = 0
        second: int = 0

    @dataclass(frozen=True)
    class Derived(Base):
        """Args:
        fourth: Wrongly indented.
        """

        third: int = dataclasses.field(default=0, metadata={"help": "at 20%% off"})
        fourth: int = 0

    assert options.meanings(Derived) == {
        "first": "One line.",
        "second": "Two lines: with a colon.",
        "third": "at 20% off",
        "fourth": "",
    }


def test_every_word_leads_to_a_key() -> None:
    known = {key for name in tasks.names() for table in keys.TABLES for key in keys.table_keys(table, tasks.load(name))}
    assert {*keys.WORDS} <= known
    words = [word for words in keys.WORDS.values() for word in words.split()]
    # A word that is a key would never be looked up.
    assert not {*words} & known
    assert len({*words}) == len(words)
    assert {*MEANT.values()} <= {*mixers.names(), *mixers.aliases()}
    assert not {*MEANT} & {*mixers.names(), *mixers.aliases()}
    assert {*recipe_files.WORDS} <= {*recipes.names()}
    assert not {*recipe_files.OTHER_NAMES} & {*recipes.names()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("epochs", "training.num_train_epochs"),
        ("epochS", "training.num_train_epochs"),
        ("epohcs", "training.num_train_epochs"),
        ("lr", "training.learning_rate"),
        ("learning-rate", "training.learning_rate"),
        ("batch_size", "training.per_device_train_batch_size"),
        ("batchsize", "training.per_device_train_batch_size"),
        ("layers", "model.depth"),
        ("hidden_size", "model.dim"),
        ("d_model", "model.dim"),
        ("width", "model.dim"),
        ("n_heads", "model.heads"),
        ("seq_len", "data.max_length"),
        ("max_len", "data.max_length"),
        ("tokenizer", "data.tokens"),
        ("vocab", "data.vocab_size"),
        ("minutes", "training.max_minutes"),
        ("patience", "training.early_stopping_patience"),
        ("random_seed", "training.seed"),
        ("mixer", "model.mixers"),
        ("label", "data.label_column"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "training.", "data.", "model.", "train."])
def test_keys_are_found_by_meaning(word: str, key: str, prefix: str, tmp_path) -> None:
    with pytest.raises(UserError) as error:
        recipes.load("movie-reviews", [f"{prefix}{word}=1"])
    assert str(error.value).endswith(f"; did you mean {key!r}?")
    table = prefix.removesuffix(".")
    (tmp_path / "mine.toml").write_text(f"[{table}]\n{word} = 1\n" if table else f"{word} = 1\n")
    if table != "train":
        with pytest.raises(UserError) as error:
            recipes.load(str(tmp_path / "mine.toml"))
        assert str(error.value).endswith(f"; did you mean {key!r}?")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dropout=1", "did you mean 'model.dropout'?"),
        ("additive.bias=false", "did you mean 'model.mixer_options.additive.bias'?"),
        ("lstm.bias=false", "did you mean 'model.mixer_options.lstm.bias'?"),
        ("task=language_modelling", "a recipe has its task, and `longspan recipes` lists the recipes of each."),
        ("model.mixers=transformer", "there is no mixer 'transformer'; did you mean 'softmax'?"),
        ("model.mixers=Additive", "did you mean 'additive'?"),
        (
            "training.optim=adamw",
            "41 names such as grokadamw, adamw_8bit, adalomo or one of muon, coupled_adam, got 'adamw'; correct it.",
        ),
    ],
)
def test_other_mistakes_lead_somewhere(override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        recipes.load("movie-reviews", [override])
    assert str(error.value).endswith(message)


def test_a_path_in_place_of_an_override(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").touch()
    with pytest.raises(UserError, match=r"got the path 'mine.csv'; did you mean 'data.path=mine.csv'\?"):
        recipes.load("movie-reviews", ["mine.csv"])


def test_no_message_is_a_dump_of_names() -> None:
    many = [f"name{number}" for number in range(100)]
    assert suggestion("zzz", many, see="`there`").count("name") == 4
    assert suggestion("zzz", many, see="`there`").endswith("; `there` lists all.")
    assert listing("zzz", ["b", "a"]) == "known names are a, b."
    assert listing("zzz", []) == "known names are (none)."
    assert suggestion("Big-Bird", ["bigbird", "local"]) == "did you mean 'bigbird'?"
    # What means nothing that is known means nothing.
    assert nearest("lr", ["depth"], {"lr": "learning_rate"}) is None
    # A name counts more than what it means elsewhere.
    assert nearest("LR", ["lr", "rate"], {"lr": "rate"}) == "lr"
    for key in ("xyzzy", "training.xyzzy", "data.xyzzy"):
        with pytest.raises(UserError) as error:
            recipes.load("imdb", [f"{key}=1"])
        assert len(str(error.value)) < 250
        assert str(error.value).endswith("; `longspan show imdb` lists all.")


def test_the_usual_keys_are_those_of_transformers() -> None:
    assert {*keys.USUAL, *keys.UNWRITTEN_DEFAULTS} <= {field.name for field in dataclasses.fields(TrainingArguments)}


@pytest.mark.parametrize(
    ("text", "expected"), [("auto", "auto"), ("2000", [2000]), ("1000,4000", [1000, 4000]), ("[2000]", [2000])]
)
def test_numbers_are_a_list_where_a_key_takes_lists_and_texts(text: str, expected: Any) -> None:
    assert recipes.load("model-text", [f"model.cutoffs={text}"]).model["cutoffs"] == expected
