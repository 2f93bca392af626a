"""`longspan recipes` and `longspan show RECIPE`."""

import json
import tomllib

import pytest

from longspan import cli, mixers, recipes, tasks
from longspan.recipes import keys, recipe_files


def show(capsys, *arguments: str) -> str:
    assert cli.main([*arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_every_recipe_is_listed_with_its_task_and_the_data_it_expects(capsys) -> None:
    page = show(capsys, "recipes")
    rows = json.loads(show(capsys, "recipes", "--json"))
    assert [row["name"] for row in rows] == recipes.names()
    for row in rows:
        assert f"  {row['name']} " in page
        assert row["description"] in " ".join(page.split())
        assert row["data"] == tasks.load(row["task"]).data_hint
        assert row["data"] in " ".join(page.split())
    assert {row["name"] for row in rows if row["path"]} == {"quickstart", "python-code"}
    assert max(map(len, page.splitlines())) <= 100
    assert "(needs no data: data.path=packages is set)" in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classify", "model-text", "quickstart", "wikitext103-xl"])
def test_a_recipe_is_shown_with_every_key(name, capsys) -> None:
    page = show(capsys, "show", name)
    found = json.loads(show(capsys, "show", name, "--json"))
    recipe = recipes.load(name)
    plain = " ".join(page.split())
    assert plain.startswith(f"{name}: {recipe.description}")
    assert found["task"] == recipe.task.name
    assert [row["name"] for row in found["keys"]] == [key.name for key in keys.explained(recipe.task)]
    for row in found["keys"]:
        assert f"\n{row['table']}.{row['name']}=" in page
        assert row["meaning"][1:] in plain
    for line in recipe_files.read_recipe(name)[1].splitlines():
        if line.startswith("#"):
            assert " ".join(line[2:].split()) in plain
    # Whatever the file sets stands among what differs.
    changed = page.partition("What it changes")[2].partition("\n\n")[0]
    written = tomllib.loads(recipe_files.read_recipe(name)[1])
    for table in keys.TABLES:
        for key in written.get(table, {}):
            assert f"  {table}.{key}=" in changed
    assert changed.count("\n") == sum(len(written.get(table, {})) for table in keys.TABLES)


def test_values_stand_as_overrides_have_them(capsys, tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "# A remark.\n[model]\nmixers = ['softmax', 'local']\nmixer_options = {local = {radius = 3}}\n"
        "[data]\npath = 'x.csv'\n[training]\nload_best_model_at_end = false\nadam_beta2 = 0.5\n"
    )
    page = show(capsys, "show", str(path))
    assert "\nA remark.\n" in page
    for line in (
        'data.path=x.csv  (a string; default "")',
        "model.mixers=[softmax, local]",
        "model.mixer_options={local = {radius = 3}}",
        "training.load_best_model_at_end=false  (true or false; default true)",
        "  training.adam_beta2=0.5\n",
        "model.feed_forward_dim=unset",
    ):
        assert line in page, line


def test_mixers_are_still_shown_and_nothing_has_two_meanings(capsys) -> None:
    assert not {*recipes.names()} & {*mixers.names(), *mixers.aliases()}
    assert show(capsys, "show", "fastformer").startswith("fastformer, another name for additive")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("clasify", "there is no mixer or recipe 'clasify'; did you mean 'classify'?"),
        ("softmx", "did you mean 'softmax'?"),
        ("lm", "did you mean 'model-text'?"),
        ("transformer", "did you mean 'softmax'?"),
        ("xyzzy", "; `longspan list` or `longspan recipes` lists all."),
        ("missing.toml", "there is no recipe file 'missing.toml'; check the path."),
        ("mypackage.Mine", "code that has not been imported"),
    ],
)
def test_what_is_neither_is_answered_with_the_nearest_of_both(name, told, capsys) -> None:
    assert cli.main(["show", name]) == 2
    assert told in capsys.readouterr().err


def test_a_key_is_explained_wherever_it_is(capsys) -> None:
    page = show(capsys, "show", "data.class_weights")
    assert page.startswith("data.class_weights  (one of none, balanced; default none)\n    ")
    assert "    Tasks: document_classification.\n" in page
    assert page.endswith("    Tasks: document_pairs.\n")
    found = json.loads(show(capsys, "show", "data.text_column", "--json"))
    assert {entry["default"]: "recommendation" in entry["tasks"] for entry in found["in"]} == {
        **{entry["default"]: False for entry in found["in"]}, "title": True
    }  # fmt: skip
    assert sorted(task for entry in found["in"] for task in entry["tasks"]) == sorted(
        name for name in tasks.names() if hasattr(tasks.load(name).data_config, "text_column")
    )
    for key in ("model.dim", "training.learning_rate", "training.adam_beta2"):
        assert show(capsys, "show", key).startswith(f"{key}  (")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("data.clas_weights", "no recipe has the key 'data.clas_weights'; did you mean 'data.class_weights'?"),
        ("training.lr", "did you mean 'training.learning_rate'?"),
        ("data.xyzzyq", "`longspan show RECIPE` lists all."),
        ("class_weights", "there is no mixer or recipe 'class_weights'; did you mean 'data.class_weights'?"),
    ],
)
def test_what_is_no_key_is_answered_with_the_nearest(name, told, capsys) -> None:
    assert cli.main(["show", name]) == 2
    assert told in capsys.readouterr().err


def test_what_others_call_a_column(capsys) -> None:
    assert cli.main(["train", "news", "data.title_column=headline"]) == 2
    assert "unknown key 'data.title_column'; did you mean 'data.text_column'?" in capsys.readouterr().err


def test_the_help_of_train_points_to_the_explanations(capsys) -> None:
    for verb in ("train", "compare"):
        with pytest.raises(SystemExit):
            cli.main([verb, "--help"])
        told = " ".join(capsys.readouterr().out.split())
        assert "`longspan recipes` lists them" in told
        assert "`longspan show RECIPE` explains every key" in told


def test_the_version(capsys) -> None:
    import longspan

    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"longspan {longspan.__version__}\n"
