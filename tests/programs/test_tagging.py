"""Exports of token classifiers: they label words as their runs do, without PyTorch, and say what is damaged."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from longspan import cli, export, predict, recipes, train
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.tasks.token_classification.program import Tagger, WordAnswers
from longspan.verbs.predict import print_predictions
from longspan.verbs.runs import load_run

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_shape_checks")]

ROWS = [Row({"tokens": ["She", "saw", "Rome", "."], "feature": ["P", "V", "N", "X"]}, "row")]
PLACES = ["Rome", "Lisbon", "Kyoto", "New York", "Port Said"]
SMALL = ["model.dim=16", "model.heads=2", "model.feed_forward_dim=16", "training.num_train_epochs=1"]


def columns(path: Path, number: int) -> Path:
    """Documents of two sentences with places, parts of speech and labels."""
    lines = []
    for n in range(number):
        lines.append(f"# newdoc id = {n}")
        for verb, place in (("saw", PLACES[n % 5]), ("left", PLACES[n % 3])):
            lines += [f"{'She' if n % 2 else 'He'}\tP\tO", f"{verb}\tV\tO"]
            lines += [f"{word}\tN\t{letter}-LOC" for word, letter in zip(place.split(), "BI", strict=False)]
            lines += [".\tX\tO", ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and their exports: with a wide part, characters, a further feature and windows, and with none of these."""
    base = tmp_path_factory.mktemp("taggers")
    data = [f"data.path={columns(base / 'places.conll', 30)}", "data.validation_fraction=0.3"]
    chosen = {
        # `test_formats.py` has recurrent layers.
        "chunking": [
            *("data.feature_column=2", "data.max_length=12", "data.vocab_size=300", "model.word_buckets=999"),
            *("model.mixers=additive", "model.depth=1"),
        ],
        "sections": ["data.tokens=words", "model.depth=1", "model.mixers=convolution"],
    }
    for name, settings in chosen.items():
        recipe = recipes.load(name, [*data, *SMALL, *settings])
        train(recipe, run=base / name, progress=False)
        found = export(base / name, base / f"{name}-onnx", format="onnx", split="validation")
        assert found.difference < 1e-5
    return base


@pytest.mark.parametrize("name", ["chunking", "sections"])
def test_exports_label_words_as_runs_do(folders: Path, name: str) -> None:
    given: list[Any] = [
        {"tokens": ["She", "saw", "New", "York", ".", "He", "left"], "feature": ["P", "V", "N", "N", "X", "P", "?"]},
        {"tokens": "In Lisbon, she didn't see Kyoto.\nUnseen-Straße \U0001f600 2.000 \u4e2d\u6587 cafe\u0301."},
        {"tokens": " ".join(f"Port Said {n}" for n in range(40))},
        {"tokens": ["left"], "feature": ["V"]},
    ]
    rows = [Row(one, f"row {number}") for number, one in enumerate(given)]
    expected, found = ([one.to_dict() for one in predict(folders / each, rows)] for each in (name, f"{name}-onnx"))
    assert len(found) == len(given)
    for wanted, one in zip(expected, found, strict=True):
        # Scores have 4 digits.
        assert one.pop("scores", None) == pytest.approx(wanted.pop("scores", None), abs=1.01e-4)
        for span in [*(wanted.get("spans") or ()), *(one.get("spans") or ())]:
            span.pop("score")
        assert one == wanted


def test_files_formats_and_bad_rows_are_those_of_the_run(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": ["In", "Rome"]}\n{"tokens": []}\n{"other": 1}\n', encoding="utf-8")
    (tmp_path / "b.txt").write_text("word\n", encoding="utf-8")
    spans = {"text": "Ann left New York.", "entities": [[9, 17, "LOC"]]}
    (tmp_path / "c.jsonl").write_text(json.dumps(spans) + "\n", encoding="utf-8")
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([folders / "places.conll"], {"format": "conll"}),
        ([folders / "places.conll"], {"format": "conll", "overrides": ["data.unit=sentence", "data.max_length=3"]}),
        ([tmp_path / "a.jsonl"], {"format": "conll"}),
        ([tmp_path / "b.txt"], {"format": "spacy"}),
        ([tmp_path / "c.jsonl"], {"format": "label-studio"}),
        (["-"], {"format": "doccano"}),
        (["-"], {"format": "conll", "overrides": ["data.strip=^R"]}),
        ([tmp_path / "none.txt"], {}),
    ]
    for files, given in cases:
        told = []
        for run in ("sections", "sections-onnx"):
            out = io.StringIO()
            try:
                print_predictions(folders / run, files, out, stdin=io.BytesIO(b"In Rome\n\nShe\n"), **given)
            except UserError as error:
                print(error, file=out)
            told.append((out.getvalue(), capsys.readouterr().err))
        assert told[0] == told[1], (files, given)
        assert told[0][0], (files, given)


