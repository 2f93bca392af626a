"""`model.encoder`: training with a pretrained encoder, and what is done with the runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders import WORDS, forbid_reading, make_encoder
from interruptions import interrupted, same_result
from transformers import BertConfig

from longspan import (
    LongspanConfig,
    LongspanForMaskedLM,
    LongspanForSequenceClassification,
    cli,
    compare,
    evaluate,
    predict,
    recipes,
    train,
)
from longspan.data.config import DataConfig
from longspan.data.text.tokenization import build_tokenizer
from longspan.errors import UserError
from longspan.models.window_encoder import WindowEncoder
from longspan.tasks.base.task import Recipe
from longspan.verbs.runs import load_run

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

BERT = BertConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
)
SETTINGS = [
    "data.validation_fraction=0.25",
    "data.test_fraction=0.1",
    "model.wide=false",
    "model.dim=16",
    "model.heads=2",
    "training.num_train_epochs=2",
    "training.min_steps=0",
    "training.max_minutes=0",
    "training.learning_rate=0.02",
    "training.batch_tokens=240",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and documents whose class is a word that stands anywhere in them."""
    folder = tmp_path_factory.mktemp("place")
    make_encoder(folder / "bert", BERT)
    random = np.random.default_rng(0)
    plain = [word for word in WORDS if word not in ("good", "bad")]
    rows = []
    for number in range(60):
        label = ("good", "bad")[number % 2]
        words = random.choice(plain, size=int(random.integers(1, 60))).tolist()
        words.insert(int(random.integers(0, len(words) + 1)), label)
        rows.append(json.dumps({"text": " ".join(words), "label": label}))
    (folder / "data.jsonl").write_text("\n".join(rows))
    return folder


def recipe(place: Path, *more: str) -> Recipe:
    named = [f"data.path={place / 'data.jsonl'}", f"model.encoder={place / 'bert'}"]
    return recipes.load("classify", [*named, *SETTINGS, *more])


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    torch.set_num_threads(1)
    train(recipe(place), run=place / "run", progress=False)
    return place / "run"


