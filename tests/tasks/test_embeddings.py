"""Frozen sentence embeddings with linear models, against scikit-learn written out."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from model2vec import StaticModel
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score, log_loss
from sklearn.preprocessing import StandardScaler
from tokenizers import Tokenizer, models, pre_tokenizers

from longspan import recipes
from longspan.errors import UserError
from longspan.machine import imports
from longspan.tasks.base.baselines import embeddings
from longspan.tasks.base.baselines.embeddings import STRENGTHS
from longspan.tasks.document_regression.baselines.embeddings import PENALTIES
from longspan.verbs import fitting

KINDS = {"cat": "purr meow", "dog": "bark wag", "cow": "moo chew"}
FILLER = [f"word{number}" for number in range(40)]
VOCABULARY = {word: number for number, word in enumerate([*FILLER, *" ".join(KINDS.values()).split(), "[UNK]"])}
VECTORS = np.random.default_rng(0).normal(1, 3, (len(VOCABULARY), 12)).astype(np.float32)
VECTORS[VOCABULARY["[UNK]"]] = 100
#: By split, what numbers its documents.
SPLITS = {"train": range(90), "validation": range(1000, 1040), "test": range(2000, 2060)}


def model(folder, **settings):
    """Save a model of model2vec, which by default reads 7 tokens."""
    tokens = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    StaticModel(VECTORS, tokens, max_length=7, **settings).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    return model(tmp_path_factory.mktemp("static"))


def documents(kinds=tuple(KINDS)):
    """Documents by split, of words that are mostly noise: the kind that only one or two words tell, and their value."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for split, numbers in SPLITS.items():
        found[split] = []
        for number in numbers:
            random = np.random.default_rng(number)
            kind = kinds[number % len(kinds)]
            words = [*random.choice(FILLER, 10 + number % 7), *random.choice(KINDS[kind].split(), 2), "unheard"]
            if number % 5 == 0:
                words[-2] = random.choice(KINDS[kinds[0]].split())
            found[split].append((" ".join(words), kind, number))
    return found


def embedded(text):
    """The mean of what is known."""
    known = [VECTORS[VOCABULARY[word]] for word in text.split() if word in VOCABULARY]
    return np.mean(known, 0) if known else np.zeros(VECTORS.shape[1])


def features(found):
    raw = {split: np.array([embedded(text) for text, *_ in rows]) for split, rows in found.items()}
    scaler = StandardScaler().fit(raw["train"])
    return {split: scaler.transform(matrix) for split, matrix in raw.items()}


def fit(static, recipe, folder, found, column, target, *overrides):
    """Fit the baseline to files of the splits."""
    paths = []
    for split, rows in found.items():
        path = Path(folder, f"{split}.jsonl")
        path.write_text("\n".join(json.dumps({"text": row[0], column: target(*row)}) for row in rows))
        paths.append(f"data.{split}={path}")
    made = fitting.recipe_of(recipes.load(recipe, [*paths, *overrides]))
    return fitting.find(made.task, f"embeddings:{static}").fit(made)


@pytest.mark.parametrize("kinds", [("cat", "dog"), ("cat", "cow", "dog")])
def test_classes(static, tmp_path, kinds):
    rows = documents(kinds)
    given = static, "classify", tmp_path, rows, "label", lambda text, kind, _: kind
    result = fit(*given, "data.max_length=2")
    x, y = features(rows), {split: np.array([kinds.index(kind) for _, kind, _ in part]) for split, part in rows.items()}
    reference = {C: LogisticRegression(C=C, max_iter=1000).fit(x["train"], y["train"]) for C in STRENGTHS}
    losses = {C: log_loss(y["validation"], each.predict_proba(x["validation"])) for C, each in reference.items()}
    best = max(STRENGTHS, key=lambda C: (reference[C].score(x["validation"], y["validation"]), -losses[C]))
    assert result.chosen == {"C": best}
    for split in ("validation", "test"):
        assert result.scores[split].accuracy == pytest.approx(reference[best].score(x[split], y[split]))
        loss = log_loss(y[split], reference[best].predict_proba(x[split]))
        # The vectors are float32, and the solver stops at a tolerance of 1e-4.
        assert result.scores[split].loss == pytest.approx(loss, abs=1e-3)
    assert 0.5 < result.scores["test"].accuracy < 1
    assert result.parameters == 13 * (1 if len(kinds) == 2 else 3)
    assert fit(*given).scores == result.scores


