"""Recommending from the command line, and what training and scoring read."""

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from news_folders import behavior, news_row, settings, write_log, write_mind

from longspan import evaluate, explain, predict, recipes, train
from longspan.cli import main
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.models import LongspanForRecommendation
from longspan.results import TrainingResult
from longspan.serving.model import Limits, Service
from longspan.tasks.recommendation.items import Items, padded, ragged_of
from longspan.tasks.recommendation.ranking import ItemVectors, impression_outputs
from longspan.tasks.recommendation.recorded import read_recorded
from longspan.tasks.recommendation.samples import Collator, Impressions, Samples, collate
from longspan.tasks.recommendation.task import names_of
from longspan.testing import check_task
from longspan.verbs.runs import load_run

SMALL = [
    "model.dim=16",
    "model.heads=2",
    "model.feed_forward_dim=16",
    "model.dropout=0.0",
    "training.learning_rate=0.02",
]
TOPICS = ("ball goal team cup", "rain storm wind cloud")


def write_topics(folder: Path, users: int = 40) -> Path:
    """Write a folder of MIND in which each user clicks on items of one topic, those of even numbers."""
    random = np.random.default_rng(0)
    news = [
        news_row(f"N{number}", " ".join(random.choice(TOPICS[number % 2].split(), 3)), category=f"c{number % 2}")
        for number in range(20)
    ]
    for name, seed in (("MINDtiny_train", 1), ("MINDtiny_dev", 2)):
        random = np.random.default_rng(seed)
        rows = []
        for user in range(users):
            own, other = (2 * random.permutation(10) + (user + side) % 2 for side in (0, 1))
            shown = [f"N{own[0]}-1", *(f"N{number}-0" for number in other[:3])]
            history = " ".join(f"N{number}" for number in own[1:4])
            rows.append(behavior(user + 1, f"U{user}", history, " ".join(random.permutation(shown))))
        write_mind(folder / name, rows, news)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("mind"))


