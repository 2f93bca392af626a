"""Baselines in a comparison."""

import dataclasses
import json
import re

import numpy as np
import pytest

from longspan import cli, compare
from longspan.errors import UserError
from longspan.machine import imports
from longspan.report.comparison import comparison_summary
from longspan.results import ComparedBaseline, Comparison, MixerSummary, Spread
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.language_modelling.scores import LanguageScores
from longspan.verbs import compare as module
from longspan.verbs import fitting, jobs


def scores_of(accuracy):
    return ClassificationScores(
        accuracy=accuracy, macro_f1=0.5, calibration_error=0.1, loss=0.4, per_class={}, reliability=[], confusion=[]
    )


def trained(wanted, run_dir, launcher):
    run_dir.mkdir()
    (run_dir / "recipe.toml").write_text(wanted.to_toml())
    costs = {"tokens_per_second": 10.0, "peak_memory_bytes": 2**20, "parameters": 10, "steps": 7, "seconds": 1.0}
    (run_dir / "metrics.json").write_text(json.dumps({"validation": scores_of(0.6).to_dict(), **costs}))


@pytest.fixture
def here(monkeypatch):
    """Fit in this process and train nothing; collect what is fitted."""
    calls = []

    def run(name, *arguments):
        assert name == "longspan.verbs.fitting"
        calls.append(arguments[1])
        return None if fitting.main(arguments) == 0 else "it failed."

    monkeypatch.setattr(jobs, "run_module", run)
    monkeypatch.setattr(module, "_train", trained)
    return calls


def test_baselines_stand_beside_the_mixers(here, animals, tmp_path):
    result = compare("classify", ["additive"], 1, [f"data.path={animals}"], tmp_path, baselines=["tfidf", "nb", "nb"])
    assert here == ["tfidf", "nb"]
    assert [row.baseline for row in result.baselines] == ["tfidf", "nb"]
    row = result.baselines[1]
    # Its words tell cats from dogs.
    assert row.scores["validation"].accuracy == 1
    assert row.seconds > 0
    assert row.peak_memory_bytes > 2**20
    assert row.parameters > 20
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert written == result.to_dict()
    assert written["baselines"][1]["validation"] == row.scores["validation"].numbers()
    assert written["baselines"][1]["chosen"] == row.chosen
    text = (tmp_path / "comparison.md").read_text()
    assert "| nb (baseline)" in text
    assert "On the validation split the baseline tfidf wins: accuracy 1.000, against 0.600 of the best mixer" in text
    assert (tmp_path / "comparison.png").stat().st_size > 1000


def test_a_fitted_baseline_is_kept_whatever_is_trained_how(here, animals, tmp_path):
    given = [f"data.path={animals}"]
    compare("classify", ["additive"], 1, given, tmp_path, baselines=["nb"])
    result = compare("classify", ["additive", "softmax"], 2, given, tmp_path, baselines=["nb"])
    assert here == ["nb"]
    assert result.baselines[0].scores["validation"].accuracy == 1
    for folder in tmp_path.glob("additive-*"):
        (folder / "recipe.toml").unlink()
    with pytest.raises(UserError, match=r"expected a run with this comparison's settings in .*baseline-nb'"):
        compare("classify", ["additive"], 1, [*given, "data.split_seed=1"], tmp_path, baselines=["nb"])


def test_baselines_alone(here, animals, tmp_path, capsys):
    command = ["compare", "classify", f"data.path={animals}", "--baselines", "nb,tfidf", "--run", str(tmp_path)]
    assert cli.main(command) == 0
    assert here == ["nb", "tfidf"]
    told = capsys.readouterr().out
    assert "nb (baseline)" in told
    assert max(map(len, told.splitlines())) <= 100
    assert (tmp_path / "comparison.md").read_text().startswith("# Baselines compared on classify")
    assert json.loads((tmp_path / "comparison.json").read_text())["runs"] == []
    assert not (tmp_path / "comparison.png").exists()


def static(folder, words):
    """Save a model of model2vec for these words."""
    from model2vec import StaticModel
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate([*words, "[UNK]"])}, "[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    vectors = np.random.default_rng(0).normal(size=(len(words) + 1, 4)).astype(np.float32)
    StaticModel(vectors, tokens, max_length=None).save_pretrained(folder)