def test_labels(static, tmp_path):
    rows = documents()
    result = fit(static, "multi-label", tmp_path, rows, "labels", lambda _, kind, n: [kind] + ["odd"] * (n % 2))
    x, names = features(rows), ["cat", "cow", "dog", "odd"]
    y = {
        split: np.array([[name in (kind, "odd" if n % 2 else "") for name in names] for _, kind, n in part])
        for split, part in rows.items()
    }

    def odds(C, split):
        each = (LogisticRegression(C=C, max_iter=1000).fit(x["train"], column) for column in y["train"].T)
        return np.stack([model.decision_function(x[split]) for model in each], -1)

    averages = {C: average_precision_score(y["validation"], odds(C, "validation")) for C in STRENGTHS}
    chosen = result.chosen["C"]
    assert averages[chosen] == pytest.approx(max(averages.values()))
    average = average_precision_score(y["test"], odds(chosen, "test"))
    assert result.scores["test"].mean_average_precision == pytest.approx(average, abs=1e-4)
    likely = np.logaddexp(0, np.where(y["test"], -1, 1) * odds(chosen, "test")).mean()
    assert result.scores["test"].loss == pytest.approx(likely, abs=1e-3)
    # Thresholds are those of the validation split.
    of_validation, of_test = (
        [row["threshold"] for row in result.scores[split].per_label.values()] for split in ("validation", "test")
    )
    assert of_validation == of_test != [0.5] * 4
    assert result.parameters == 13 * 4


def test_numbers(static, tmp_path):
    values = {"cat": 1000.0, "dog": 3000.0, "cow": 9000.0}
    rows = documents()
    result = fit(static, "regression", tmp_path, rows, "label", lambda _, kind, n: values[kind] + n % 10)
    x, y = features(rows), {split: np.array([values[kind] + n % 10 for _, kind, n in rows[split]]) for split in rows}
    mean, scale = y["train"].mean(), y["train"].std()
    reference = {penalty: Ridge(alpha=penalty).fit(x["train"], (y["train"] - mean) / scale) for penalty in PENALTIES}
    errors = {
        split: {
            penalty: np.abs(each.predict(x[split]) * scale + mean - y[split]).mean()
            for penalty, each in reference.items()
        }
        for split in ("validation", "test")
    }
    chosen = result.chosen["alpha"]
    assert chosen == min(PENALTIES, key=lambda penalty: errors["validation"][penalty])
    for split in ("validation", "test"):
        assert result.scores[split].mae == pytest.approx(errors[split][chosen], rel=1e-3)
    assert result.scores["test"].r2 > 0.3
    assert result.parameters == 13


def test_documents_are_read_to_their_end(static):
    text = " ".join([*FILLER * 30, "purr"])
    found = embeddings.embeddings(embeddings.find(static), {"train": [text, "unheard", ""] * 50})["train"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], embedded(text), rtol=1e-5)
    np.testing.assert_array_equal(found, np.tile(found[:3], (50, 1)))
    np.testing.assert_array_equal(found[1:3], 0)


def test_settings_of_the_model_hold(tmp_path):
    folder = model(tmp_path / "normal", normalize=True)
    for number in range(2):
        found = embeddings.embeddings(embeddings.find(folder), {"train": ["purr word1"]})["train"][0]
        wanted = embedded("purr word1")
        np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), rtol=1e-5)
        if not number:
            # As sentence-transformers saves it: the modules alone say so.
            (tmp_path / "normal" / "config.json").write_text(json.dumps({"normalize": False}))


def test_a_folder_without_modules_is_told_by_its_weights(tmp_path):
    folder = Path(model(tmp_path / "old"))
    (folder / "modules.json").unlink()
    found = embeddings.embeddings(embeddings.find(str(folder)), {"train": ["purr moo"]})["train"]
    np.testing.assert_allclose(found[0], embedded("purr moo"), rtol=1e-5)


def test_a_downloaded_model_goes_by_its_name(static, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Path(os.environ["HF_HOME"], "hub", "models--someone--tiny")
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    (place / "snapshots").mkdir()
    (place / "snapshots" / ("0" * 40)).symlink_to(static)
    found = embeddings.find("someone/tiny")
    assert (found.source, found.static) == ("someone/tiny", True)
    assert embeddings.embeddings(found, {"train": ["purr"]})["train"].shape == (1, 12)


def test_nothing_is_downloaded(tmp_path, monkeypatch):
    import socket

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("it asks the network"))
    with pytest.raises(UserError) as told:
        embeddings.find("minishlab/potion-base-8M")
    assert str(told.value) == (
        "the baseline 'embeddings' expected the folder of a model, or the name of one that was downloaded from the "
        "Hugging Face Hub, got 'minishlab/potion-base-8M', which is neither on this machine; check it, or download it "
        "with `hf download minishlab/potion-base-8M`."
    )


