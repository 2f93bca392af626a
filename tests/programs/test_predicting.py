"""Predictions of exported programs: those of the run, without PyTorch; and damaged exports, which are told apart."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from longspan import LongspanForSequenceClassification, Predictor, cli, export, predict, recipes, train
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.results.tables import write_table
from longspan.verbs.predict import print_predictions
from longspan.verbs.runs import load_run

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_shape_checks")]

TEXTS = [
    "word1 purr meow whisker word2",
    "bark wag",
    # Cut from the front to 30 tokens.
    " ".join(f"word{number % 23}" for number in range(50)) + " bark wag fetch",
    # Names of special tokens, composed characters, and what no training document has.
    "<pad> <unk> cafe\u0301 caf\u00e9 Wow! \u4e2d\u6587 \U0001f600",
    # Characters without any token.
    "\u200b \u200b",
]
SMALL = ["model.dim=16", "model.heads=2", "model.depth=1"]
# `test_formats.py` has other mixers.
QUICK = [*SMALL, "model.mixers=convolution", "model.wide=false"]


def written(folder, recipe, **settings):
    """A run folder with a model that was not trained."""
    tokenizer = build_tokenizer(recipe.data, TEXTS[:4])
    config = LongspanForSequenceClassification.configured(vocab_size=len(tokenizer), **recipe.model, **settings)
    LongspanForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folders(animals, tmp_path_factory):
    """Runs and their exports by recipe: a classifier with a wide part is trained."""
    base = tmp_path_factory.mktemp("programs")
    data = [f"data.path={animals}", "data.max_length=30", "data.keep=last"]
    classify = recipes.load("classify", [*data, *SMALL, "training.num_train_epochs=1", "training.min_steps=0"])
    train(classify, run=base / "classify", progress=False)
    names = {0: "a", 1: "b", 2: "c"}
    told: dict[str, Any] = {
        "problem_type": "multi_label_classification",
        "id2label": names,
        "thresholds": [0.1, 0.5, 0.9],
    }
    written(base / "multi-label", recipes.load("multi-label", [*data, *QUICK, "data.tokens=words"]), **told)
    told = {"problem_type": "regression", "id2label": {0: "stars"}, "target_mean": 300.0, "target_scale": 20.0}
    written(base / "regression", recipes.load("regression", [*data, *QUICK, "data.tokens=bytes"]), **told)
    for name in ("classify", "multi-label", "regression"):
        export(base / name, base / f"{name}-onnx", format="onnx", data=str(animals))
    return base


@pytest.mark.parametrize("name", ["classify", "multi-label", "regression"])
def test_exports_predict_batches(folders, name):
    export_folder = folders / f"{name}-onnx"
    predictor = Predictor(export_folder)
    found = predictor({"text": TEXTS})
    file = io.BytesIO()
    write_table(predict(export_folder, {"text": TEXTS}), "parquet", file)
    wanted = pq.read_table(file)
    assert predictor.schema == Predictor(folders / name).schema == wanted.schema
    assert found == wanted.to_pydict()


@pytest.mark.parametrize("name", ["classify", "multi-label", "regression"])
def test_exports_answer_as_runs_do(folders, name):
    expected = [one.to_dict() for one in predict(folders / name, TEXTS)]
    found = [one.to_dict() for one in predict(folders / f"{name}-onnx", TEXTS)]
    # Sums of 30 tokens and of four products of 64 numbers each, in float32, whose order differs.
    rounding = (30 + 4 * 64) * float(np.finfo(np.float32).eps)
    for wanted, given in zip(expected, found, strict=True):
        assert given.keys() == wanted.keys()
        for key, value in wanted.items():
            if key == "probabilities":
                assert given[key] == pytest.approx(value, abs=rounding)
            elif key == "number":
                assert given[key] == pytest.approx(value, abs=rounding * (300 + 20))
            else:
                assert given[key] == value
    assert any("tokens_read" in one for one in found)


def test_files_standard_input_and_bad_rows_are_those_of_the_run(folders, animals, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("purr meow", encoding="utf-8")
    (tmp_path / "b.csv").write_text("body\nbark\n   \n", encoding="utf-8")
    (tmp_path / "c.csv").write_bytes(b"text\ncaf\xe9 purr\n")

    def printed(run, files, **given):
        out = io.StringIO()
        try:
            print_predictions(run, files, out, stdin=io.BytesIO(b"purr\n\nbark wag\n"), **given)
        except UserError as error:
            print(error, file=out)
        lines = out.getvalue().splitlines()
        return [{**json.loads(line), "probabilities": None} if line[0] == "{" else line for line in lines]

    cases: list[tuple[list[Any], dict[str, Any]]] = [
        (["-"], {}),
        ([tmp_path / "a.txt"], {}),
        ([tmp_path / "b.csv"], {"text_column": "body"}),
        ([tmp_path / "b.csv"], {"overrides": ["data.text_column=body", "data.max_length=3"]}),
        ([tmp_path / "c.csv"], {}),
        ([tmp_path / "c.csv"], {"encoding": "auto"}),
        ([animals, tmp_path / "a.txt"], {}),
        ([tmp_path / "none.csv"], {}),
    ]
    for files, given in cases:
        notes = []
        for run in ("classify", "classify-onnx"):
            notes.append((printed(folders / run, files, **given), capsys.readouterr().err))
        assert notes[0] == notes[1], files
        assert notes[0][0]


def test_neither_pytorch_nor_transformers_nor_datasets_is_imported(folders):
    code = (
        "import sys; from longspan.cli import main; code = main(['predict', sys.argv[1], 'purr meow', 'bark wag']);"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folders / "classify-onnx"], capture_output=True, text=True, check=True
    )
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert [json.loads(line)["label"] for line in lines] == [
        one.label for one in predict(folders / "classify", ["purr meow", "bark wag"])
    ]


def changed(folder, into, **values):
    """A copy of an export with other values in export.json; dotted keys lead into its tables, None removes."""
    shutil.copytree(folder, into)
    told = json.loads((into / "export.json").read_text("utf-8"))
    for key, value in values.items():
        *tables, name = key.split("__")
        table = told
        for each in tables:
            table = table[each]
        if value is None:
            del table[name]
        else:
            table[name] = value
    (into / "export.json").write_text(json.dumps(told), encoding="utf-8")
    return into


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": "torch"}, "expected an export with --format onnx"),
        ({"predict": None}, "does not say how texts are read; name the run folder"),
        ({"predict": []}, "must have the keys"),
        ({"predict__thresholds": None}, "must have the keys"),
        ({"predict__more": 1}, "must have the keys"),
        ({"predict__labels": ["a"] * 2}, "labels must be different names"),
        ({"predict__labels": ["a", "b", "c"]}, r"outputs of the shape \(1, 2\)"),
        ({"predict__labels": [1, 2]}, "labels expected a list"),
        ({"predict__problem_type": "regression"}, r"outputs|labels"),
        ({"predict__problem_type": "ranking"}, "problem_type"),
        ({"predict__thresholds": [0.5]}, "thresholds must be as many as labels"),
        ({"predict__limits": {"rows": -1}}, "limits must be numbers of tokens"),
        ({"predict__data__max_length": -(10**30)}, "data.max_length must be"),
        ({"predict__data__max_length": "long"}, "max_length expected an integer"),
        ({"predict__data__keep": "middle"}, "keep"),
        ({"predict__data__path": "/etc/passwd"}, "data must have the keys"),
        ({"predict__data__encoding": "rot13"}, "encoding"),
    ],
)
def test_damaged_descriptions_are_told_in_one_sentence(folders, values, words, tmp_path):
    folder = changed(folders / "classify-onnx", tmp_path / "damaged", **values)
    with pytest.raises(UserError, match=words):
        list(predict(folder, ["bark wag"]))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("export.json", b"[" * 100_000, "got a damaged file"),
        ("export.json", b'{"format": ' + b"9" * 5000 + b"}", "got a damaged file"),
        ("tokenizer.json", b"{}", "a damaged tokenizer.json"),
        ("tokenizer.json", None, "no tokenizer.json"),
        ("model.onnx", b"no program", "a program that onnxruntime cannot load"),
        ("model.onnx", None, "no model.onnx"),
    ],
)
def test_damaged_files_end_with_exit_code_2(folders, file, content, words, tmp_path, capsys):
    folder = changed(folders / "classify-onnx", tmp_path / "damaged")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    assert cli.main(["predict", str(folder), "bark wag"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert words in told


def test_a_program_reads_no_files_outside_its_folder(folders, tmp_path):
    import onnx

    outside = tmp_path / "weights"
    outside.write_bytes(bytes(64_000_000))
    folder = changed(folders / "classify-onnx", tmp_path / "linked")
    model = onnx.load(folder / "model.onnx")
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    onnx.external_data_helper.set_external_data(tensor, "../weights")
    tensor.ClearField("raw_data")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="a program that onnxruntime cannot load"):
        list(predict(folder, ["bark wag"]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "EXPORT", "bark wag", "--checkpoint", "last"], "expected 'checkpoint' with a run folder"),
        (["predict", "EXPORT", "bark wag", "--format", "conll"], "there is no --format 'conll'"),
        (["predict", "EXPORT", "bark wag", "--beams", "2"], "expected 'beams' with a run folder"),
        (["predict", "EXPORT", "bark wag", "data.tokens=words"], "data.tokens is what the model was trained with"),
        (["predict", "EXPORT", "bark wag", "data.max_length=x"], "data.max_length expected an integer"),
        (
            ["predict", "EXPORT", "bark wag", "data.label_column=x"],
            "with an export, got 'data.label_column=x'",
        ),
        (["evaluate", "EXPORT"], "expected a run folder, got an exported program"),
        (["explain", "EXPORT"], "expected a run folder, got an exported program"),
    ],
)
def test_what_only_runs_do_names_the_run_folder(folders, arguments, words, capsys):
    told = [str(folders / "classify-onnx") if word == "EXPORT" else word for word in arguments]
    assert cli.main(told) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_onnxruntime_that_is_missing_is_told(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"needs onnxruntime.*pip install 'longspan\[export\]'"):
        list(predict(folders / "classify-onnx", ["bark wag"]))


def test_documents_longer_than_the_model_takes_have_no_prediction(animals, tmp_path):
    reads = [f"data.path={animals}", "data.tokens=words", "data.max_length=0"]
    recipe = recipes.load("quickstart", [*reads, *QUICK, "model.position=learned", "model.max_positions=12"])
    names = {0: "cat", 1: "dog"}
    folder = written(tmp_path / "run", recipe, id2label=names, problem_type="single_label_classification")
    (tmp_path / "some.csv").write_text("text\nbark wag\n", encoding="utf-8")
    export(folder, tmp_path / "out", format="onnx", data=str(tmp_path / "some.csv"))
    texts = {"text": ["bark " * 12, "bark " * 13, " "]}
    found, expected = ([one.to_dict() for one in predict(each, texts)] for each in (tmp_path / "out", folder))
    assert [one.get("error") for one in found] == [one.get("error") for one in expected]
    assert "at most 12 tokens for learned positions, got 13" in found[1]["error"]
    assert load_run(folder).task.name == json.loads(Path(tmp_path, "out", "export.json").read_text())["task"]
