"""Recipes: reading, overriding, checking, writing."""

import dataclasses
import re
import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan import LongspanConfig, recipes, tasks
from longspan.errors import UserError
from longspan.recipes import recipe_files
from longspan.tasks.base.task import Recipe
from longspan.tasks.document_classification.options import ClassificationData


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes.names())
def test_packaged_recipes_load_and_survive_writing(name, tmp_path):
    recipe = recipes.load(name, ["data.path=somewhere"])
    assert recipe.name == name
    assert recipe.description
    (tmp_path / f"{name}.toml").write_text(recipe.to_toml(), encoding="utf-8")
    again = recipes.load(str(tmp_path / f"{name}.toml"))
    assert again == recipe
    assert again.to_toml() == recipe.to_toml()


@pytest.mark.parametrize("name", recipes.names())
def test_packaged_recipes_hold_only_what_differs_from_the_defaults(name):
    recipe = recipes.load(name)
    written = tomllib.loads(recipe_files.read_recipe(name)[1])
    defaults = {
        "data": dataclasses.asdict(recipe.task.data_config()),
        "model": LongspanConfig().to_dict() | {"classifier_dropout": None, "embedding_norm": None},
        "training": recipes.TRAINING_DEFAULTS | dataclasses.asdict(recipe.task.training_options()),
    }
    for table, known in defaults.items():
        same = [key for key, value in written.get(table, {}).items() if key in known and known[key] == value]
        assert not same, f"{name}: [{table}] repeats the defaults of {same}"


def test_two_recipes_bring_their_own_data():
    found = {}
    for name in recipes.names():
        recipe = recipes.load(name)
        if not recipe.data.path:
            what = re.escape(recipe.task.data_hint)
            with pytest.raises(UserError, match=f"recipe '{name}' expected {what}, got neither; set one"):
                recipe.require_data()
        found[name] = recipe.data.path
    assert {name for name, path in found.items() if path} == {"quickstart", "python-code"}
    recipes.load("quickstart").require_data()
    recipes.load("imdb", ["data.train=a.csv"]).require_data()


@pytest.mark.parametrize(
    ("name", "vocab_size", "fewest", "most"),
    [
        ("shakespeare", 68, 2.5e6, 3.5e6),
        # As Dai et al. 2019 report: 41 and 151 million.
        ("enwik8-xl", 259, 40.5e6, 41.5e6),
        ("wikitext103-xl", 267_737, 150.5e6, 151.5e6),
    ],
)
def test_language_models_are_as_large_as_they_should_be(name, vocab_size, fewest, most):
    recipe = recipes.load(name)
    with torch.device("meta"):
        model = recipe.task.model_class(recipe.task.configure(recipe.model, {"vocab_size": vocab_size}))
    assert fewest < model.num_parameters() < most


def test_each_task_has_training_keys_of_its_own():
    reviews, plays = recipes.load("imdb"), recipes.load("shakespeare", ["training.segment_length=9"])
    assert dataclasses.asdict(reviews.options).items() >= {"word_vectors": "", "batch_tokens": 8192}.items()
    assert "segment_length" not in dataclasses.asdict(reviews.options)
    assert dataclasses.asdict(plays.options).items() >= {"segment_length": 9, "carry_states": True}.items()
    for recipe in (reviews, plays):
        # transformers would not know them.
        assert not set(recipe.training) & {"batch_tokens", "segment_length", "carry_states", "word_vectors"}
        assert set(dataclasses.asdict(recipe.options)) <= set(tomllib.loads(recipe.to_toml())["training"])
    refusal = "training.batch_tokens is not for the task 'language_modelling' but for .*'document_classification', "
    with pytest.raises(UserError, match=refusal):
        recipes.load("shakespeare", ["training.batch_tokens=9"])
    refusal = "training.segment_length is not for the task 'document_classification' but for 'language_modelling', .*"
    with pytest.raises(UserError, match=refusal):
        recipes.load("imdb", ["training.segment_length=9"])


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("imdb", "training.batch_tokens=-1", "batch_tokens must be at least 0, got -1"),
        ("imdb", "training.batch_tokens=many", "training.batch_tokens expected an integer, got 'many'"),
        (
            "shakespeare",
            "training.segment_length=0",
            "training.segment_length must be at least 1, got 0; 256 suits most",
        ),
        ("shakespeare", "training.carry_states=1", "training.carry_states expected true or false, got 1"),
        ("imdb", "training.batch_token=1", "did you mean 'training.batch_tokens'"),
    ],
)
def test_values_of_a_tasks_own_keys_are_checked(recipe, override, message):
    with pytest.raises(UserError, match=message):
        recipes.load(recipe, [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.causal=false", "would show the model the tokens that it is to predict"),
        ("model.norm=pst", "did you mean .post"),
        ("model.cutoffs=[5, 4]", "increasing cutoffs"),
        ("data.tokens=", "data.tokens must be a name"),
    ],
)
def test_language_models_that_cannot_be_built_are_named_before_data_are_read(override, message):
    with pytest.raises(UserError, match=message):
        recipes.load("shakespeare", [override])