def damaged(folder):
    (folder / "tokenizer.json").write_text("{}")


def without_modules(folder):
    (folder / "modules.json").write_text('[{"path": "."}]')


def of_another_kind(folder):
    (folder / "modules.json").unlink()
    (folder / "model.safetensors").write_bytes(b"")


def not_finite(folder):
    vectors = VECTORS.copy()
    vectors[VOCABULARY["purr"], 3] = np.nan
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    StaticModel(vectors, tokens).save_pretrained(folder)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (damaged, "which could not be loaded ("),
        (without_modules, "whose modules.json cannot be read ('type')"),
        (of_another_kind, "whose files are of neither (no modules.json, and no tensor 'embeddings' in"),
        (not_finite, "whose embeddings of some documents are not finite numbers"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, damage, problem):
    folder = Path(model(tmp_path / "model"))
    damage(folder)
    with pytest.raises(UserError) as told:
        embeddings.embeddings(embeddings.find(str(folder)), {"train": ["purr"]})
    begin = "the baseline 'embeddings' expected a model of model2vec or sentence-transformers, got "
    assert str(told.value).startswith(f"{begin}{str(folder)!r}, {problem}")
    assert str(told.value).endswith("; restore its files, or name another.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nothing", "the baseline 'embeddings': there is no file or folder 'nothing'; check the path."),
        ("no name of the Hub", "there is no file or folder 'no name of the Hub'; check the path."),
        ("table.csv", "got 'table.csv', which is a file; restore its files, or name another."),
    ],
)
def test_names_that_are_none(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("text,label\n")
    with pytest.raises(UserError) as told:
        embeddings.find(name)
    assert str(told.value).endswith(message)


def test_the_package_depends_on_the_model(static, tmp_path, monkeypatch):
    monkeypatch.setattr(imports.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'needs the package .model2vec., .* `pip install "longspan\[baselines\]"`'):
        embeddings.find(static)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer"}]')
    with pytest.raises(UserError, match=r'package .sentence_transformers., .* "longspan\[sentence-transfo'):
        embeddings.find(str(tmp_path))


# Models of sentence-transformers


@pytest.fixture
def contextual(tmp_path):
    """A model of sentence-transformers that reads 8 tokens, two of which are special."""
    library = pytest.importorskip("sentence_transformers")
    from tokenizers import processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *VOCABULARY])}
    tokens = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, model_max_length=8, **special).save_pretrained(tmp_path / "bert")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path / "bert")
    from sentence_transformers.sentence_transformer import modules

    read = modules.Transformer(str(tmp_path / "bert"))
    made = library.SentenceTransformer(modules=[read, modules.Pooling(8)], device="cpu")
    made.save(str(tmp_path / "contextual"))
    return made, str(tmp_path / "contextual")


def test_truncation_is_reported(contextual, capsys):
    made, folder = contextual
    texts = {"train": ["purr", "word1 word2 word3 word4 word5 word6"], "test": ["word1 " * 7, "moo " * 200]}
    found = embeddings.embeddings(embeddings.find(folder), texts)
    for split in texts:
        np.testing.assert_allclose(found[split], made.encode(texts[split]), rtol=1e-4, atol=1e-5)
    assert (
        f"longspan: 2 of 4 documents have more than the 8 tokens that the embeddings {folder!r} read, so only the "
        "beginning of each was read.\n"
    ) in capsys.readouterr().err
    embeddings.embeddings(embeddings.find(folder), {"train": ["purr"]})
    assert "longspan" not in capsys.readouterr().err


def test_code_of_a_model_is_not_run(contextual, tmp_path, monkeypatch):
    _, folder = contextual
    monkeypatch.chdir(tmp_path)
    Path(folder, "theirs.py").write_text("raise SystemExit('it runs')")
    path = Path(folder, "modules.json")
    path.write_text(path.read_text().replace('"type": "sentence_transformers', '"type": "theirs'))
    with pytest.raises(UserError, match=r"got .*contextual', which could not be loaded \("):
        embeddings.embeddings(embeddings.find(folder), {"train": ["purr"]})
