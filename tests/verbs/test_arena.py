"""The Long Range Arena, with trainings of a few steps in this process."""

import json
from pathlib import Path
from typing import Any

import pytest

from longspan import arena, recipes, train
from longspan.challenges import CHALLENGES
from longspan.errors import UserError
from longspan.report.arena import arena_summary
from longspan.tasks.base.task import Recipe
from longspan.verbs import compare

SIZES = {"train": 60, "validation": 12, "test": 12}
SMALL = ["model.dim=8", "model.heads=1", "model.depth=1", "training.num_train_epochs=1", "training.batch_tokens=16384"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Train in this process, and collect where."""
    places: list[str] = []

    def here(wanted: Recipe, run_dir: Path, launcher: Any = None) -> str | None:
        places.append("/".join(run_dir.parts[-3:]))
        try:
            train(wanted, run=run_dir)
        except UserError as error:
            return str(error)
        return None

    monkeypatch.setattr(compare, "_train", here)
    return places


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder of runs whose data are there, but few."""
    CHALLENGES["listops"].write(tmp_path / "arena" / "data" / "listops", None, sizes=SIZES)
    return tmp_path / "arena"


@pytest.mark.slow
def test_a_mixer_from_scratch_and_pretrained(trained: list[str], small: Path) -> None:
    result = arena(["messages"], ["listops"], SMALL, small, minutes=1)
    assert trained == [
        "listops/scratch/messages-0",
        "listops/scratch/convolution-0",
        "listops/pretraining/messages-0",
        "listops/pretraining/convolution-0",
        "pretrained/messages/messages-0",
        "pretrained/convolution/convolution-0",
    ]
    assert not result.errors()
    assert {run.chance for run in result.runs} == {0.1}
    found = [(run.challenge, run.start, run.run.mixer, run.control) for run in result.runs]
    assert found == [
        ("listops", start, mixer, mixer == "convolution")
        for start in ("scratch", "pretrained")
        for mixer in ("messages", "convolution")
    ]
    assert all(run.score == run.run.scores["test"].numbers()["accuracy"] for run in result.runs)
    written = json.loads((small / "arena.json").read_text(encoding="utf-8"))
    assert written == result.to_dict()
    assert (small / "arena.png").stat().st_size
    # Pretraining has the model and the training of what follows it, and sees no test data.
    scratch, masked, then = (
        recipes.load(str(small / "listops" / place / "recipe.toml"))
        for place in ("scratch/messages-0", "pretraining/messages-0", "pretrained/messages/messages-0")
    )
    assert masked.task.name == "masked_words"
    assert not masked.data.test
    for key in ("dim", "depth", "mixers", "short_convolution"):
        assert scratch.model[key] == masked.model[key] == then.model[key]
    assert scratch.training["learning_rate"] == masked.training["learning_rate"]
    assert masked.training["num_train_epochs"] == 1
    assert then.start_from == str(small / "listops" / "pretraining" / "messages-0")
    # Again, nothing is trained, and one more mixer is.
    trained.clear()
    again = arena(["messages", "linear"], ["listops"], SMALL, small, minutes=1, pretrain=False)
    assert trained == ["listops/scratch/linear-0"]
    assert again.runs[0].to_dict() == result.runs[0].to_dict()


@pytest.mark.slow
def test_what_is_printed(small: Path, trained: list[str]) -> None:
    result = arena(["messages"], ["listops"], SMALL, small, minutes=1, pretrain=False)
    told = arena_summary(result)
    assert "Test accuracy, from scratch" in told
    assert "convolution (control)" in told
    assert "pretrained" not in told
    assert (small / "arena.md").read_text(encoding="utf-8").startswith("# Long Range Arena\n")


@pytest.mark.slow
def test_failed_runs_are_told_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], small: Path
) -> None:
    here = compare._train
    monkeypatch.setattr(
        compare,
        "_train",
        lambda wanted, place, launcher: "no memory." if "messages" in place.name else here(wanted, place, launcher),
    )
    result = arena(["messages"], ["listops"], SMALL, small, minutes=1)
    assert [run.score is None for run in result.runs] == [True, False, True, False]
    assert result.errors() == [
        "listops, messages, scratch, failed: no memory.",
        "listops, messages, pretrained, failed: no memory.",
    ]
    assert "listops, messages, scratch, failed: no memory." in arena_summary(result)


def test_no_run_that_succeeded_is_an_error(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    monkeypatch.setattr(compare, "_train", lambda *_: "no memory.")
    with pytest.raises(UserError, match=r"none of the 2 runs succeeded; the first: listops, messages, scratch, failed"):
        arena(["messages"], ["listops"], SMALL, small, minutes=1, pretrain=False)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tasks": ["listop"]}, "there is no task 'listop'; did you mean 'listops'"),
        ({"tasks": ["image"]}, r"expected data for the task image, got none; add --data image=PATH"),
        ({"data": {"listops": "x"}}, "expected no data for listops, as they are generated, got 'x'"),
        ({"tasks": ["listops"], "data": {"image": "x"}}, "expected data for the tasks listops, got some for image"),
        ({"minutes": 0}, "expected minutes above 0"),
        ({"mixers": "messages"}, "expected mixers to be several names, got the text 'messages'"),
        ({"mixers": []}, "expected at least one mixer, got none"),
        ({"mixers": ["mesages"]}, "there is no mixer 'mesages'; did you mean 'messages'"),
        ({"overrides": ["model.dimm=8"]}, "unknown key 'model.dimm'"),
        ({"overrides": ["training.max_minutes=8"]}, "expected a time budget once"),
    ],
)
def test_mistakes_come_before_any_data(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        arena(**{"mixers": ["messages"], "run": tmp_path / "arena"} | given)
    assert not (tmp_path / "arena").exists()


def test_data_of_other_files_are_refused(tmp_path: Path, trained: list[str], small: Path) -> None:
    about = small / "data" / "listops" / "about.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"source": "/elsewhere"}), encoding="utf-8")
    with pytest.raises(UserError, match=r"to come from None, got those from '/elsewhere'"):
        arena(["messages"], ["listops"], SMALL, small, minutes=1)
    about.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"about.json', got a damaged file; delete its folder"):
        arena(["messages"], ["listops"], SMALL, small, minutes=1)
    assert not trained


def test_data_of_another_form_are_refused_before_any_training(tmp_path: Path, trained: list[str], small: Path) -> None:
    with pytest.raises(UserError, match=r"expected a folder with train/ and test/"):
        arena(["messages"], ["listops", "image"], SMALL, small, data={"image": tmp_path}, minutes=1)
    assert not trained


@pytest.mark.slow
def test_pairs_of_documents_have_the_same_models(trained: list[str], tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        for title in ("raven", "usher"):
            path = tmp_path / "books" / split / f"{title}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(" ".join(f"{title}{place}" for place in range(2000)), encoding="utf-8")
    folder, books = tmp_path / "arena", tmp_path / "books"
    CHALLENGES["retrieval"].write(folder / "data" / "retrieval", books, sizes={"train": 8, "validation": 4, "test": 4})
    result = arena(["linear"], ["retrieval"], SMALL, folder, data={"retrieval": books}, minutes=1)
    assert not result.errors()
    assert [run.start for run in result.runs] == ["scratch", "scratch", "pretrained", "pretrained"]
    pairs, others = recipes.load("arena-pairs"), recipes.load("arena")
    assert (pairs.model, pairs.training, pairs.options) == (others.model, others.training, others.options)
