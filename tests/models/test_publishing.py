"""`push_to_hub`: the card is the model's own, loads, and is not replaced by a template."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_hub import FakeHub
from huggingface_hub import ModelCard
from language_runs import make_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from longspan import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification, tasks
from longspan.models.publishing import NAME, is_ours, short_card
from longspan.report.card import model_card
from longspan.results import TrainingResult
from longspan.tasks.language_modelling.scores import LanguageScores


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    made = FakeHub()
    made.install(monkeypatch)
    return made


def small() -> LongspanForSequenceClassification:
    torch.manual_seed(0)
    config = LongspanConfig(vocab_size=30, dim=8, heads=2, depth=2, mixers=["additive", "local"])
    return LongspanForSequenceClassification(config).eval()


def run_code(card: str) -> dict[str, Any]:
    """Run the Python of a card and return its names."""
    names: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0], names)
    return names


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with its card, a picture that it shows, and one that it does not."""
    folder = make_run(tmp_path / "run", "the quick brown fox. Some text. " * 4)
    task = tasks.load("language_modelling")
    scores = LanguageScores(loss=1.5, perplexity=4.5, bits_per_byte=2.2, bits_per_character=2.2)
    result = TrainingResult(
        task=task.name, folder=str(folder), scores={"test": scores}, history=[], kept_epoch=1.0, steps=1, processes=1,
        tokens_per_second=1.0, padding_fraction=0.0, peak_memory_bytes=1, parameters=1, seconds=1.0,
        word_vectors_found=None, data={},
    )  # fmt: skip
    from longspan import recipes

    recipe = recipes.load(str(folder / "recipe.toml"))
    card = model_card(dataclasses.replace(recipe, name="run"), result, ["additive"], "(nothing)")
    (folder / "README.md").write_text(card, encoding="utf-8")
    (folder / "learning_curve.png").write_bytes(b"a picture")
    (folder / "other.png").write_bytes(b"another")
    return folder


def test_a_model_without_a_run_gets_a_card_that_loads(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    model.push_to_hub("mine", tags=["films"])
    files = hub.repositories["me/mine"]
    assert set(files) == {"README.md", "config.json", "model.safetensors"}
    card = ModelCard(files["README.md"].decode())
    assert card.data.get("library_name") == "longspan"
    assert card.data.get("tags") == ["longspan", "additive", "local", "films"]
    assert 'name = "me/mine"\n' in card.text
    folder = hub.download("me/mine", tmp_path / "there")
    monkeypatch.chdir(folder)
    loaded = run_code(short_card(model))["model"]
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(loaded.eval()(ids).logits, model(ids).logits)


def test_a_model_of_a_run_takes_its_card_and_what_that_shows(
    hub: FakeHub, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(run)
    tokenizer = AutoTokenizer.from_pretrained(run)
    # In either order, and twice: transformers writes its template only where there is no card.
    tokenizer.push_to_hub("mine")
    assert "automatically generated" in hub.repositories["me/mine"]["README.md"].decode()
    model.push_to_hub("mine")
    tokenizer.push_to_hub("mine")
    model.push_to_hub("mine")
    files = hub.repositories["me/mine"]
    assert {"README.md", "learning_curve.png", "model.safetensors", "tokenizer.json"} <= set(files)
    assert "other.png" not in files
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]
    card = files["README.md"].decode()
    assert ModelCard(card).data.get("eval_results")[0].metric_value == 1.5
    assert 'name = "me/mine"\n' in card
    assert "hf download me/mine --local-dir" in card
    assert "OWNER/NAME" not in card
    # On another machine.
    folder = hub.download("me/mine", tmp_path / "there" / "me" / "mine")
    monkeypatch.chdir(folder.parent.parent)
    assert run_code(card.replace("max_new_tokens=200", "max_new_tokens=5"))["ids"].shape[1] > 5


def test_a_card_that_was_written_is_kept(hub: FakeHub, run: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(run)
    hub.repositories["me/mine"] = {"README.md": b"---\nlicense: mit\n---\n\nMy own words.\n"}
    model.push_to_hub("mine")
    assert b"My own words." in hub.repositories["me/mine"]["README.md"]
    assert b"license: mit" in hub.repositories["me/mine"]["README.md"]


def test_saving_and_pushing_leaves_the_folders_card(hub: FakeHub, run: Path, tmp_path: Path) -> None:
    model: Any = LongspanForCausalLM.from_pretrained(run)
    before = (run / "README.md").read_text(encoding="utf-8")
    model.save_pretrained(run, push_to_hub=True, repo_id="me/other", commit_message="again")
    assert (run / "README.md").read_text(encoding="utf-8") == before
    assert 'name = "me/other"\n' in hub.repositories["me/other"]["README.md"].decode()
    model.save_pretrained(tmp_path / "copy", push_to_hub=True)
    assert is_ours(hub.repositories["me/copy"]["README.md"].decode())
    assert not (tmp_path / "copy" / "README.md").exists()
    commits = hub.commits
    model.save_pretrained(tmp_path / "quiet")
    assert hub.commits == commits


def test_whose_card_it_is() -> None:
    assert is_ours(short_card(small()))
    assert NAME in short_card(small())
    for other in (
        "",
        "# Title",
        "---\nlibrary_name: transformers\n---\n",
        "---\nlicense: mit\n---\nlibrary_name: longspan\n",
    ):
        assert not is_ours(other)