def test_overrides_are_typed():
    recipe = recipes.load(
        "quickstart",
        [
            "data.path=/some where/else",
            "data.text_column=1",
            "data.validation_fraction=.25",
            "data.lowercase=true",
            "training.learning_rate=1e-4",
            "training.num_train_epochs=2",
            "training.lr_scheduler_type=cosine",
            'model.mixers=["softmax", "additive"]',
            "model.mixer_options.additive.bias=false",
            "model.mixer_options.additive.output=r",
        ],
    )
    assert recipe.data.path == "/some where/else"
    assert recipe.data.text_column == "1"
    assert recipe.data.validation_fraction == 0.25
    assert recipe.data.lowercase is True
    assert recipe.training["learning_rate"] == 1e-4
    assert recipe.training["num_train_epochs"] == 2
    assert recipe.training["lr_scheduler_type"] == "cosine"
    assert recipe.model["mixers"] == ["softmax", "additive"]
    assert recipe.model["mixer_options"] == {"additive": {"bias": False, "output": "r"}}
    assert recipe.training["seed"] == recipes.TRAINING_DEFAULTS["seed"]


@pytest.mark.parametrize("text", ["softmax,additive", "[softmax, additive]", '["softmax", "additive"]'])
def test_a_list_survives_the_shell(text):
    assert recipes.load("quickstart", [f"model.mixers={text}"]).model["mixers"] == ["softmax", "additive"]


def test_an_override_may_hold_an_equals_sign():
    assert recipes.load("quickstart", ["data.path=a=b"]).data.path == "a=b"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", r"expected an override such as training.seed=1, got 'seed'"),
        ("=1", "expected an override such as"),
        ("learning_rate=1", r"expected TABLE.KEY=VALUE; did you mean 'training.learning_rate'\?"),
        ("xyzzy=1", r"expected TABLE.KEY=VALUE; the nearest of \d+ names are .*; `longspan show quickstart` lists all"),
        ("trainig.seed=1", r"did you mean 'training.seed'\?"),
        ("training.learning_rat=1", r"unknown key 'training.learning_rat'; did you mean 'training.learning_rate'\?"),
        ("training.dim=1", r"unknown key 'training.dim'; it belongs in \[model\]"),
        ("data.pth=x", r"did you mean 'data.path'\?"),
        ("model.poolin=mean", r"did you mean 'model.pooling'\?"),
        ("training.learning_rate=fast", r"training.learning_rate expected a number, got 'fast'"),
        ("training.seed=1.5", r"training.seed expected an integer, got 1.5"),
        ("training.seed=true", r"training.seed expected an integer, got True"),
        ("training.bf16=1", r"training.bf16 expected true or false, got 1"),
        ("training.lr_scheduler_type=cosin", r"did you mean 'cosine'\?"),
        ("model.mixers=[1]", r"model.mixers expected a list"),
        ("model.vocab_size=5", r"model.vocab_size is set from the data"),
        ("training.output_dir=x", r"name the run folder with --run"),
        ("data.path.x=1", r"expected keys below 'path', got 'packages', which has none"),
        ("model.mixers=aditive", r"did you mean 'additive'\?"),
        ("model.mixer_options.additive.biass=true", r"did you mean 'bias'\?"),
        ("data.tokens=", "tokens"),
    ],
)
def test_mistakes_are_named(override, message):
    with pytest.raises(UserError, match=message) as error:
        recipes.load("quickstart", [override])
    assert "\n" not in str(error.value)


def test_mistyped_recipes_suggest_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"no recipe 'quikstart' .*TOML file works too.*did you mean 'quickstart'\?"):
        recipes.load("quikstart")
    with pytest.raises(UserError, match=r"no recipe file 'imbd.toml'; did you mean 'imdb'\?"):
        recipes.load("imbd.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data\n", "is not valid TOML"),
        ("[modle]\ndim = 8\n", r"unknown key 'modle' in recipe 'mine'; did you mean 'model'\?"),
        ("data = 3\n", "data in recipe 'mine' expected a table"),
        ("task = 'document_clasification'\n", r"did you mean 'document_classification'\?"),
        ("task = 1\n", "task in recipe 'mine' expected a string"),
        ("[data]\nmax_length = '8'\n", "data.max_length expected an integer, got '8'"),
        ("[model]\ndim = 30\nheads = 8\n", "heads"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        recipes.load(str(tmp_path / "mine.toml"))


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="expected UTF-8, got another encoding"):
        recipes.load(str(tmp_path / "mine.toml"))


plain = st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
nested = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@pytest.mark.slow
@given(st.dictionaries(st.text(), nested))
def test_any_value_survives_being_written(table):
    written: Recipe = Recipe("mine", tasks.load("document_classification"), ClassificationData(), table)
    assert tomllib.loads(written.to_toml())["model"] == table


def test_none_is_left_out():
    """TOML has no null, in tables within tables neither."""
    table = {"a": None, "b": {"c": None, "d": 1}}
    written: Recipe = Recipe("mine", tasks.load("document_classification"), ClassificationData(), table)
    assert tomllib.loads(written.to_toml())["model"] == {"b": {"d": 1}}


def test_columns_are_checked_before_any_data(tmp_path):
    with pytest.raises(UserError, match=r"data.text_column and data.label_column must name two columns, got 'x' for"):
        recipes.load("imdb", ["data.text_column=x", "data.label_column=x"])
    with pytest.raises(UserError, match=r"data.join_rows is not for the task 'document_classification' but for"):
        recipes.load("imdb", ["data.join_rows=true"])
