"""Comparing mixers, with a stand-in for the training processes."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from longspan import compare, recipes
from longspan.errors import UserError
from longspan.results import Comparison
from longspan.results.parts import NAMES, compare_parts
from longspan.tasks.base.classes import ClassificationScores
from longspan.verbs import compare as module
from longspan.verbs import preparing

NAMED = ("additive", "softmax")
ACCURACY = {("additive", 0): 0.8, ("additive", 1): 0.9, ("softmax", 0): 0.7, ("softmax", 1): 0.7}


def finished(wanted, run_dir, launcher=None):
    """Write the files of a finished run."""
    name, seed = run_dir.name.rsplit("-", 1)
    if (name, int(seed)) not in ACCURACY:
        return "the machine ran out of memory."
    run_dir.mkdir()
    (run_dir / "recipe.toml").write_text(wanted.to_toml())
    scores = ClassificationScores(
        accuracy=ACCURACY[name, int(seed)],
        macro_f1=0.5,
        calibration_error=0.1,
        loss=0.4,
        per_class={},
        reliability=[],
        confusion=[],
    )
    metrics = {
        "validation": scores.to_dict(),
        "tokens_per_second": 1000.0,
        "peak_memory_bytes": 2**20 * (1 + int(seed)),
    }
    (run_dir / "metrics.json").write_text(json.dumps(metrics | {"parameters": 10, "steps": 7, "seconds": 1.0}))
    return None


@pytest.fixture
def trained(monkeypatch):
    """Replace the training process; collect what was asked of it."""
    calls = []

    def train(wanted, run_dir, launcher):
        calls.append(run_dir.name)
        return finished(wanted, run_dir)

    monkeypatch.setattr(module, "_train", train)
    # The installed packages, which would be read.
    monkeypatch.setattr(module, "bytes_to_sample", lambda recipe: 0)
    return calls


def test_means_and_spreads(trained, tmp_path):
    result = compare("quickstart", ["additive", "softmax"], 2, ["model.depth=1"], tmp_path / "cmp")
    # Seed by seed, so that an interrupted comparison has something of every mixer.
    assert trained == ["additive-0", "softmax-0", "additive-1", "softmax-1"]
    assert isinstance(result, Comparison)
    assert (result.recipe, result.task, result.kind) == ("quickstart", "document_classification", ClassificationScores)
    additive, softmax = result.summary
    assert additive.mixer == "additive"
    accuracy = additive.scores["validation"]["accuracy"]
    assert accuracy.mean == pytest.approx(0.85)
    assert accuracy.spread == pytest.approx(0.05 * 2**0.5)
    assert additive.peak_memory_bytes == 2**21
    same = softmax.scores["validation"]["accuracy"]
    assert (same.mean, same.spread) == pytest.approx((0.7, 0.0))
    assert "test" not in additive.scores
    written = json.loads((tmp_path / "cmp/comparison.json").read_text())
    assert written == result.to_dict()
    assert written["summary"][0]["validation_accuracy"] == {"mean": accuracy.mean, "spread": accuracy.spread}
    assert written["summary"][0]["tokens_per_second"] == {"mean": 1000.0, "spread": 0.0}
    assert "test_accuracy" not in written["summary"][0]
    assert written["runs"][0]["validation"] == result.runs[0].scores["validation"].numbers()
    assert [(run.mixer, run.seed, run.error) for run in result.runs[:2]] == [
        ("additive", 0, None),
        ("softmax", 0, None),
    ]
    assert "0.850 ± 0.071" in (tmp_path / "cmp/comparison.md").read_text()
    assert (tmp_path / "cmp/comparison.png").stat().st_size > 1000
    saved = recipes.load(str(tmp_path / "cmp/additive-1/recipe.toml"))
    assert (saved.model["mixers"], saved.training["seed"], saved.model["depth"]) == (["additive"], 1, 1)


def test_options_go_to_the_mixers_they_are_for(trained, tmp_path):
    overrides = ["model.mixer_options.additive.interaction=add"]
    compare("quickstart", ["additive", "softmax"], 1, overrides, tmp_path / "cmp")
    one, other = (recipes.load(str(tmp_path / f"cmp/{name}-0/recipe.toml")).model for name in ("additive", "softmax"))
    assert one["mixer_options"] == {"additive": {"interaction": "add"}}
    assert not other["mixer_options"]
    compare("imdb-80", ["additive"], 1, ["data.path=reviews"], tmp_path / "other")
    assert not recipes.load(str(tmp_path / "other/additive-0/recipe.toml")).model["mixer_options"]


def test_forgetting_goes_to_the_mixers_that_have_it(trained, tmp_path):
    overrides = ["model.causal=true", "model.forget=input"]
    compare("quickstart", ["additive", "softmax"], 1, overrides, tmp_path / "cmp")
    one, other = (recipes.load(str(tmp_path / f"cmp/{name}-0/recipe.toml")).model for name in ("additive", "softmax"))
    assert one["forget"] == "input"
    assert "forget" not in other


def test_a_hybrid_is_one_of_the_compared(monkeypatch, tmp_path):
    monkeypatch.setitem(ACCURACY, ("additive+softmax", 0), 0.6)
    monkeypatch.setattr(module, "_train", finished)
    result = compare("quickstart", ["additive", "additive+softmax"], 1, [], tmp_path)
    assert [row.mixer for row in result.summary] == ["additive", "additive+softmax"]
    saved = recipes.load(str(tmp_path / "additive+softmax-0/recipe.toml"))
    assert saved.model["mixers"] == ["additive", "softmax"]


def test_finished_runs_are_kept(trained, tmp_path):
    compare("quickstart", ["additive"], 1, [], tmp_path)
    compare("quickstart", ["additive", "softmax"], 2, [], tmp_path)
    assert trained == ["additive-0", "softmax-0", "additive-1", "softmax-1"]


def test_a_run_with_other_settings_is_not_mistaken_for_one_of_these(trained, tmp_path):
    compare("quickstart", ["additive"], 1, [], tmp_path)
    with pytest.raises(UserError, match=r"expected a run with this comparison's settings in .*, got one with other"):
        compare("quickstart", ["softmax", "additive"], 1, ["model.depth=3"], tmp_path)
    assert trained == ["additive-0"]


def test_one_failure_does_not_lose_the_others(trained, tmp_path):
    result = compare("quickstart", ["additive", "softmax"], 3, [], tmp_path)
    assert [row.seeds for row in result.summary] == [2, 2]
    assert [run.error for run in result.runs if run.error] == ["the machine ran out of memory."] * 2
    failed = [run for run in result.to_dict()["runs"] if "error" in run]
    assert [sorted(run) for run in failed] == [["error", "folder", "mixer", "seed"]] * 2
    assert "softmax, seed 2, failed: the machine ran out of memory." in (tmp_path / "comparison.md").read_text()


def test_nothing_is_trained_when_something_is_wrong(trained, tmp_path):
    for recipe, names, seeds, overrides, message in (
        ("quickstart", ["additive", "softmx"], 1, [], r"did you mean 'softmax'\?"),
        ("quickstart", ["additive"], 0, [], "at least one seed"),
        ("quickstart", ["additive"], 1, ["model.dept=1"], r"did you mean 'model.depth'\?"),
        ("imdb", ["additive"], 1, [], "expected data.path=FOLDER .* got neither"),
        ("quickstart", ["additive"], 1, ["training.max_minutes=3", "training.max_steps=2"], "got both"),
    ):
        with pytest.raises(UserError, match=message):
            compare(recipe, names, seeds, overrides, tmp_path)
    for minutes, overrides, message in (
        (-1, [], "at least 0"),
        (2, ["training.max_steps=9"], r"got both \(2 and 9\)"),
        (2, ["training.max_minutes=3"], "got training.max_minutes and minutes=2; leave one of them out"),
    ):
        with pytest.raises(UserError, match=message):
            compare("quickstart", ["additive"], 1, overrides, tmp_path, minutes=minutes)
    assert not trained


def test_minutes_are_the_deadline_of_each_run(trained, tmp_path):
    found = compare("quickstart", ["additive"], 1, ["training.num_train_epochs=4"], tmp_path, minutes=2)
    wanted = recipes.load(str(tmp_path / "additive-0/recipe.toml"))
    assert (wanted.options.max_minutes, wanted.training["num_train_epochs"]) == (2, 4)
    assert (found.summary[0].steps.mean, found.summary[0].seconds.mean) == (7, 1)
    assert "| steps | time |" in " ".join((tmp_path / "comparison.md").read_text().split())
    # Of itself it has so many epochs, which need not take as long.
    compare("quickstart", ["additive"], 1, [], tmp_path / "a", minutes=2)
    assert recipes.load(str(tmp_path / "a/additive-0/recipe.toml")).training["num_train_epochs"] == 1_000_000
    (tmp_path / "mine.toml").write_text('[data]\npath = "packages"\n[training]\nmax_steps = 9')
    compare(tmp_path / "mine.toml", ["additive"], 1, [], tmp_path / "b", minutes=2)
    assert recipes.load(str(tmp_path / "b/additive-0/recipe.toml")).training["max_steps"] == -1


def test_runs_with_a_deadline_are_known_again(trained, tmp_path):
    compare("quickstart", ["additive"], 1, [], tmp_path, minutes=2)
    compare("quickstart", ["additive"], 1, [], tmp_path, minutes=2)
    assert trained == ["additive-0"]
    for minutes in (0, 3):
        with pytest.raises(UserError, match="got one with other settings"):
            compare("quickstart", ["additive"], 1, [], tmp_path, minutes=minutes)


def minutes_of(folder: Path, *runs: str) -> list[float]:
    return [recipes.load(str(folder / run / "recipe.toml")).options.max_minutes for run in runs]


def test_minutes_are_shared_and_new_runs_get_as_much_as_the_others(trained, tmp_path, capsys):
    compare("quickstart", ["additive"], 2, [], tmp_path, minutes=4)
    assert minutes_of(tmp_path, "additive-0", "additive-1") == [2, 2]
    assert "each of 2 trainings has 2 min 0 s." in capsys.readouterr().err
    compare("quickstart", ["additive", "softmax"], 2, [], tmp_path, minutes=4)
    assert minutes_of(tmp_path, "softmax-0", "softmax-1") == [2, 2]
    told = f"each of 4 trainings has 2 min 0 s, as in {str(tmp_path)!r} before, so that all take 8 min 0 s instead of"
    assert told in capsys.readouterr().err
    # A refused call changes nothing.
    with pytest.raises(UserError, match="got one with other settings"):
        compare("quickstart", ["additive"], 1, [], tmp_path, minutes=3)
    compare("quickstart", ["additive", "softmax"], 1, [], tmp_path, minutes=4)
    for damaged in ("{", "[]", '{"minutes": 4, "trainings": 0}', '{"minutes": 4, "trainings": "2"}'):
        (tmp_path / "budget.json").write_text(damaged)
        with pytest.raises(UserError, match=r"budget\.json', got a damaged file; delete it"):
            compare("quickstart", ["additive"], 1, [], tmp_path, minutes=4)


def test_all_runs_read_the_same_sample(trained, tmp_path, monkeypatch):
    """How much can be prepared in time depends on the moment, so it is found out once."""
    table = tmp_path / "a.csv"
    table.write_text("text,label\n" + "".join(f"{'long ' * 30}{n},{'ab'[n % 2]}\n" for n in range(400)))
    monkeypatch.setattr(preparing, "FIRST_BYTES", 1000)
    monkeypatch.setattr(module, "bytes_to_sample", preparing.bytes_to_sample)
    chosen = []

    def prepare(recipe, *_):
        chosen.append(recipe)
        data = dataclasses.replace(recipe.data, sample=0.5)
        return SimpleNamespace(recipe=dataclasses.replace(recipe, data=data))

    monkeypatch.setattr(module, "prepare_run", prepare)
    for names in (["additive"], ["additive", "softmax"]):
        compare("quickstart", names, 1, [f"data.path={table}"], tmp_path / "c", baselines=["tfidf"], minutes=2)
    assert len(chosen) == 1
    folders = ("additive-0", "softmax-0", "baseline-tfidf")
    assert [recipes.load(str(tmp_path / "c" / one / "recipe.toml")).data.sample for one in folders] == [0.5] * 3


def test_runs_side_by_side_are_in_the_same_order_and_have_more_time(trained, tmp_path, capsys):
    result = compare("quickstart", ["additive", "softmax"], 2, [], tmp_path / "cmp", minutes=8, jobs=2)
    assert [(run.mixer, run.seed) for run in result.runs] == [(mixer, seed) for seed in (0, 1) for mixer in NAMED]
    assert "each of 4 trainings has 4 min" in capsys.readouterr().err
    assert json.loads((tmp_path / "cmp" / "budget.json").read_text())["trainings"] == 2


def test_no_run_succeeds(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_train", lambda *_: "no.")
    with pytest.raises(UserError, match=r"none of the 1 runs succeeded; the first ended with: no\."):
        compare("quickstart", ["additive"], 1, [], tmp_path)
    assert "additive, seed 0, failed: no." in (tmp_path / "comparison.md").read_text()
    assert json.loads((tmp_path / "comparison.json").read_text())["runs"][0]["error"] == "no."


def test_mixers_whose_networks_change_nothing(monkeypatch, tmp_path):
    """Equal scores of all mixers are explained, in the report and in the files."""
    right = np.array([1.0, 0.0, 1.0, 1.0] * 5)
    examples = {
        name: np.stack([row, np.ones(20)], -1) for name, row in zip(NAMES, (right, 0 * right, right), strict=True)
    }

    def train(wanted, run_dir, launcher):
        finished(wanted, run_dir)
        path = run_dir / "metrics.json"
        parts = compare_parts("accuracy", True, examples, lambda sums: sums[..., 0] / sums[..., 1]).to_dict()
        path.write_text(json.dumps(json.loads(path.read_text()) | {"parts": parts}))

    monkeypatch.setattr(module, "_train", train)
    result = compare("quickstart", ["additive", "softmax"], 2, [], tmp_path / "cmp")
    told = (
        "All mixers have the same accuracy, 0.750: the counts alone decide, and no network changes a result. All "
        "networks alone are equally good (accuracy 0.000)."
    )
    assert result.conclusion.endswith(told)
    assert told in (tmp_path / "cmp/comparison.md").read_text()
    written = json.loads((tmp_path / "cmp/comparison.json").read_text())
    assert written == result.to_dict()
    assert written["conclusion"] == result.conclusion
    assert {run["parts"]["validation"]["values"]["both"] for run in written["runs"]} == {0.75}
    assert [row.parts["validation"].values["network"] for row in result.summary] == [0, 0]


def test_damaged_parts_are_an_error_of_the_run(monkeypatch, tmp_path):
    def train(wanted, run_dir, launcher):
        finished(wanted, run_dir)
        if run_dir.name.startswith("softmax"):
            path = run_dir / "metrics.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"parts": {"values": {}}}))

    monkeypatch.setattr(module, "_train", train)
    result = compare("quickstart", ["additive", "softmax"], 1, [], tmp_path / "cmp")
    assert [run.error is None for run in result.runs] == [True, False]
    assert "expected scores of a model's parts" in str(result.runs[1].error)
