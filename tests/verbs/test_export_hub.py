"""Exports for the Hub: transformers loads them in processes where nothing has imported longspan."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import interpreters
import pytest
import torch
from language_runs import make_run
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from longspan import LongspanForEvidence, LongspanForSequenceClassification, cli, export, recipes, tasks, train
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.mixers import Mixer
from longspan.models import LongspanConfig
from longspan.programs import hub
from longspan.report.card import model_card
from longspan.results import TrainingResult
from longspan.tasks.base.task import Recipe, Run
from longspan.tasks.language_modelling.scores import LanguageScores
from longspan.verbs.runs import load_run

TEXT = "The first text. A second, somewhat longer one. "
TASKS = {
    "language_modelling": "AutoModelForCausalLM",
    "masked_words": "AutoModelForMaskedLM",
    "question_answering": "AutoModelForQuestionAnswering",
    "translation": "AutoModelForSeq2SeqLM",
    "document_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
}


def loaded(task_name: str, folder: Path, **model: Any) -> Run[Any, Any]:
    """Return a run of a model that was not trained; its folder is empty."""
    folder.mkdir(parents=True)
    task = tasks.load(task_name)
    data: Any = task.data_config(path="nowhere.csv")
    tokenizer = build_tokenizer(data, [TEXT * 4], end=True, mask=task_name == "masked_words")
    settings = {"dim": 16, "depth": 1, "heads": 2, "causal": task_name == "language_modelling", **model}
    torch.manual_seed(0)
    kind: Any = task.model_class
    config = kind.configured(vocab_size=len(tokenizer), initializer_range=0.3, **settings)
    return Run(folder, kind(config).eval(), TextProcessor(tokenizer), Recipe("made", task, data, settings))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with the card of a run."""
    folder = make_run(tmp_path_factory.mktemp("hub") / "run", TEXT * 20)
    task = tasks.load("language_modelling")
    scores = LanguageScores(loss=1.5, perplexity=4.5, bits_per_byte=2.2, bits_per_character=2.2)
    result = TrainingResult(
        task=task.name, folder=str(folder), scores={"test": scores}, history=[], kept_epoch=1.0, steps=1, processes=1,
        tokens_per_second=1.0, padding_fraction=0.0, peak_memory_bytes=1, parameters=1, seconds=1.0,
        word_vectors_found=None, data={},
    )  # fmt: skip
    recipe = recipes.load(str(folder / "recipe.toml"))
    card = model_card(dataclasses.replace(recipe, name="run"), result, ["additive"], "(nothing)")
    (folder / "README.md").write_text(card, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def exported(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(export(run_dir, tmp_path_factory.mktemp("hub") / "exported", format="hub").folder)


_LOADING = """\
import json, os, sys
import torch, transformers

said = {}
for name, auto in TASKS.items():
    first = not said
    assert ("longspan" in sys.modules) != first
    model = getattr(transformers, auto).from_pretrained(f"{FOLDER}/{name}", trust_remote_code=True).eval()
    body = transformers.AutoModel.from_pretrained(f"{FOLDER}/{name}", trust_remote_code=True)
    with torch.no_grad():
        ids = torch.tensor([[3, 4, 5]])
        target = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        said[name] = [type(model).__name__, type(body).__name__, model(ids, **target)[0].tolist()]
# What is saved now has no files of longspan itself.
from longspan.models import LongspanConfig
assert LongspanConfig._auto_class is model._auto_class is None
model.save_pretrained(f"{FOLDER}/again")
assert sorted(os.listdir(f"{FOLDER}/again")) == ["config.json", "model.safetensors", "modeling_longspan.py"]
print(json.dumps(said))
"""


def test_each_head_loads_by_its_auto_class_where_nothing_imports_longspan(tmp_path: Path) -> None:
    runs = {name: loaded(name, tmp_path / "runs" / name) for name in TASKS}
    for name, run in runs.items():
        result = export(run, tmp_path / name, format="hub")
        assert isinstance(result, hub.HubExport)
        assert result.auto_model == TASKS[name]
        assert result.difference < 1e-5
    printed = interpreters.printed(f"TASKS, FOLDER = {TASKS}, {str(tmp_path)!r}\n{_LOADING}")
    for name, (head, body, found) in json.loads(printed.splitlines()[-1]).items():
        model = runs[name].model
        assert head == type(model).__name__
        assert body == "LongspanModel"
        ids = torch.tensor([[3, 4, 5]])
        target = {"decoder_input_ids": ids} if name == "translation" else {}
        with torch.no_grad():
            expected: Tensor = model(ids, **target)[0]
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)


def test_a_saved_copy_loads_as_the_export_does(exported: Path, tmp_path: Path) -> None:
    loading = "AutoModelForCausalLM.from_pretrained(NAME, trust_remote_code=True)"
    code = "from transformers import AutoModelForCausalLM\nprint(type(MODEL).__name__)".replace("MODEL", loading)
    model = AutoModelForCausalLM.from_pretrained(exported)
    model.save_pretrained(tmp_path / "again")
    assert interpreters.printed(code.replace("NAME", repr(str(tmp_path / "again")))).split() == ["LongspanForCausalLM"]
    # From a repository of the Hub, `auto_map` names that one.
    model.config.auto_map = {key: f"OWNER/NAME--{name}" for key, name in model.config.auto_map.items()}
    model.save_pretrained(tmp_path / "named")
    assert not (tmp_path / "named" / "modeling_longspan.py").exists()


def test_a_run_folder_has_no_code_and_an_export_nothing_else(run_dir: Path, exported: Path) -> None:
    assert not list(run_dir.rglob("*.py"))
    assert "auto_map" not in json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
    assert {path.name for path in exported.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "modeling_longspan.py",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    for path in exported.iterdir():
        # Neither where the run was nor where the data were.
        assert str(run_dir.parent).encode() not in path.read_bytes()
    module = (exported / "modeling_longspan.py").read_text(encoding="utf-8")
    assert set(re.findall(r"(?:from|import) (\S+) import", module)) == {"longspan.models"}


def test_whoever_imports_longspan_need_not_trust_the_folder(exported: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=False)
    assert type(model).__module__.startswith("longspan.")
    assert LongspanConfig._auto_class is None


def test_the_lines_of_the_card_run(exported: Path) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert "import longspan" not in code
    assert interpreters.printed(code.replace("max_new_tokens=200", "max_new_tokens=5"), exported).strip()
    assert "bits per character" in card
    assert "pip install longspan" in card
    assert "library_name: transformers" in card
    # What is not in the folder.
    for missing in ("learning_curve.png", "recipe.toml", "longspan predict", "longspan generate"):
        assert missing not in card


def test_a_run_without_a_card_gets_one_that_loads(tmp_path: Path) -> None:
    run = loaded("document_classification", tmp_path / "run")
    export(run, tmp_path / "out", format="hub")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.DOTALL)
    assert interpreters.printed(f"{code}\nprint(type(model).__name__)", tmp_path / "out").split() == [
        "LongspanForSequenceClassification"
    ]


def test_an_encoder_and_a_decoder_are_checked_within_the_reach_of_each(tmp_path: Path) -> None:
    both = {"position": "learned", "mixers": ["linformer"], "decoder_mixers": ["softmax"], "max_positions": 40}
    options = {"mixer_options": {"linformer": {"max_length": 30}}, "copy": True}
    run = loaded("translation", tmp_path / "run", **both, **options)
    sizes = [{name: tuple(ids.shape) for name, ids in inputs.items()} for inputs in hub._inputs(run.model)]
    assert sizes == [
        {"input_ids": (1, 1), "decoder_input_ids": (1, 1)},
        {"input_ids": (2, 30), "decoder_input_ids": (2, 40)},
    ]
    assert export(run, tmp_path / "out", format="hub").difference < 1e-5
    # Weights of the decoder count.
    other = loaded("translation", tmp_path / "other", **both, **options).model
    other.copying.gate.bias.data.add_(1)
    with pytest.raises(UserError, match="expected the exported model to give what the run's gives"):
        hub._difference(run.model, other, hub._inputs(run.model)[1], 1e-4)


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_an_encoder_and_a_decoder_are_no_program(tmp_path: Path, format: str) -> None:
    run = loaded("translation", tmp_path / "run")
    with pytest.raises(UserError, match=r"got one with an encoder and a decoder, .*; export it with --format hub\."):
        export(run, tmp_path / "out", format=format)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_the_lines_of_a_translation_card_run(tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    rows = [json.dumps({"source": f"one {number}", "target": f"eins {number}"}) for number in range(20)]
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    small = ["model.dim=8", "model.heads=2", "model.depth=1", "data.tokens=bytes", "training.max_steps=1"]
    recipe = recipes.load("translation", [f"data.path={data}", *small, "training.max_minutes=0"])
    train(recipe, run=tmp_path / "run", progress=False)
    export(tmp_path / "run", tmp_path / "out", format="hub")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.DOTALL)
    assert "import longspan" not in code
    assert interpreters.printed(code.replace("max_new_tokens=200", "max_new_tokens=5"), tmp_path / "out").strip()


_CLASSIFYING = """\
import json
from transformers import pipeline

classify = pipeline("text-classification", model="out", trust_remote_code=True)
print(json.dumps([classify(TEXT, truncation=True), classify(LAST)]))
"""


def test_a_pipeline_cuts_texts_where_the_run_does(animals: Path, tmp_path: Path) -> None:
    settings = [f"data.path={animals}", "data.tokens=words", "data.max_length=3", "data.keep=last"]
    recipe = recipes.load("quickstart", [*settings, "model.dim=16", "model.heads=2", "model.depth=1"])
    tokenizer = build_tokenizer(recipe.data, ["word1 word2 purr bark"])
    config = LongspanForSequenceClassification.configured(
        vocab_size=len(tokenizer), id2label={0: "cat", 1: "dog"}, initializer_range=0.5, **recipe.model
    )
    run = Run(tmp_path, LongspanForSequenceClassification(config).eval(), TextProcessor(tokenizer), recipe)
    export(run, tmp_path / "out", format="hub")
    cut = interpreters.printed(
        f"TEXT, LAST = 'word2 word1 purr bark word1', 'purr bark word1'\n{_CLASSIFYING}", tmp_path
    )
    text, last = json.loads(cut.splitlines()[-1])
    assert text == last
    assert text[0]["label"] in ("cat", "dog")


def test_a_missing_package_is_named(exported: Path) -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'longspan':\n"
        "            raise ModuleNotFoundError('no longspan', name=name)\n"
        "sys.meta_path.insert(0, Missing)\n"
        "from transformers import AutoConfig\n"
        "try:\n"
        "    AutoConfig.from_pretrained('.', trust_remote_code=True)\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert interpreters.printed(code, exported).strip() == (
        "This model expected the package 'longspan', which is not installed: `pip install longspan`."
    )