def test_embeddings_of_several_models(here, animals, tmp_path, capsys, monkeypatch):
    static(tmp_path / "one" / "model", ["purr", "bark"])
    static(tmp_path / "two" / "model", ["word1", "word2"])
    monkeypatch.chdir(tmp_path)
    names = ["embeddings:one/model", "embeddings:two/model", "nb"]
    command = ["compare", "classify", f"data.path={animals}", "--baselines", ",".join(names), "--run", "run", "--json"]
    assert cli.main(command) == 0
    assert here == names
    rows = json.loads(capsys.readouterr().out)["baselines"]
    assert [row["baseline"] for row in rows] == names
    # Only the first has words that tell cats from dogs.
    assert rows[0]["validation"]["accuracy"] == 1
    assert rows[1]["validation"]["accuracy"] < 0.9
    assert rows[0]["chosen"].keys() == {"C"}
    assert rows[0]["parameters"] == 5
    assert rows[0]["does"] == "Frozen sentence embeddings with logistic regression."
    folders = [row["folder"] for row in rows]
    assert len({*folders}) == 3
    assert all(re.fullmatch(r"run/baseline-embeddings-model-[0-9a-f]{8}", folder) for folder in folders[:2])
    told = (tmp_path / "run" / "comparison.md").read_text()
    assert "| embeddings:one/model (baseline) |" in told
    assert "embeddings:one/model: Frozen sentence embeddings with logistic regression. Chosen on the validation" in told
    # The same model from elsewhere, and another one that is there under the same name.
    monkeypatch.chdir(tmp_path / "one")
    given = [f"data.path={animals}"]
    again = compare("classify", (), 1, given, tmp_path / "run", baselines=["embeddings:./model"])
    assert here == names
    assert again.baselines[0].scores["validation"].accuracy == 1
    monkeypatch.chdir(tmp_path / "two")
    compare("classify", (), 1, given, tmp_path / "run", baselines=["embeddings:model"])
    assert here == names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "embeddings",
            "the baseline 'embeddings' expected the name or the folder of a model after a colon, got none; write, for "
            "example, embeddings:minishlab/potion-base-8M.",
        ),
        ("embedings:model", "the task 'document_classification' has no baseline 'embedings'; did you mean 'embedd"),
        ("tfidf:model", "the baseline 'tfidf' expected no model, got 'tfidf:model'; write tfidf."),
        ("embeddings:someone/theirs", "is neither on this machine; check it, or download it with `hf download some"),
    ],
)
def test_models_that_are_not_there(here, animals, tmp_path, capsys, name, message):
    command = ["compare", "classify", f"data.path={animals}", "--baselines", name, "--run", str(tmp_path / "run")]
    assert cli.main(command) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not here
    assert not (tmp_path / "run").exists()


def test_baselines_alone_that_all_fail(here, animals, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "run_module", lambda *_: "the machine ran out of memory.")
    with pytest.raises(UserError, match=r"none of the 1 runs succeeded; the first ended with: the machine ran out"):
        compare("classify", overrides=[f"data.path={animals}"], run=tmp_path, baselines=["nb"])


def test_fitting_replaces_no_results(animals, tmp_path, capsys):
    """Known failure: the metrics.json of a run, whose recipe was named, became that of the baseline."""
    (tmp_path / "recipe.toml").write_text(f'task = "document_classification"\n[data]\npath = "{animals}"\n')
    (tmp_path / "metrics.json").write_text("those of the run")
    assert fitting.main([str(tmp_path / "recipe.toml"), "nb"]) == 2
    assert "fit it with `longspan compare RECIPE --baselines nb`." in capsys.readouterr().err
    assert (tmp_path / "metrics.json").read_text() == "those of the run"


def test_one_that_fails_does_not_lose_the_others(here, animals, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jobs, "run_module", lambda *_: "the machine ran out of memory.")
    result = compare("classify", ["additive"], 1, [f"data.path={animals}"], tmp_path, baselines=["nb"])
    assert [sorted(row) for row in result.to_dict()["baselines"]] == [["baseline", "does", "error", "folder"]]
    told = comparison_summary(result)
    assert "nb (baseline) failed: the machine ran out of memory." in told
    assert "On the" not in told
    command = ["compare", "classify", f"data.path={animals}", "--mixers", "additive", "--seeds", "1"]
    assert cli.main([*command, "--baselines", "nb", "--run", str(tmp_path)]) == 2
    assert "1 of 2 runs failed; the same command tries them again." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "name", "message"),
    [
        ("classify", "tfdif", "the task 'document_classification' has no baseline 'tfdif'; did you mean 'tfidf'?"),
        ("classify", "crf", "known names are embeddings, nb, ngrams, tfidf."),
        ("shakespeare", "tfidf", "known names are ngram."),
    ],
)
def test_unknown_names(here, animals, tmp_path, recipe, name, message):
    with pytest.raises(UserError) as told:
        compare(recipe, ["additive"], 1, [f"data.path={animals}"], tmp_path / "run", baselines=[name])
    assert message in str(told.value)
    assert not here
    assert not (tmp_path / "run").exists()