@pytest.fixture(scope="module")
def result(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    given = [f"data.path={folder}", *SMALL, "training.num_train_epochs=8", "training.per_device_train_batch_size=8"]
    return train("news", given, run=tmp_path_factory.mktemp("runs") / "run", progress=False)


@pytest.mark.slow
def test_topics_are_told_apart(result: TrainingResult) -> None:
    assert result.scores["validation"].numbers()["auc"] > 0.95
    assert result.details["samples"] == 40
    assert result.details["clicks_left_out"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["first", "last"])
def test_cut_titles_are_told(
    result: TrainingResult, folder: Path, keep: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load_run(result.folder)
    data = settings(folder, max_length=2, keep=keep)
    catalogue = read_recorded(settings(folder)).catalogue
    whole = Items.encoded(catalogue, tokenizer_of(run.processor), names_of(run), settings(folder)).title
    assert "tokens that are read" not in capsys.readouterr().err
    cut = Items.encoded(catalogue, tokenizer_of(run.processor), names_of(run), data).title
    ends = np.split(whole.values, whole.offsets[1:-1])
    assert cut.values.tolist() == [int(i) for ids in ends for i in (ids[:2] if keep == "first" else ids[-2:])]
    assert "20 of 20 titles have more than the 2 tokens that are read (data.max_length)" in (capsys.readouterr().err)


@pytest.mark.slow
def test_it_keeps_what_tasks_promise(folder: Path) -> None:
    check_task("recommendation", folder, SMALL[:4])


@pytest.mark.slow
def test_evaluate_and_predict(result: TrainingResult, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", result.folder, "--split", "validation"]) == 0
    out = capsys.readouterr().out
    assert "bootstrap" in out
    assert "without labels" not in out
    told = Path(result.folder, "evaluation", "users.txt").read_text()
    assert "what weighs most first (3)" in told
    assert "1 * " in told
    assert main(["predict", result.folder, str(folder / "MINDtiny_dev")]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["user"] == "U0"
    # U0 clicks on what has an even number.
    assert int(first["ranking"][0]["item"][1:]) % 2 == 0
    assert sorted(first["ranks"]) == [1, 2, 3, 4]
    scores = [each["score"] for each in first["ranking"]]
    assert scores == sorted(scores, reverse=True)
    assert main(["predict", result.folder, str(folder / "MINDtiny_dev" / "behaviors.tsv"), "--format", "mind"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1 [{','.join(map(str, first['ranks']))}]"
    assert len(lines) == 40


@pytest.mark.slow
def test_evaluate_counts_impressions_without_labels(
    result: TrainingResult, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = shutil.copytree(folder / "MINDtiny_dev", tmp_path / "MINDtiny_dev")
    with (dev / "behaviors.tsv").open("a") as file:
        file.write(behavior(99, "U1", "N1", "N2 N3") + "\n")
    assert main(["evaluate", result.folder, "--data", str(tmp_path), "--split", "validation"]) == 0
    assert "Impressions without labels, which are left out: 1." in capsys.readouterr().out


@pytest.mark.parametrize("recommender", ["longspan", "npa"])
def test_vectors_of_items_give_what_reading_them_anew_gives(folder: Path, recommender: str) -> None:
    found = read_recorded(settings(folder))
    recipe = recipes.load("news", [f"data.path={folder}", *SMALL[:4], f"model.recommender={recommender}"])
    if recommender == "npa":
        recipe = recipes.load("news", [f"data.path={folder}", "model.recommender=npa"])
    prepared = recipe.task.prepare(recipe)
    torch.manual_seed(0)
    model = recipe.task.build_model(recipe, prepared)
    assert isinstance(model, LongspanForRecommendation)
    users = {name: number for number, name in enumerate(found.users(), 1)}
    impressions = Impressions(found.splits["validation"], users)
    items: Items = prepared.items  # type: ignore[attr-defined]
    model.eval()
    with torch.no_grad():
        read = [model(**collate([impressions[row]], items)[0]) for row in range(len(impressions))]
    anew = torch.cat([outputs["logits"].flatten() for outputs in read]).numpy()
    with ItemVectors(model, items) as vectors:
        once = impression_outputs(model, impressions, vectors, batch_size=16, batch_clicks=64)
    assert np.ptp(anew) > 1e-3
    # Float32, batches of other shapes.
    np.testing.assert_allclose(once, anew, rtol=1e-4, atol=1e-5)


def test_samples_are_drawn_anew_in_each_epoch_and_the_same_each_time(folder: Path) -> None:
    impressions = Impressions(read_recorded(settings(folder)).splits["train"])
    samples = Samples(impressions, negatives=2, each=True, seed=3)
    first, again, later = samples[0, 5], samples[0, 5], samples[1, 5]
    assert first.candidates.tolist() == again.candidates.tolist()
    assert first.labels.tolist() == [1, 0, 0]
    drawn = [tuple(samples[epoch, 5].candidates[1:]) for epoch in range(20)]
    assert len({*drawn}) > 2
    assert all(len({*pair}) == 2 for pair in drawn)
    shown = impressions[int(samples.rows[5])]
    assert {*later.candidates.tolist()} <= {*shown.candidates.tolist()}
    assert shown.labels[shown.candidates == first.candidates[0]].tolist() == [1]
    every = Samples(impressions, negatives=1, each=False, seed=3)[0, 0]
    assert sorted(every.labels.tolist()) == [0, 1]


def test_clicks_of_a_log_without_times_are_told_from_what_else_the_user_was_shown(tmp_path: Path) -> None:
    rows = [("a", "one", 1), ("a", "two", 0), ("a", "three", 0), ("b", "four", 1), ("b", "two", 1)]
    log = write_log(tmp_path / "log.csv", rows, "user,title,clicked")
    found = read_recorded(settings(train=str(log)))
    impressions = Impressions(found.splits["train"])
    samples = Samples(impressions, negatives=4, each=True, seed=0)
    titles = found.catalogue["title"][:]
    assert len(samples) == 1
    # b clicked on everything.
    assert samples.left_out == 2
    assert sorted(titles[number] for number in samples[0, 0].candidates) == ["one", "three", "two"]
    only = read_recorded(settings(train=str(write_log(tmp_path / "only.csv", rows[3:], "user,title,clicked"))))
    with pytest.raises(UserError, match="recommendation_loss"):
        Samples(Impressions(only.splits["train"]), negatives=4, each=True, seed=0)


@pytest.mark.parametrize(
    ("keep", "length", "words"), [("first", 2, "one two"), ("last", 2, "two three"), ("last", 0, "one two three")]
)
def test_which_words_of_a_long_title_are_read(tmp_path: Path, keep: str, length: int, words: str) -> None:
    log = write_log(tmp_path / "log.csv", [("a", "one two three", 1), ("a", "one", 0)], "user,title,clicked")
    given = [f"data.train={log}", f"data.keep={keep}", f"data.max_length={length}", "data.validation_fraction=0"]
    recipe = recipes.load("news", given)
    prepared = recipe.task.prepare(recipe)
    title = prepared.items.title  # type: ignore[attr-defined]
    assert tokenizer_of(prepared.processor).decode(title.values[: title.offsets[1]]) == words


def test_a_batch_has_each_item_once(folder: Path) -> None:
    found = read_recorded(settings(folder))
    impressions = Impressions(found.splits["train"])
    shown = [impressions[row] for row in (0, 2)]
    batch, numbers = collate(shown, None)
    assert len({*numbers.tolist()}) == len(numbers)
    for row, one in enumerate(shown):
        for name in ("history", "candidate"):
            real = batch[f"{name}_mask"][row].bool()
            places = batch["candidates" if name == "candidate" else name][row][real]
            assert numbers[places].tolist() == getattr(one, "candidates" if name == "candidate" else name).tolist()


@pytest.mark.slow
def test_a_share_without_samples_takes_part_in_the_step(result: TrainingResult, folder: Path) -> None:
    run = load_run(result.folder)
    found = read_recorded(settings(folder))
    items = Items.encoded(found.catalogue, tokenizer_of(run.processor), names_of(run), settings(folder))
    model = run.model.train()
    output = model(**Collator(items)([]))
    output.loss.backward()
    assert output.loss.item() == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_vectors_need_room_on_the_disk(
    result: TrainingResult, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    assert main(["predict", result.folder, str(folder / "MINDtiny_dev")]) == 2
    assert "for the vectors of 20 items, got" in capsys.readouterr().err


def test_lists_in_rows() -> None:
    found, real = padded(ragged_of([[1, 2], [], [3]]), np.array([2, 1, 0]), 9)
    assert found[:, :2].tolist() == [[3, 9], [9, 9], [1, 2]]
    assert real.sum(1).tolist() == [1, 0, 2]


@pytest.mark.slow
def test_users_who_are_shown_nothing_get_the_best_of_the_catalogue(
    result: TrainingResult, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "users.jsonl"
    rows = [{"user": "new", "history": ["N1", "N3", "N5"]}, {"user": "other", "history": []}]
    users.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # The items are those that the model was trained with.
    assert main(["predict", result.folder, str(users)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["where"] == "users.jsonl, line 1"
    assert "ranks" not in first
    items = [each["item"] for each in first["ranking"]]
    assert len({*items}) == 10
    assert not {*items} & {"N1", "N3", "N5"}
    assert all(int(item[1:]) % 2 for item in items[:5])
    assert len(second["ranking"]) == 10
    assert main(["predict", result.folder, str(users), "--format", "mind"]) == 2
    assert "got users.jsonl, line 1 without identifier; add them" in capsys.readouterr().err
    # The same, ranked as candidates.
    shown = [{**rows[0], "candidates": items[::-1]}]
    users.write_text(json.dumps(shown[0]), encoding="utf-8")
    assert main(["predict", result.folder, str(users)]) == 0
    again = json.loads(capsys.readouterr().out)
    # Some titles are alike, and their scores are equal.
    scores = [[each["score"] for each in found["ranking"]] for found in (first, again)]
    assert scores[1] == pytest.approx(scores[0], abs=2e-4)


@pytest.mark.slow
def test_predictions_and_scores_say_what_the_catalogue_lacks(
    result: TrainingResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "users.jsonl"
    shown = ["N98-0", "N1-1", "N99-1", "N2-0"]
    rows = [
        {"user": "new", "history": ["N1", "N99"]},
        {"impression": "7", "user": "new", "history": ["N3"], "candidates": shown},
    ]
    users.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["predict", result.folder, str(users)]) == 0
    out, err = capsys.readouterr()
    first, second = map(json.loads, out.splitlines())
    assert (first["unknown_clicks"], "unknown" in first, len(first["ranking"])) == (1, False, 10)
    # Whatever cannot be read comes last, and each candidate has its rank.
    assert (second["ranks"], second["unknown"], "unknown_clicks" in second) == ([3, 1, 4, 2], ["N98", "N99"], False)
    assert [each["item"] for each in second["ranking"]] == ["N1", "N2"]
    told = "clicks on unknown items: 1; unknown candidates without a click: 1; unknown candidates, clicked: 1."
    assert err.count(f"longspan: left out while reading: {told}") == 1
    users.write_text(json.dumps(rows[1]), encoding="utf-8")
    assert main(["predict", result.folder, str(users), "--format", "mind"]) == 0
    assert capsys.readouterr().out == "7 [3,1,4,2]\n"
    assert main(["evaluate", result.folder, "--data", str(users)]) == 2
    assert "expected a table of news" in capsys.readouterr().err
    write_mind(tmp_path / "b", [behavior(7, "new", "N3 N97", " ".join(shown))],
               [news_row("N1", "storm rain"), news_row("N2", "goal cup"), news_row("N3", "wind")])  # fmt: skip
    assert main(["evaluate", result.folder, "--data", str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert f"Left out while reading: {told}" in out
    assert "Unknown candidates that were clicked are not ranked" in out
    written = json.loads(Path(result.folder, "evaluation", "metrics.json").read_text())
    counts = {"candidates": 2, "unknown_clicks": 1, "unknown_candidates": 2, "unknown_clicked": 1}
    assert counts.items() <= written["data_summary"].items()
    assert sum(written["skipped"].values()) == 3
    users.write_text(json.dumps({"user": "new", "history": [], "candidates": ["N98"]}), encoding="utf-8")
    assert main(["predict", result.folder, str(users)]) == 2
    assert (
        "in the model's catalogue, got 1 row without (first: 'N98' at users.jsonl, line 1)" in capsys.readouterr().err
    )


def test_a_test_split_without_labels_is_not_scored(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "dev", "test"):
        shutil.copytree(folder / f"MINDtiny_{'dev' if name == 'test' else name}", tmp_path / f"M_{name}")
    test = tmp_path / "M_test" / "behaviors.tsv"
    test.write_text(behavior(1, "U1", "N1", "N2 N3") + "\n", encoding="utf-8")
    recipe = recipes.load("news", [f"data.path={tmp_path}", *SMALL])
    prepared = recipe.task.prepare(recipe)
    assert list(prepared.splits) == ["train", "validation"]
    assert prepared.data["test"]["impressions"] == 1
    assert "the test split does not say what was clicked, so it is not scored" in capsys.readouterr().err


@pytest.mark.slow
def test_what_cannot_be_done_is_refused(result: TrainingResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", result.folder]) == 2
    assert "expected a task whose models read rows of tokens to export" in capsys.readouterr().err
    assert main(["predict", result.folder, "-"]) == 2
    assert "got standard input; name a file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("row", [{"history": []}, {"history": None}, {"history": [], "candidates": []}])
def test_users_with_neither_clicks_nor_candidates_are_ordinary(
    result: TrainingResult, row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "users.jsonl"
    users.write_text(json.dumps({"user": "new", **row}), encoding="utf-8")
    assert main(["predict", result.folder, str(users)]) == 0
    assert len(json.loads(capsys.readouterr().out)["ranking"]) == 10


def test_predicting_needs_no_column_that_it_does_not_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"title {n % 5}", f"u{n % 3}", int(n % 2 == 0), n // 2) for n in range(20)]
    log = write_log(tmp_path / "log.csv", rows, "title,user,clicked,when")
    given = [f"data.path={log}", "data.time_column=when", "data.impression_column=view", *SMALL]
    with pytest.raises(UserError, match="expected a column 'view'"):
        train("news", given, run=tmp_path / "run", progress=False)
    given.remove("data.impression_column=view")
    train("news", [*given, "training.num_train_epochs=1"], run=tmp_path / "run", progress=False)
    users = tmp_path / "users.jsonl"
    users.write_text(json.dumps({"user": "u1", "history": ["title 1"]}), encoding="utf-8")
    assert main(["predict", str(tmp_path / "run"), str(users)]) == 0
    assert len(json.loads(capsys.readouterr().out)["ranking"]) == 4
    # A column that is there by its usual name is not overlooked.
    users.write_text(json.dumps({"user": "u1", "history": ["title 1"], "time": 5}), encoding="utf-8")
    assert main(["predict", str(tmp_path / "run"), str(users)]) == 2
    assert "expected a column 'when' in users.jsonl" in capsys.readouterr().err


@pytest.mark.slow
def test_names_are_saved_with_the_processor_and_fit_the_model(tmp_path: Path, result: TrainingResult) -> None:
    trained = Path(result.folder)
    run = load_run(trained)
    assert not any("names" in key for key in run.model.config.to_dict()["head"])
    saved = json.loads((trained / "names.json").read_text(encoding="utf-8"))
    assert len(saved["users"]) == run.model.config.head.users > 0
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    (other / "names.json").write_text(json.dumps({**saved, "users": saved["users"][1:]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"names.json of .* to fit its config.json with users=\d+, got"):
        evaluate(other, split="validation")
    for spoilt in ("[]", "{", json.dumps({**saved, "users": [1]}), json.dumps({"users": []})):
        (other / "names.json").write_text(spoilt, encoding="utf-8")
        with pytest.raises(UserError, match=r"names.json"):
            load_run(other)


@pytest.mark.slow
def test_clicks_explain_the_first_item_exactly(result: TrainingResult, folder: Path) -> None:
    """A click's score is how much the item's logit falls without it, among two clicks."""
    found = explain(result.folder, folder / "MINDtiny_dev", row=1)
    assert (found.places, found.unit, len(found.scores)) == ("clicks", "logits", 3)
    ranking = found.prediction["ranking"]
    assert found.of == ranking[0]["title"]
    assert found.value == pytest.approx(ranking[0]["score"], abs=1e-3)
    assert all(piece.text.startswith("click ") for piece in found.pieces())
    last = explain(result.folder, folder / "MINDtiny_dev", row=1, of=ranking[-1]["item"])
    assert last.value == pytest.approx(ranking[-1]["score"], abs=1e-3)
    lines = (folder / "MINDtiny_dev" / "behaviors.tsv").read_text(encoding="utf-8").splitlines()
    number, user, time, clicks, shown = lines[0].split("\t")
    fewer = folder.parent / "fewer"
    fewer.mkdir()
    (fewer / "news.tsv").write_text((folder / "MINDtiny_dev" / "news.tsv").read_text(encoding="utf-8"))
    kept = " ".join(clicks.split()[1:])
    (fewer / "behaviors.tsv").write_text("\t".join((number, user, time, kept, shown)) + "\n", encoding="utf-8")
    without = explain(result.folder, fewer, of=ranking[0]["item"])
    # Scores of predictions have four decimals.
    assert found.scores[0] == pytest.approx(found.value - without.value, abs=1e-4)
    with pytest.raises(UserError, match="item"):
        explain(result.folder, folder / "MINDtiny_dev", row=1, of="nothing")


def test_a_click_log_scores_the_same_as_test_split_and_given_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each user clicks on one topic; in the later log once, so that only the clicks of training tell which."""
    random = np.random.default_rng(0)
    titles = [[f"{words} {number}" for number in range(30)] for words in TOPICS]
    times = iter(range(100_000))

    def rows(clicks: int) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for _ in range(clicks):
            for user in range(30):
                time = next(times)
                found += [(f"u{user}", random.choice(titles[side]), int(side == user % 2), time) for side in (0, 1)]
        return found

    logs = {"train": rows(8), "validation": rows(1), "test": rows(1)}
    files = [f"data.{split}={write_log(tmp_path / f'{split}.csv', own)}" for split, own in logs.items()]
    result = train("news", [*files, *SMALL, "training.num_train_epochs=6"], run=tmp_path / "run", progress=False)
    split = evaluate(result.folder, split="test").scores.numbers()
    capsys.readouterr()
    later = evaluate(result.folder, tmp_path / "test.csv").scores.numbers()
    assert "clicks in the training data" not in capsys.readouterr().err
    assert split["auc"] > 0.9
    assert later["auc"] == split["auc"]
    assert later["mrr"] == split["mrr"]
    predictions = list(predict(result.folder, tmp_path / "test.csv"))
    # And over HTTP.
    service = Service(load_run(result.folder), Limits(inputs=100))
    with (tmp_path / "test.csv").open(encoding="utf-8") as file:
        sent = list(csv.DictReader(file))
    found = predict(result.folder, service.rows(sent))
    assert [one.ranks for one in found] == [one.ranks for one in predictions]
    right = [one.ranks[user % 2] == 1 for user, one in enumerate(predictions)]
    assert np.mean(right) > 0.9
    # Earlier releases kept no clicks.
    (Path(result.folder) / "histories.parquet").unlink()
    assert evaluate(result.folder, tmp_path / "test.csv").scores.numbers()["auc"] < 0.8
    (Path(result.folder) / "histories.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"expected the clicks of users in .*histories\.parquet"):
        evaluate(result.folder, tmp_path / "test.csv")