class Mine(Mixer):
    """A mixer from elsewhere."""

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return x

    def operations(self, length: int) -> int:
        return 0


def test_code_of_others_is_refused(tmp_path: Path) -> None:
    run = loaded("document_classification", tmp_path / "run", mixers=[f"{__name__}.Mine"])
    message = rf"expected a model made of longspan's own parts to export for the Hub, got the mixer '{__name__}.Mine'"
    with pytest.raises(UserError, match=message):
        export(run, tmp_path / "out", format="hub")

    both = loaded("translation", tmp_path / "both")
    both.model.decoder.config.mixers = [f"{__name__}.Mine"]
    with pytest.raises(UserError, match=message):
        export(both, tmp_path / "out", format="hub")

    class Other(LongspanForSequenceClassification):
        pass

    plain = loaded("document_classification", tmp_path / "plain")
    with pytest.raises(UserError, match=r"got the model '.*Other', whose code an export does not contain"):
        export(Run(plain.folder, Other(plain.model.config), plain.processor, plain.recipe), format="hub")
    assert not (tmp_path / "out").exists()
    assert not list(plain.folder.iterdir())


def test_models_without_an_auto_class_are_refused(tmp_path: Path) -> None:
    run = loaded("document_classification", tmp_path / "run")
    other = Run(run.folder, LongspanForEvidence(run.model.config), run.processor, run.recipe)
    with pytest.raises(UserError, match=r"that an Auto class of transformers loads .*, got a LongspanForEvidence"):
        export(other, format="hub")
    nothing: Any = object()
    with pytest.raises(UserError, match=r"expected a run that reads text with a tokenizer .*, got one with a object"):
        export(Run(run.folder, run.model, nothing, run.recipe), format="hub")