def test_neither_pytorch_nor_transformers_nor_datasets_is_imported(folders: Path) -> None:
    code = (
        "import sys; from longspan.cli import main; code = main(['predict', *sys.argv[1:]]);"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules]); sys.exit(code)"
    )
    files = [str(folders / "chunking-onnx"), str(folders / "places.conll"), "--format", "conll"]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Lisbon\tB-LOC" in done.stdout or "Lisbon\tO" in done.stdout


def without(name: str) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: arrays.pop(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("keys"), r"other arrays in words\.safetensors"),
        (lambda arrays: arrays.update(begins=np.array(True)), r"other arrays in words\.safetensors"),
        (lambda arrays: arrays.update(keys=arrays["keys"][:0], weight=arrays["weight"][:0]), "other arrays in"),
        (lambda arrays: arrays.update(keys=arrays["keys"][::-1]), "keys in .* that are not in order"),
        (lambda arrays: arrays.update(keys=arrays["keys"].astype(np.float32)), "arrays of other types"),
        (lambda arrays: arrays.update(start=arrays["start"] + np.float32(np.nan)), "not finite"),
        (
            lambda arrays: arrays.update(
                start=arrays["start"] + np.float32(3e38), end=arrays["end"] + np.float32(3e38)
            ),
            "not finite",
        ),
        (without("begins"), r"other arrays in words\.safetensors"),
        (lambda arrays: arrays.update(weight=arrays["weight"][:, :2]), r"other arrays in words\.safetensors"),
        (lambda arrays: arrays.update(weight=arrays["weight"] + np.float32(np.nan)), "not finite"),
        (
            lambda arrays: arrays.update(begins=arrays["begins"][:9], spelling=arrays["spelling"][:9]),
            r"more tokens than words\.safetensors has",
        ),
        (None, r"no words\.safetensors that can be read"),
    ],
)
def test_damaged_arrays_are_told_in_one_sentence(folders: Path, change: Any, words: str) -> None:
    path = folders / "chunking-onnx" / "words.safetensors"
    content = path.read_bytes()
    try:
        if change is None:
            path.write_bytes(content[:100])
        else:
            arrays = load_file(path)
            change(arrays)
            save_file({name: np.array(array, order="C") for name, array in arrays.items()}, path)
        with pytest.raises(UserError, match=f"expected .*{words}"):
            list(predict(folders / "chunking-onnx", ROWS))
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"labels": ["O"] * 3}, "labels must be different names"),
        ({"labels": ["O", "B-LOC"]}, r"other arrays in words\.safetensors"),
        ({"rows": 2**40}, "must be small"),
        ({"rows": 10**6}, "a program that does not run"),
        ({"reach": 10**9}, "must be small"),
        ({"reach": 0}, "a program that does not run"),
        ({"before": [10**6]}, "more tokens than"),
        ({"unknown": 10**6}, "more tokens than"),
        ({"before": "x"}, "before expected a list"),
        ({"data": {}}, "data must have the keys"),
        ({"limits": {"rows": -1}}, "limits must be numbers of tokens"),
        ({"more": 1}, "must have the keys"),
    ],
)
def test_damaged_descriptions_are_told_in_one_sentence(folders: Path, values: dict[str, Any], words: str) -> None:
    path = folders / "chunking-onnx" / "export.json"
    content = path.read_text("utf-8")
    told = json.loads(content)
    try:
        path.write_text(json.dumps({**told, "predict": {**told["predict"], **values}}), encoding="utf-8")
        with pytest.raises(UserError, match=words):
            list(predict(folders / "chunking-onnx", ROWS))
    finally:
        path.write_text(content, encoding="utf-8")


def test_predictions_come_before_the_error_of_a_later_row(folders: Path) -> None:
    def rows() -> Iterator[Row]:
        yield from ROWS * 3
        raise UserError("expected a row")

    found = predict(folders / "chunking-onnx", rows())
    assert [next(found).labels is not None for _ in range(3)] == [True] * 3
    with pytest.raises(UserError, match="expected a row"):
        next(found)


@pytest.mark.parametrize("strip", ["(a+)+$", "(a|a)+b", "a?" * 11, "a{99999999999}", "(" * 101])
def test_a_pattern_that_may_take_for_ever_is_refused(strip: str) -> None:
    given: dict[str, Any] = {"labels": ["O"], "plain": False, "crf": False, "limits": {}, "before": [], "after": []}
    given |= {"unknown": -1, "features": [], "reach": 0, "feature_reach": 0, "rows": 0}
    data = dict.fromkeys(Tagger.reading)
    for good in ("", "^en:", "^(en|de):", r"^\w+:"):
        WordAnswers(**given, data=data | {"strip": good})
    with pytest.raises(UserError, match=r"data\.strip must be"):
        WordAnswers(**given, data=data | {"strip": strip})


def test_what_has_no_program_is_told(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(folders / "sections"), str(tmp_path / "out"), "--format", "torch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected --format onnx with a token classifier" in line
    assert not (tmp_path / "out").exists()
    causal = load_run(folders / "sections")
    causal.model.config.causal = True
    with pytest.raises(UserError, match="expected a token classifier that reads both directions"):
        export(causal, tmp_path / "out", format="onnx")
