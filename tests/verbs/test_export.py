"""Exported programs: they run without longspan, give what the model gives, and say what 8 bits cost."""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import interpreters
import pytest
import torch
from language_runs import make_run
from torch import Tensor

from longspan import LongspanConfig, LongspanForSequenceClassification, cli, export, predict, recipes
from longspan.data.sources.formats.rows import Row
from longspan.data.text.processor import tokenizer_of
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.machine.locks import lock_folder
from longspan.mixers import Mixer
from longspan.programs import making, onnx
from longspan.programs.exported import Export, Int8, summary
from longspan.tasks.base.classes import ClassificationScores
from longspan.verbs.runs import load_run

# `longspan.verbs.export` is the module or, once it is used, the function.
verb = importlib.import_module("longspan.verbs.export")
# torch.export cannot follow the suite's checks of shapes, and what it notes of calls must not be given away.
pytestmark = pytest.mark.usefixtures("no_shape_checks", "notes_of_calls")
_NO_SCORES = {
    "accuracy": 0.0,
    "macro_f1": 0.0,
    "calibration_error": 0.0,
    "loss": 0.0,
    "per_class": {},
    "confusion": [],
    "reliability": [],
}


@pytest.fixture(scope="module")
def run_dir(animals, tmp_path_factory):
    """A classifier that was not trained."""
    folder = tmp_path_factory.mktemp("exported") / "animals"
    settings = [f"data.path={animals}", "data.tokens=words", "data.max_length=30", "data.keep=last"]
    recipe = recipes.load("quickstart", [*settings, "model.dim=16", "model.heads=2", "model.depth=1"])
    tokenizer = build_tokenizer(recipe.data, ["first second text somewhat longer one word1 word2 purr bark"])
    config = LongspanForSequenceClassification.configured(
        vocab_size=len(tokenizer), id2label={0: "cat", 1: "dog"}, **recipe.model
    )
    LongspanForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    return folder