@pytest.mark.slow
def test_a_run_learns_and_needs_nothing_else(place: Path, run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    result = json.loads((run / "metrics.json").read_text())
    # Neither the encoder's folder nor a network: a run is moved as a whole.
    moved = shutil.copytree(run, tmp_path / "moved")
    shutil.move(place / "bert", tmp_path / "elsewhere")
    try:
        loaded = load_run(moved)
        scores = evaluate(moved).scores.to_dict()
        assert scores["confusion"] == result["test"]["confusion"]
        # What is computed differs from what was kept by what the batch changes, below the digits of float16.
        assert scores["loss"] == pytest.approx(result["test"]["loss"], rel=2e-3)
        (tmp_path / "one.txt").write_text("the quick fox " * 30 + "good")
        (answer,) = predict(moved, tmp_path / "one.txt")
        assert answer.to_dict()["label"] in ("good", "bad")
        assert loaded.recipe.data.tokens == str(place / "bert")
    finally:
        shutil.move(tmp_path / "elsewhere", place / "bert")


@pytest.mark.slow
def test_epochs_and_other_runs_find_what_was_kept(place: Path, run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    forbid_reading(monkeypatch)
    again = train(recipe(place), run=tmp_path / "again", progress=False)
    assert again.scores["test"].to_dict() == json.loads((run / "metrics.json").read_text())["test"]
    # Other mixers and seeds read the same, and a time budget is planned by it.
    train(recipe(place, "model.mixers=softmax", "training.seed=1"), run=tmp_path / "softmax", progress=False)
    planned = recipe(place, "training.max_minutes=1", "training.num_train_epochs=1")
    train(planned, run=tmp_path / "planned", progress=False)


@pytest.mark.slow
@pytest.mark.usefixtures("compared_here")
def test_comparing_mixers(place: Path, run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    forbid_reading(monkeypatch)
    overrides = [f"data.path={place / 'data.jsonl'}", f"model.encoder={place / 'bert'}", *SETTINGS]
    result = compare("classify", ["additive", "softmax"], 1, overrides, tmp_path / "compared")
    assert [each.error for each in result.runs] == [None, None]


@pytest.mark.slow
def test_an_interrupted_run_goes_on(place: Path, run: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    interrupted(recipe(place), stopped, 3)
    train(recipe(place), run=stopped, resume=True, progress=False)
    same_result(stopped, run)


@pytest.mark.slow
def test_a_trained_encoder(place: Path, tmp_path: Path) -> None:
    before = WindowEncoder.forward
    train(recipe(place, "model.train_encoder=true"), run=tmp_path / "run", progress=False)
    assert WindowEncoder.forward is before
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path / "run")
    fixed = LongspanForSequenceClassification.from_pretrained(place / "run")
    changed = [
        name
        for name, weight in loaded.longspan.window_encoder.named_parameters()
        if not torch.equal(weight, fixed.longspan.window_encoder.get_parameter(name))
    ]
    assert any("attention" in name for name in changed)
    assert any("word_embeddings" in name for name in changed)


@pytest.mark.slow
def test_with_counts_of_n_grams_beside_it(place: Path, tmp_path: Path) -> None:
    train(recipe(place, "model.wide=true", "model.wide_buckets=512"), run=tmp_path / "run", progress=False)
    assert evaluate(tmp_path / "run").scores.accuracy > 0.9


def test_a_run_of_ours_as_encoder(place: Path, tmp_path: Path) -> None:
    data = DataConfig(tokens="words", vocab_size=100)
    tokenizer = build_tokenizer(data, [" ".join(WORDS)])
    tokenizer.save_pretrained(tmp_path / "encoder")
    config = LongspanConfig(vocab_size=len(tokenizer), dim=16, depth=1, heads=2)
    LongspanForMaskedLM(config).save_pretrained(tmp_path / "encoder")
    named = f"model.encoder={tmp_path / 'encoder'}"
    train(recipe(place, named, "training.max_steps=1"), run=tmp_path / "run", progress=False)
    assert load_run(tmp_path / "run").model.config.embeddings.encoder_config["model_type"] == "longspan"


@pytest.mark.slow
def test_questions(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The encoder reads question and document together, whatever the mixers do: what was kept is what is computed."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(40):
        words = random.choice(WORDS, size=20).tolist()
        context = " ".join(words)
        answer = {"text": [words[7]], "answer_start": [len(" ".join(words[:7])) + 1]}
        rows.append(json.dumps({"question": words[6], "context": context, "answers": answer, "id": str(number)}))
    (tmp_path / "questions.jsonl").write_text("\n".join(rows))
    named = [f"data.path={tmp_path / 'questions.jsonl'}", f"model.encoder={place / 'bert'}", "model.question=context"]
    named += ["data.validation_fraction=0.25", "model.dim=16", "model.heads=2", "model.short_convolution=0"]
    named += ["model.mixers=linear", "training.min_steps=0"]
    made = recipes.load("question-answering", [*named, "training.num_train_epochs=2"])
    result = train(made, run=tmp_path / "run", progress=False)
    scores = evaluate(tmp_path / "run", split="validation").scores.to_dict()
    assert scores["loss"] == pytest.approx(result.scores["validation"].to_dict()["loss"], rel=2e-3)
    forbid_reading(monkeypatch)
    planned = recipes.load("question-answering", [*named, "training.max_minutes=1", "training.num_train_epochs=1"])
    train(planned, run=tmp_path / "planned", progress=False)


@pytest.mark.parametrize("name", ["classify", "imdb", "quickstart"])
def test_its_tokens_replace_those_of_the_recipe(name: str) -> None:
    found = recipes.load(name, ["data.path=x", "model.encoder=some/encoder"])
    assert found.data.tokens == "some/encoder"
    assert not found.data.lowercase
    assert "ngrams" not in found.model


def test_a_recipe_file_says_it_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[data]\npath = "x"\n[model]\nencoder = "some/encoder"\n')
    found = recipes.load(str(path))
    assert found.data.tokens == "some/encoder"
    (tmp_path / "again.toml").write_text(found.to_toml())
    assert recipes.load(str(tmp_path / "again.toml")).to_toml() == found.to_toml()
    assert recipes.load(str(path), ["model.encoder="]).data.tokens == "bpe"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.encoder=missing/there"],
            "expected the folder of a pretrained model with safetensors files or",
        ),
        (["model.encoder=bert/tokenizer.jsn"], "model.encoder: there is no file or folder 'bert/tokenizer.jsn'; did"),
        (["model.encoder=./brt"], "model.encoder: there is no file or folder 'brt'; did you mean 'bert'?"),
        (
            ["model.encoder=./bert", "data.tokens=words"],
            "expected the tokens of the encoder './bert', got",
        ),
        (
            ["model.encoder=./bert", "model.ngrams=2"],
            "expected model.ngrams only without encoder, got ngrams=[2] with encoder=",
        ),
        (
            ["model.encoder=./bert", "model.encoder_window=99"],
            "model.encoder_window to be at most 16, which",
        ),
        (["model.encoder=./bert", "training.word_vectors=x"], "expected training.word_vectors or model.encoder, whose"),
        (["model.encoder_window=9"], "encoder_window needs model.encoder, got encoder_window=9 without it"),
        (["model.train_encoder=true"], "train_encoder needs model.encoder, got train_encoder=True without it"),
        (["model.encoder=./bert", "model.encoder_config={}"], "model.encoder_config is set from the data; leave it"),
        (
            ["model.encoder=./pickled"],
            "expected the folder of a pretrained model with safetensors files or",
        ),
        (
            ["model.encoder=./adapted"],
            "a whole model as model.encoder, got adapters of PEFT in './adapted'; merge",
        ),
        (["model.encoder=./coded"], "expected the folder of a pretrained model with safetensors files or"),
        (
            ["model.encoder=./small"],
            "expected a tokenizer of at most 20 tokens, as the encoder './small' has",
        ),
        (
            ["model.encoder=./other"],
            "expected the weights of a BertModel in './other', got none of the right",
        ),
    ],
)
def test_mistakes(
    overrides: list[str],
    message: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("pickled", "adapted", "coded", "small", "other"):
        shutil.copytree(place / "bert", tmp_path / name)
    shutil.copytree(place / "bert", tmp_path / "bert")
    shutil.copy(place / "data.jsonl", tmp_path)
    weights = tmp_path / "pickled/model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    (tmp_path / "adapted/adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    for name, more in (
        ("coded", {"model_type": "evil", "auto_map": {"AutoConfig": "evil.E", "AutoModel": "evil.M"}}),
        ("small", {"vocab_size": 20}),
        ("other", {"hidden_size": 32}),
    ):
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "classify", "data.path=data.jsonl", *SETTINGS, *overrides, "--run", "run"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("longspan: ")
    assert message in last
    assert not Path("run").exists()


@pytest.mark.slow
def test_it_is_no_start_and_starts_with_none(place: Path, run: Path, tmp_path: Path, capsys: Any) -> None:
    data = [f"data.path={place / 'data.jsonl'}", f"model.start_from={run}", "--run", str(tmp_path / "new")]
    assert cli.main(["train", "classify", *data]) == 2
    assert "expected a run with embeddings of its own to start from, got" in capsys.readouterr().err
    assert cli.main(["train", "classify", *data, f"model.encoder={place / 'bert'}"]) == 2
    assert "/run' (model.start_from); leave one of them out." in capsys.readouterr().err


def test_language_models_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some text")
    assert cli.main(["train", "model-text", f"data.path={tmp_path}", "model.encoder=x"]) == 2
    assert "expected model.causal only without a pretrained encoder" in capsys.readouterr().err


@pytest.mark.slow
def test_no_program_is_made_of_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(run)]) == 2
    assert "which reads documents in windows; use it with longspan." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"auto_map": {"AutoModel": "evil.Evil"}}, "settings of a BertConfig in encoder_config, got 'auto_map'"),
        ({"_attn_implementation": "kernels-community/x"}, "encoder_config, got '_attn_implementation'; restore"),
        ({"model_type": "yoso"}, "BertConfig|YosoConfig"),
        ({"num_hidden_layers": 10**9}, "at most 1000 layers, got 1000000000"),
        ({"hidden_size": 64}, "the weights in .* do not fit its config.json"),
        ({"hidden_size": -1}, "."),
        ({"model_type": 3}, "expected an encoder that transformers knows, got one of type 3"),
    ],
)
def test_a_strangers_run_executes_nothing(more: dict[str, Any], message: str, run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    path = copy / "config.json"
    values = json.loads(path.read_text())
    values["embeddings"]["encoder_config"] |= more
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        load_run(copy)


@pytest.mark.slow
def test_a_strangers_recipe_reads_no_encoder(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    path = copy / "recipe.toml"
    path.write_text(path.read_text().replace(str(run.parent / "bert"), "https://example.org/evil"))
    monkeypatch.setattr("longspan.data.text.encoders.AutoConfig", None)
    assert load_run(copy).recipe.model["encoder"] == "https://example.org/evil"