@pytest.mark.parametrize("flag", [["--int8"], ["--data", "x.csv"], ["--split", "test"]])
def test_flags_of_programs_are_refused(run_dir: Path, flag: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(run_dir), "--format", "hub", *flag]) == 2
    assert f"expected {flag[0]} with a program (--format torch or onnx)" in capsys.readouterr().err
    assert not (run_dir / "export-hub").exists()


def test_the_command_writes_and_replaces(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["export", str(run_dir), str(out), "--format", "hub"]) == 0
    assert f"AutoModelForCausalLM.from_pretrained({str(out)!r}, trust_remote_code=True)" in capsys.readouterr().out
    assert cli.main(["export", str(run_dir), str(out), "--format", "hub"]) == 2
    assert "replace it with --overwrite" in capsys.readouterr().err
    assert cli.main(["export", str(run_dir), str(out), "--format", "hub", "--overwrite", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["format"] == "hub"
    assert told["auto_model"] == "AutoModelForCausalLM"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_weights_that_are_not_the_models_are_not_left_behind(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = hub._save_tokenizer

    def damage(folder: Path, *arguments: Any) -> Any:
        run = load_run(run_dir)
        run.model.get_input_embeddings().weight.data.mul_(2)
        run.model.save_pretrained(folder)
        return usual(folder, *arguments)

    monkeypatch.setattr(hub, "_save_tokenizer", damage)
    with pytest.raises(UserError, match="expected the exported model to give what the run's gives"):
        export(run_dir, tmp_path / "out", format="hub")
    assert not list(tmp_path.iterdir())


def test_the_tokenizer_is_the_runs(run_dir: Path, exported: Path) -> None:
    ours, theirs = AutoTokenizer.from_pretrained(run_dir), AutoTokenizer.from_pretrained(exported)
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert ours.truncation_side == theirs.truncation_side == "right"