def printed_by_readme(folder: Path) -> list[list]:
    """Run the lines of a README where longspan cannot be imported, and return what they print."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    alone = "import sys, warnings\nsys.modules['longspan'] = None\nwarnings.simplefilter('error', UserWarning)\n"
    return [json.loads(line) for line in interpreters.printed(alone + code, folder).splitlines()]


def answers(run_dir: Path, texts: list[str]) -> list[list]:
    rows = [Row({"text": text}, "row") for text in texts]
    return [
        [text, found.label, max(found.probabilities.values())]
        for text, found in zip(texts, predict(run_dir, rows), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_the_lines_of_the_readme_answer_as_the_run_does(run_dir, tmp_path, format):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    result = export(run_dir, tmp_path / "out", format=format)
    assert result.difference < 1e-5
    assert (1, 1) in result.checked
    assert max(length for _, length in result.checked) == 30
    printed = printed_by_readme(tmp_path / "out")
    expected = answers(run_dir, [text for text, *_ in printed])
    for found, wanted in zip(printed, expected, strict=True):
        assert found[:2] == wanted[:2]
        assert found[2] == pytest.approx(wanted[2], abs=1e-4)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["labels"] == ["cat", "dog"]
    # No path of this machine is in the program, which may be given away.
    assert str(Path(str(verb.__file__)).parent.parent).encode() not in (tmp_path / "out" / result.file).read_bytes()


@pytest.mark.slow
def test_a_language_model_gives_the_scores_of_each_token(tmp_path):
    text = "The first text. A second, somewhat longer one. " * 20
    run = make_run(tmp_path / "run", text, mixer="convolution", carry_states=False)
    result = export(run, split="validation")
    assert result.folder == str(run / "export-torch")
    printed = printed_by_readme(run / "export-torch")
    loaded = load_run(run)
    for said, token in printed:
        ids = [tokenizer_of(loaded.processor).eos_token_id, *tokenizer_of(loaded.processor)(said)["input_ids"]]
        with torch.no_grad():
            likeliest = loaded.model(torch.tensor([ids])).logits[0, -1].argmax()
        assert token == tokenizer_of(loaded.processor).decode([int(likeliest)])


@pytest.mark.slow
def test_8_bits_say_what_they_cost(run_dir, tmp_path, capsys):
    assert cli.main(["export", str(run_dir), str(tmp_path / "out"), "--int8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checked"][0] == [1, 30]
    assert told["int8"]["layers"] > 0
    assert told["int8"]["documents"] == 48
    assert set(told["int8"]["before"]) == set(told["int8"]["after"]) >= {"accuracy"}
    assert told["int8"]["speedup"] == pytest.approx(told["int8"]["float32_seconds"] / told["int8"]["seconds"])
    assert (tmp_path / "out" / "model.pt2").stat().st_size == told["bytes"]
    assert printed_by_readme(tmp_path / "out")


def test_what_is_printed_about_8_bits():
    before = ClassificationScores.from_dict({**_NO_SCORES, "accuracy": 0.9})
    after = dataclasses.replace(before, accuracy=0.875)
    cost = Int8(4, "test", 40, before, after, 3_000_000, 0.2, 0.1)
    result = Export("t", "torch", "out", "model.pt2", 1_000_000, 30, "x.csv", [(1, 30), (8, 20)], 1e-3, cost)
    words = " ".join(summary(result).split())
    assert "accuracy gets worse by 0.025; 2.00 times as fast as in float32" in words
    assert "1.0 MB instead of 3.0 MB" in words
    assert "1 to 8 texts of 1 to 30 tokens" in words
    slow = dataclasses.replace(result, int8=dataclasses.replace(cost, after=before, seconds=0.4))
    words = " ".join(summary(slow).split())
    assert "accuracy does not change; slower than in float32 on this machine, which is 2.00 times as fast" in words


@pytest.mark.slow
def test_a_program_that_gives_something_else_is_not_left_behind(run_dir, tmp_path, monkeypatch):
    def wrong(path: Path) -> making.Runner:
        run = making.load_torch(path)
        return lambda ids, mask: run(ids, mask) + 0.01

    monkeypatch.setitem(verb.FORMATS, "torch", ("model.pt2", making.save_torch, wrong))
    with pytest.raises(UserError, match=r"a difference of 1\.0e-02 on 1 texts of up to 30 tokens; nothing is written"):
        export(run_dir, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_nothing_but_exports_is_replaced(run_dir, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UserError, match=r"exists; choose another folder, or replace it with --overwrite"):
        export(run_dir, out)
    (out / "mine.txt").touch()
    with pytest.raises(UserError, match=r"expected an exported model in .* got something else"):
        export(run_dir, out, overwrite=True)
    (out / "export.json").touch()
    # What exports left that were killed goes away, and what another one is writing stays.
    for name in (".out-killed", ".out-working"):
        (tmp_path / name / "fresh").mkdir(parents=True)
    with lock_folder(tmp_path / ".out-working", "an export"):
        export(run_dir, out, overwrite=True)
    assert not (out / "mine.txt").exists()
    assert (out / "model.pt2").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out-working", "out"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["RUN", "--format", "onx"], "there is no format 'onx'; did you mean 'onnx'?"),
        (["RUN", "--split", "dev"], "expected a split 'dev'"),
        (["RUN", "--data", "nothing.csv"], "nothing.csv"),
        (["nowhere"], "there is no run folder 'nowhere'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(run_dir, arguments, words, capsys):
    assert cli.main(["export", *(str(run_dir) if word == "RUN" else word for word in arguments)]) == 2
    # Bars of reading are shown by the first test of a process that reads these documents.
    told = [line for line in capsys.readouterr().err.splitlines() if line and "examples" not in line]
    assert len(told) == 1
    assert words in told[0]
    assert not (run_dir / "export-torch").exists()


def test_missing_packages_are_told_before_the_run_is_read(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'onnxscript.* not installed; .*`pip install "longspan\[export\]"`'):
        export("nowhere", format="onnx")


class Deciding(Mixer):
    """A mixer whose operations depend on values, which no program can."""

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x if float(x.sum()) > 0 else -x

    def operations(self, length: int) -> int:
        return 0


def test_a_mixer_that_depends_on_values_is_named():
    config = LongspanConfig(vocab_size=9, dim=8, depth=1, mixers=[f"{__name__}.Deciding"])
    model = LongspanForSequenceClassification(config).eval()
    with pytest.raises(UserError, match=r"expected mixers that torch.export can export with dynamic shapes.*Deciding"):
        making.export_program(model, None)


@pytest.mark.slow
def test_operators_that_onnx_lacks_are_told(tmp_path):
    pytest.importorskip("onnxscript")

    class Special(torch.nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return torch.special.bessel_j0(input_ids.double())

    program = torch.export.export(Special(), (torch.ones(2, 3).long(), torch.ones(2, 3).long()))
    with pytest.raises(UserError, match=r"operations ONNX has, got others \(.*bessel.*; export with --format torch"):
        onnx.save_onnx(program, tmp_path / "model.onnx")
