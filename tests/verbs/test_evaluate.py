"""Loading and scoring a run folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from decisive_words import write_run
from safetensors.torch import load_file, save_file

from longspan import cli, evaluate, generate
from longspan.data.batches.streams import pad
from longspan.errors import UserError
from longspan.results import Evaluation
from longspan.tasks.base.classes import ClassificationScores
from longspan.tasks.document_classification.task import DocumentClassification
from longspan.training.lengths import outputs
from longspan.verbs.runs import load_run

WORDS = {"cat": ["purr", "meow", "whisker"], "dog": ["bark", "wag", "fetch"]}


def write_rows(path: Path, labels: list[str]) -> Path:
    rows = [f"{' '.join(WORDS[label] * (1 + number % 4))} {number},{label}" for number, label in enumerate(labels)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run folder with a model that looks only for the word "purr", and its data."""
    folder = tmp_path_factory.mktemp("run")
    data = write_rows(folder / "rows.csv", ["cat", "dog"] * 20)
    settings = [f"data.path={data}", "data.max_length=8", "data.test_fraction=0.25"]
    return write_run(folder / "mine", ["cat", "dog"], "purr", "cat", " ".join(WORDS["cat"] + WORDS["dog"]), settings)


@pytest.fixture
def run_dir(made, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(made, tmp_path / "run")


def scores(evaluation: Evaluation) -> ClassificationScores:
    assert isinstance(evaluation.scores, ClassificationScores)
    return evaluation.scores


def test_scores_its_own_split(run_dir):
    result = evaluate(run_dir, split="test")
    assert isinstance(result, Evaluation)
    assert (result.task, result.split, result.folder) == ("document_classification", "test", f"{run_dir}/evaluation")
    assert Path(result.data).name == "rows.csv"
    assert (result.details["documents"], scores(result).accuracy) == (10, 1.0)
    assert result.details["labels"] == ["cat", "dog"]
    assert scores(result).confusion == [[5, 0], [0, 5]]
    # Documents have 4 to 13 words, and 8 are kept.
    assert result.details["truncation"]["cut_documents"] > 0
    assert 0 <= result.details["padding_fraction"] < 0.5
    written = json.loads((run_dir / "evaluation/metrics.json").read_text())
    assert written == result.to_dict()
    # Scores and details stand side by side in the file.
    assert (written["split"], written["documents"], written["accuracy"]) == ("test", 10, 1.0)
    assert (written["labels"], written["confusion"]) == (["cat", "dog"], [[5, 0], [0, 5]])
    for name in ("confusion.png", "calibration.png"):
        assert (run_dir / "evaluation" / name).stat().st_size > 1000


def test_scores_the_whole_of_other_data(run_dir, tmp_path):
    result = evaluate(run_dir, str(write_rows(tmp_path / "new.csv", ["dog", "dog", "cat"])))
    assert (result.split, result.details["documents"]) == ("all", 3)
    assert result.data == str(tmp_path / "new.csv")
    assert scores(result).per_class["dog"]["support"] == 2


def test_scores_a_split_of_other_data(run_dir, tmp_path):
    for split, label in (("train", "cat"), ("train", "dog"), ("test", "dog")):
        (tmp_path / "new" / split / label).mkdir(parents=True)
        (tmp_path / "new" / split / label / "1.txt").write_text("purr purr")
    assert scores(evaluate(run_dir, str(tmp_path / "new"))).accuracy == 0.0


@pytest.mark.slow
def test_other_data_are_read_as_their_keys_say(run_dir, tmp_path, capsys):
    path = tmp_path / "new.csv"
    path.write_bytes("dog;bark wag bark für\ncat;purr meow\n".encode("latin-1"))
    keys = ["data.header=false", "data.delimiter=;", "data.text_column=2", "data.label_column=1"]
    result = evaluate(run_dir, str(path), overrides=[*keys, "data.encoding=latin-1"])
    assert (result.details["documents"], scores(result).accuracy) == (2, 1.0)
    # What a message asks for can be typed as it stands.
    given = ["evaluate", str(run_dir), "--data", str(path), *keys]
    assert cli.main(given) == 2
    assert "data.encoding=auto" in capsys.readouterr().err
    assert cli.main([*given, "data.encoding=auto", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    cut = [evaluate(run_dir, overrides=[f"data.max_length={n}"]).details["truncation"] for n in (3, 8)]
    assert cut[0]["cut_documents"] > cut[1]["cut_documents"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.dim=4", "expected keys of data, such as data.encoding=auto, got 'model.dim=4'"),
        ("data.lowercase=true", "data.lowercase is what the model was trained with"),
        # Rows of training would be scored.
        ("data.split_seed=1", "data.split_seed decides which rows the model was trained on"),
        ("data.test_fraction=0.5", "data.test_fraction decides which rows the model was trained on"),
        ("data.sample=1", "data.sample decides which rows the model was trained on"),
        ("data.encodign=auto", "did you mean 'data.encoding'"),
        ("encoding=auto", "did you mean 'data.encoding"),
    ],
)
def test_a_model_stays_what_it_was_trained_to_be(override, told, run_dir, capsys):
    assert cli.main(["evaluate", str(run_dir), override]) == 2
    assert told in capsys.readouterr().err


def test_an_unknown_label(run_dir, tmp_path):
    (tmp_path / "new.csv").write_text("text,label\npurr,cat\nneigh,horse\n")
    with pytest.raises(
        UserError, match=r"new\.csv, row 2: expected a label that the model knows, got 'horse'; .*cat, dog"
    ):
        evaluate(run_dir, str(tmp_path / "new.csv"))


def test_an_unknown_split(run_dir):
    with pytest.raises(UserError, match=r"expected a split 'tset' in .*, got only train, "):
        evaluate(run_dir, split="tset")


def test_what_is_for_language_models(run_dir, capsys):
    refusal = r"the task 'document_classification' of .*run' has no option 'window'; known names are precision, recall"
    with pytest.raises(UserError, match=refusal):
        evaluate(run_dir, window=4)
    assert cli.main(["evaluate", str(run_dir), "--window", "4"]) == 2
    assert "'document_classification'" in (told := capsys.readouterr().err)
    assert "window" in told
    with pytest.raises(
        UserError, match=r"continues texts, .*'document_classification'.*name a run of language modelli"
    ):
        generate(run_dir, "purr")


def test_order_and_batches_do_not_matter(made):
    run = load_run(made)
    examples = [{"input_ids": list(range(2, 2 + length))} for length in (3, 1, 6, 2, 5)]
    assert isinstance(run.task, DocumentClassification)
    together = outputs(
        run.model, examples, run.task.pipeline(run).batches([3, 1, 6, 2, 5]), streams=run.processor.streams
    )
    for number, example in enumerate(examples):
        alone = run.model(**pad([example], run.processor.streams)).logits[0]
        torch.testing.assert_close(together[number], alone.detach())


def test_what_is_not_a_run_folder(tmp_path):
    (tmp_path / "quickstart").mkdir()
    with pytest.raises(UserError, match=r"there is no run folder .*did you mean '.*/quickstart'\?"):
        load_run(tmp_path / "quickstrt")
    with pytest.raises(UserError, match=r"expected config\.json in the run folder"):
        load_run(tmp_path / "quickstart")
    (tmp_path / "quickstart/recipe.toml").touch()
    with pytest.raises(UserError, match="is unfinished; continue it with"):
        load_run(tmp_path / "quickstart")


def spoil(run_dir, change):
    weights = load_file(run_dir / "model.safetensors")
    change(weights)
    save_file(weights, run_dir / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights.update({"classifier.weight": torch.zeros(3, 8)}),
            r"classifier.weight has shape \(3, 8\) in model.safetensors but \(2, 8\) according to config.json",
        ),
        (
            lambda weights: weights.pop("classifier.bias"),
            r"classifier.bias is missing in model.safetensors, but has shape \(2,\) according to config.json",
        ),
        (lambda weights: weights.update({"extra": torch.zeros(1)}), "extra is in model.safetensors, but not in"),
    ],
)
def test_weights_that_do_not_fit(run_dir, change, message, capfd):
    spoil(run_dir, change)
    with pytest.raises(UserError, match=message):
        load_run(run_dir)
    assert capfd.readouterr() == ("", "")


def test_damaged_files(run_dir):
    config = run_dir / "config.json"
    text = config.read_text()
    config.write_text("{")
    with pytest.raises(UserError, match=r"expected a JSON object in .*, got a damaged file"):
        load_run(run_dir)
    config.write_text(text.replace('"model_type": "longspan"', '"model_type": "bert"'))
    with pytest.raises(UserError, match="got one of type 'bert'"):
        load_run(run_dir)
    config.write_text(text)
    (run_dir / "model.safetensors").write_bytes(b"not tensors at all")
    with pytest.raises(UserError, match=r"model.safetensors' is damaged"):
        load_run(run_dir)