def test_a_task_without_any(here, animals, tmp_path, monkeypatch):
    from longspan.tasks.document_classification.task import DocumentClassification

    monkeypatch.setattr(DocumentClassification, "baselines", lambda self: {})
    with pytest.raises(UserError, match=r"has no baseline 'nb'; leave --baselines out, as it has none\."):
        compare("classify", ["additive"], 1, [f"data.path={animals}"], tmp_path, baselines=["nb"])


def test_names_given_as_one_text(here, animals, tmp_path):
    with pytest.raises(UserError, match=r"expected baselines to be several names, got the text 'nb'; write \['nb'\]\."):
        compare("classify", ["additive"], 1, [f"data.path={animals}"], tmp_path, baselines="nb")


def test_a_missing_package_is_one_sentence(here, animals, tmp_path, monkeypatch):
    known = imports.importlib.util.find_spec
    monkeypatch.setattr(imports.importlib.util, "find_spec", lambda name: None if name == "sklearn" else known(name))
    with pytest.raises(UserError) as told:
        compare("classify", ["additive"], 1, [f"data.path={animals}"], tmp_path, baselines=["nb"])
    assert str(told.value) == (
        "the baseline 'nb' needs the package 'sklearn', which is not installed: `pip install \"longspan[baselines]\"`, "
        "or leave it out."
    )
    assert not here


def test_the_program_says_what_is_wrong(tmp_path, capsys):
    file = tmp_path / "recipe.toml"
    file.write_text('[data]\npath = "nowhere/at/all"\n')
    assert fitting.main([str(file), "nb"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("longspan: ")
    assert "nowhere/at/all" in told
    assert not (tmp_path / "metrics.json").exists()


def comparison(kind, ours, theirs):
    rows = [
        MixerSummary(name, {split: {kind.headline(): Spread(value, None)} for split, value in found.items()},
                     Spread(1, None), Spread(1, None), Spread(1, None), 1, 1, 1)
        for name, found in ours.items()
    ]  # fmt: skip
    made = [ComparedBaseline(name, "Counts.", "f", None, found, {"order": 5}) for name, found in theirs.items()]
    return Comparison("r", "t", kind, [], "f", [], rows, made)


@pytest.mark.parametrize(
    ("accuracy", "sentence"),
    [
        (0.91, "On the test split no baseline wins: accuracy 0.910 of the best mixer, additive, against 0.900 of the "
               "best baseline, nb."),
        (0.9002, "On the test split the baseline nb is as good as the best mixer, additive: accuracy 0.900."),
        (0.85, "On the test split the baseline nb wins: accuracy 0.900, against 0.850 of the best mixer, additive."),
    ],
)  # fmt: skip
def test_words_say_who_wins(monkeypatch, accuracy, sentence):
    monkeypatch.setattr(ClassificationScores, "shown", classmethod(lambda cls: {"accuracy": "accuracy"}))
    ours = {"additive": {"test": accuracy}, "softmax": {"test": 0.1}}
    theirs = {"tfidf": {"test": scores_of(0.8)}, "nb": {"test": scores_of(0.9)}}
    told = comparison_summary(comparison(ClassificationScores, ours, theirs))
    assert sentence in told.splitlines()
    assert "On the validation" not in told


def test_lower_losses_win(monkeypatch):
    monkeypatch.setattr(LanguageScores, "shown", classmethod(lambda cls: {"loss": "loss"}))
    scores = LanguageScores(loss=1.5, perplexity=4, bits_per_byte=1, bits_per_character=1)
    ours = {"additive": {"validation": 1.6}, "softmax": {"validation": 1.7}}
    told = comparison_summary(comparison(LanguageScores, ours, {"ngram": {"validation": scores}}))
    assert "baseline ngram wins: loss 1.500, against 1.600 of the best mixer, additive." in told
    assert "ngram: Counts. Chosen on the validation split: order 5." in told
    nothing = comparison(LanguageScores, ours, {"ngram": {"validation": scores}})
    nothing.baselines[0].chosen.clear()
    assert "ngram: Counts." in comparison_summary(nothing).splitlines()
    better = dataclasses.replace(scores, loss=1.8)
    told = comparison_summary(comparison(LanguageScores, ours, {"ngram": {"validation": better}}))
    assert "no baseline wins: loss 1.600 of the best mixer, additive, against 1.800" in told
