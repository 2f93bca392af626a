"""A run on the Hugging Face Hub: pushed by `training.push_to_hub`, or as a folder, and what others load from it."""

import json
import shutil
from pathlib import Path

import pytest
from fake_hub import FakeHub
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import LocalTokenNotFoundError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from longspan import UserError, predict, recipes, train
from longspan.data.sources.formats.rows import Row
from longspan.tasks.base.task import Recipe
from longspan.training.base import push_run

pytestmark = pytest.mark.usefixtures("as_on_the_command_line")

SETTINGS = [
    "data.tokens=words", "data.vocab_size=200", "model.dim=8", "model.heads=2", "model.depth=1",
    "training.num_train_epochs=1", "training.push_to_hub=true",
]  # fmt: skip


def recipe(animals: Path, *more: str) -> Recipe:
    return recipes.load("quickstart", [f"data.path={animals}", *SETTINGS, *more])


@pytest.fixture(scope="module")
def pushed(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeHub]:
    """A run, and the Hub that it was pushed to."""
    run, hub = tmp_path_factory.mktemp("pushed") / "mine", FakeHub()
    with pytest.MonkeyPatch.context() as patch:
        hub.install(patch)
        train(recipe(animals), run=run, progress=False)
    return run, hub


def test_a_finished_run_is_pushed_with_its_card(pushed: tuple[Path, FakeHub]) -> None:
    run, hub = pushed
    assert set(hub.repositories) == {"me/mine"}
    assert hub.commits == 1
    files = hub.repositories["me/mine"]
    for name in (
        "README.md",
        "model.safetensors",
        "tokenizer.json",
        "recipe.toml",
        "metrics.json",
        "learning_curve.png",
    ):
        assert name in files
    # Checkpoints stay here, and nothing that would be unpickled is anywhere but in them.
    assert not [name for name in files if "checkpoint" in name or name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    assert files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert card == (run / "README.md").read_text(encoding="utf-8").replace(
        'name = "."  # this folder; from the Hugging Face Hub, "OWNER/NAME"', 'name = "me/mine"'
    ).replace("OWNER/NAME", "me/mine")
    assert ModelCard(card).data.get("library_name") == "longspan"
    # Pictures in it are beside it.
    assert "](learning_curve.png)" in card


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_there_loads_elsewhere(
    pushed: tuple[Path, FakeHub], whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run, hub = pushed
    if whole:
        # As `huggingface_hub.upload_folder` would, checkpoints and all.
        folder = shutil.copytree(run, tmp_path / "me" / "mine")
    else:
        folder = hub.download("me/mine", tmp_path / "me" / "mine")
    card = (folder / "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(folder if whole else tmp_path)
    capsys.readouterr()
    exec(card.split("```python\n")[1].split("```")[0], {})
    printed = capsys.readouterr().out
    (answer,) = predict(folder, [Row({"text": "Some text."}, "row 1")])
    assert repr(answer.to_dict()["label"]) in printed
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.id2label == AutoModelForSequenceClassification.from_pretrained(run).config.id2label
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == AutoTokenizer.from_pretrained(run).get_vocab()


def test_a_run_is_not_pushed_unless_it_is_asked_for_and_finished(
    pushed: tuple[Path, FakeHub], animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub()
    hub.install(monkeypatch)
    train(recipe(animals, "training.push_to_hub=false"), run=tmp_path / "kept", progress=False)
    assert not hub.repositories
    (tmp_path / "kept" / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"expected a finished run to push, got .*kept'; finish its training first"):
        push_run(tmp_path / "kept", "mine", message="")
    with pytest.raises(
        UserError, match="hub_strategy cannot be set in a recipe; leave it out, as a run is pushed once"
    ):
        recipe(animals, "training.hub_strategy=every_save")


def test_a_hub_that_refuses_is_one_sentence_before_training(
    animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LocalTokenNotFoundError("Token is required, but no token found.\nMore about it.")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    message = r"write to 'mine' on the Hugging Face Hub, got an error \(Token is required, but no token found\); log in"
    with pytest.raises(UserError, match=message):
        train(recipe(animals), run=tmp_path / "mine", progress=False)
    assert not (tmp_path / "mine").exists()


def test_the_name_on_the_hub_may_be_another(pushed: tuple[Path, FakeHub], monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = pushed
    hub = FakeHub()
    hub.install(monkeypatch)
    push_run(run, "us/ours", message="By hand", revision="v1", private=True)
    assert 'name = "us/ours"\n' in hub.repositories["us/ours"]["README.md"].decode()
    assert json.loads(hub.repositories["us/ours"]["metrics.json"])["task"] == "document_classification"
