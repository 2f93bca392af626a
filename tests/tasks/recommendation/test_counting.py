"""Counting clicks: odds by hand, no leak of what is predicted, and models with counts from training to prediction."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from news_folders import behavior, news_row, settings, write_log, write_mind

from longspan import evaluate, predict, train
from longspan.data.text.processor import tokenizer_of
from longspan.data.text.tokenization import ordinary_tokens
from longspan.errors import UserError
from longspan.models import LongspanForRecommendation
from longspan.models.parts.ranking import ranking_loss
from longspan.models.wide.ranker import FEATURES
from longspan.results.parts import Parts
from longspan.tasks.base.task import Recipe
from longspan.tasks.recommendation.baselines.counts import Counts
from longspan.tasks.recommendation.counting import (
    SMOOTHING,
    _fitted,
    _worthwhile,
    best_scales,
    count_clicks,
    features,
)
from longspan.tasks.recommendation.items import Items, Names, title_tokenizer
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ranking import ItemVectors, best_items, impression_outputs
from longspan.tasks.recommendation.recorded import Recorded, read_recorded
from longspan.tasks.recommendation.samples import Impressions
from longspan.tasks.recommendation.task import names_of
from longspan.verbs.runs import load_run


def counted(folder: Path) -> tuple[Recorded, Items, list[str], RecommendationData]:
    data = settings(folder)
    found = read_recorded(data)
    tokenizer = title_tokenizer(found, data)
    names = Names([], [], [], [], False, 0, found.known()["item"][:])
    return found, Items.encoded(found.catalogue, tokenizer, names, data), ordinary_tokens(tokenizer), data


def write_clicks(folder: Path, chance: Callable[[int, np.ndarray], np.ndarray], titles: list[str]) -> Path:
    """Write impressions at successive hours, whose candidates are clicked by `chance(hour, items)`."""
    for name, seed, hours in (("train", 1, range(400)), ("dev", 2, range(400, 500))):
        random, rows = np.random.default_rng(seed), []
        for hour in hours:
            shown = random.choice(len(titles), 6, replace=False)
            shown = shown[shown < 20 + hour // 5] if len(titles) > 40 else shown
            clicks = random.random(len(shown)) < chance(hour, shown)
            if 0 < clicks.sum() < len(shown):
                pairs = " ".join(f"N{item}-{int(click)}" for item, click in zip(shown, clicks, strict=True))
                time = f"2019-11-{1 + hour // 24:02} {hour % 24:02}:00:00"
                rows.append(behavior(hour, f"U{hour}", f"N{random.integers(len(titles))}", pairs, time))
        write_mind(folder / name, rows, [news_row(f"N{number}", title) for number, title in enumerate(titles)])
    return folder


def test_odds_and_words_are_those_counted_by_hand(tmp_path: Path) -> None:
    news = [news_row("N1", "Storm storm, ahead"), news_row("N2", "Cup of storm"), news_row("N3", "?! cup")]
    rows = [
        behavior(1, history="N3", shown="N1-1 N2-0"),
        behavior(2, history="N3", shown="N1-1 N3-0"),
        behavior(3, history="", shown="N2-1 N3-0"),
    ]
    write_mind(tmp_path / "train", rows, news)
    write_mind(tmp_path / "dev", [behavior(1, history="N1", shown="N2-1 N9-0 N3-0")], [*news, news_row("N9", "Ahoy")])
    _, items, tokens, _ = counted(tmp_path)
    ranker = count_clicks(tokens, items, Impressions(read_recorded(settings(tmp_path)).splits["train"]))
    share = (3 + 1) / (6 + 2)

    def odds(clicked: int, shown: int) -> float:
        both = (clicked + SMOOTHING * share) / (shown - clicked + SMOOTHING * (1 - share))
        return float(np.log(both) - np.log(share / (1 - share)))

    number = {token: int(ranker.token_words[place]) for place, token in enumerate(tokens)}
    assert number["Storm"] == number["storm"]
    # Shown are N1 twice, N2 twice and N3 twice; clicked are N1 twice and N2 once.
    for word, clicked, shown, titles in (("storm", 3, 4, 2), ("ahead", 2, 2, 1), ("cup", 1, 4, 2), ("of", 1, 2, 1)):
        assert ranker.word_odds[number[word]].item() == pytest.approx(odds(clicked, shown), rel=1e-6)
        assert ranker.idf[number[word]].item() == pytest.approx(np.log(4 / (1 + titles)) + 1, rel=1e-6)
    assert not any(ranker.idf[number[sign]] for sign in (",", "?") if sign in number)
    found = ranker.item_odds[items.known].tolist()
    expected = {"N1": odds(2, 2), "N2": odds(1, 2), "N3": odds(0, 2), "N9": 0.0}
    catalogue = read_recorded(settings(tmp_path)).catalogue["item"][:]
    assert dict(zip(catalogue, found, strict=True)) == pytest.approx(expected, rel=1e-6)


def test_match_is_the_tfidf_cosine_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics.pairwise import cosine_similarity

    titles = ["Storm nears the coast", "coast guard saves the the crew", "Team wins cup", "cup final in the storm"]
    news = [news_row(f"N{number}", title) for number, title in enumerate(titles)]
    write_mind(tmp_path, [behavior(1, history="N0 N1", shown="N2-1 N3-0"), behavior(2, shown="N0-1 N1-0")], news)
    found, items, tokens, _ = counted(tmp_path)
    ranker = count_clicks(tokens, items, Impressions(found.splits["train"]))
    vectors = TfidfVectorizer(sublinear_tf=True).fit_transform(titles).toarray()
    expected = cosine_similarity(vectors[[0, 1]].mean(0, keepdims=True), vectors[[2, 3]])[0]
    got = features(ranker, items, Impressions(found.splits["train"]))[:2, FEATURES.index("match")]
    # Float32.
    assert got == pytest.approx(expected, abs=1e-6)


def test_what_is_predicted_is_not_counted(tmp_path: Path) -> None:
    # Each title has a word of its own and is shown once, so that counts with its own click would tell everything.
    random = np.random.default_rng(0)
    rows = []
    for number in range(300):
        click = int(random.integers(2))
        rows.append(behavior(number, f"U{number}", "", f"N{2 * number}-{click} N{2 * number + 1}-{1 - click}"))
    write_mind(tmp_path, rows, [news_row(f"N{number}", f"word{number} of day") for number in range(600)])
    found, items, tokens, _ = counted(tmp_path)
    ranker = count_clicks(tokens, items, Impressions(found.splits["train"]))
    words, clicks = (ranker.weights[FEATURES.index(name)].abs().item() for name in ("words", "clicks"))
    # With its own clicks, words would separate all pairs, and weights would be large.
    assert max(words, clicks) < 1e-3
    assert ranker.word_odds.abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "clicks", "age"])
def test_what_tells_clicks_apart_is_weighed(tmp_path: Path, kind: str) -> None:
    titles = [f"{'good' if number % 3 == 0 else 'plain'} story" for number in range(100)]
    if kind == "clicks":
        titles = ["the same story"] * 30
    elif kind == "age":
        titles = [f"story {number}" for number in range(140)]

    def chance(hour: int, shown: np.ndarray) -> np.ndarray:
        if kind == "age":
            # Items appear one after the other, and the newest are clicked.
            return np.where(shown > 10 + hour // 5, 0.8, 0.1)
        return np.where(shown % 3 == 0, 0.8, 0.1)

    found, _, _, data = counted(write_clicks(tmp_path, chance, titles))
    scorer = Counts().scorer(found, Impressions(found.splits["train"]), data)
    if kind == "age":
        assert scorer.chosen["age"] < -0.5
    else:
        assert scorer.chosen[kind] > 0.5
    fitted = Counts().fit(_recipe(data)).scores["validation"]
    # Items are first shown some time after they appear, so that their age is less certain.
    assert fitted.auc > (0.65 if kind == "age" else 0.8)


def _recipe(data: RecommendationData) -> Recipe:
    """Return a recipe of which the baselines read nothing but the data."""
    return Recipe("news", cast(Any, None), data)


def scales(parts: np.ndarray, clicked: np.ndarray, folder: Path) -> list[float]:
    rows = [
        behavior(number, f"U{number}", "", " ".join(f"N{place}-{int(click)}" for place, click in enumerate(each)))
        for number, each in enumerate(clicked)
    ]
    write_mind(folder, rows, [news_row(f"N{number}", f"title {number}") for number in range(clicked.shape[1])])
    shown = Impressions(read_recorded(settings(folder)).splits["train"])
    found: list[float] = best_scales(parts.astype(np.float32), shown).tolist()
    return found


def test_scales_favour_what_ranks_better(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    clicked = np.zeros((500, 5), bool)
    clicked[np.arange(500), random.integers(5, size=500)] = True
    noise, signal = random.normal(size=(2, 2500))
    signal = signal + 1.5 * clicked.ravel()
    # Known failure: a network that knows nothing had a small share, as the sum ranked a little better by chance.
    for factor in (1.0, 30.0):
        assert scales(np.stack([signal, factor * noise], 1), clicked, tmp_path / f"{factor}") == [1, 0]
    counts, network = scales(np.stack([noise, signal], 1), clicked, tmp_path / "network")
    assert network > 1
    assert counts < 0.2
    counts, network = scales(np.stack([signal, -signal], 1), clicked, tmp_path / "against")
    assert network == 0 < counts


def test_few_clicks_leave_the_counts_alone(tmp_path: Path) -> None:
    clicked = np.eye(4, dtype=bool)
    parts = np.stack([np.zeros(16), 3.0 * clicked.ravel()], 1)
    counts, network = scales(parts, clicked, tmp_path)
    assert counts == pytest.approx(1, abs=0.05)
    assert 0 < network < 0.1


def test_weights_have_the_lowest_loss_of_ranking_and_noise_has_none() -> None:
    random = np.random.default_rng(0)
    clicked = random.random((300, 5)) < 0.3
    clicked[:, 0], clicked[:, 1] = True, False
    informative = random.normal(size=(300, 5)) + clicked
    # Alike within groups, and far apart between them: any weight fits.
    useless = 10 * random.normal(size=(300, 1)) + 0.01 * random.normal(size=(300, 5))
    features = torch.from_numpy(np.stack([informative, useless], 2).reshape(-1, 2))
    groups = np.repeat(np.arange(300), 5)
    weights = _worthwhile(features, clicked.ravel(), groups)
    assert weights[1] == 0 < weights[0]
    start, pull = torch.tensor([0.5, 0.0]).double(), torch.tensor([3.0, 2.0]).double()
    found, loss = _fitted(features, clicked.ravel(), groups, start, pull)

    def expected(at: torch.Tensor) -> float:
        scores = (features @ at).view(300, 5)
        ranked = ranking_loss("softmax", scores, torch.from_numpy(clicked).long(), 1)
        return float(ranked + (pull * (at - start) ** 2).sum())

    assert loss == pytest.approx(expected(found), rel=1e-9)
    for step in (torch.tensor([0.02, 0.0]), torch.tensor([0.0, 0.02])):
        assert min(expected(found + step), expected(found - step)) > loss


def test_a_network_that_diverged_is_refused(tmp_path: Path) -> None:
    parts = np.stack([np.zeros(16), np.full(16, np.nan)], 1)
    with pytest.raises(UserError, match="expected finite outputs of the model"):
        scales(parts, np.eye(4, dtype=bool), tmp_path)


SMALL = ["model.dim=16", "model.heads=2", "model.feed_forward_dim=16", "model.dropout=0.0", "model.wide=true"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    titles = [f"{'good' if number % 3 == 0 else 'plain'} story {number}" for number in range(30)]
    return write_clicks(tmp_path_factory.mktemp("mind"), lambda _, shown: np.where(shown % 3 == 0, 0.8, 0.1), titles)


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = [f"data.path={folder}", *SMALL, "training.num_train_epochs=2"]
    return Path(train("news", given, run=tmp_path_factory.mktemp("runs") / "run", progress=False).folder)


@pytest.mark.slow
def test_training_and_evaluation_tell_what_each_part_does(folder: Path, run: Path) -> None:
    trained = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    found = evaluate(str(run), str(folder), split="validation")
    told = [Parts.from_dict(each) for each in (trained["parts"], found.details["parts"])]
    for parts in told:
        assert parts.score == "auc"
        assert parts.values["counts"] > 0.8
        assert parts.values["both"] == pytest.approx(found.scores.auc, abs=1e-6)
        assert parts.intervals["counts"][0] < parts.values["counts"] < parts.intervals["counts"][1]
    assert told[0] == told[1]
    alone = Counts().fit(_recipe(settings(folder))).scores["validation"]
    # The baseline is the same object.
    assert alone.auc == pytest.approx(told[0].values["counts"], abs=1e-6)


@pytest.mark.slow
def test_the_saved_model_scores_as_the_baseline_does(folder: Path, run: Path) -> None:
    loaded = load_run(run)
    model = loaded.model
    assert isinstance(model, LongspanForRecommendation)
    assert model.wide is not None
    assert names_of(loaded).items == read_recorded(settings(folder)).known()["item"][:]
    found, items, tokens, data = counted(folder)
    ranker = count_clicks(tokens, items, Impressions(found.splits["train"]))
    for name, tensor in ranker.named_buffers():
        if name != "scales":
            assert torch.equal(dict(model.wide.named_buffers())[name], tensor), name
    impressions = Impressions(found.splits["validation"])
    sizes: dict[str, Any] = {"batch_size": 7, "batch_clicks": 0}
    own = Items.encoded(found.catalogue, tokenizer_of(loaded.processor), names_of(loaded), data)
    with ItemVectors(model, own) as vectors:
        parts = impression_outputs(model, impressions, vectors, name="parts", **sizes)
        logits = impression_outputs(model, impressions, vectors, **sizes)
        expected = features(ranker, items, impressions) @ ranker.weights.double().numpy()
        # Float32.
        np.testing.assert_allclose(parts[:, 0], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(parts @ model.wide.scales.numpy(), logits, rtol=1e-4, atol=1e-5)
        # The ranking of the whole catalogue has the scores of candidates.
        few = impressions.part(np.arange(3))
        best, scores = best_items(model, few, vectors, 5)
        place = dict(zip(best[0].tolist(), scores[0].tolist(), strict=True))
        for number, score in zip(few[0].candidates.tolist(), logits.tolist(), strict=False):
            if number in place:
                assert place[number] == pytest.approx(score, abs=1e-5)
        assert set(few[0].candidates.tolist()) & set(place)


@pytest.mark.slow
def test_new_items_are_ranked_by_their_titles(run: Path, tmp_path: Path) -> None:
    news = [news_row("N100", "a plain tale"), news_row("N101", "a good tale"), news_row("N102", "unheard-of")]
    write_mind(tmp_path, [behavior(1, history="", shown="N100 N102 N101"), behavior(2, history="N100", shown="")], news)
    shown, catalogue = predict(str(run), str(tmp_path))
    assert shown.ranking is not None
    order = [each["item"] for each in shown.ranking]
    assert order.index("N101") < order.index("N100")
    assert catalogue.ranking is not None
    assert {each["item"] for each in catalogue.ranking} == {"N101", "N102"}


def test_names_of_earlier_versions_count_no_clicks(folder: Path, tmp_path: Path) -> None:
    given = [f"data.path={folder}", *SMALL[:-1], "model.wide=false", "training.max_steps=1"]
    result = train("news", given, run=tmp_path / "run", progress=False)
    names = Path(result.folder, "names.json")
    values = json.loads(names.read_text(encoding="utf-8"))
    assert values.pop("items") == []
    names.write_text(json.dumps(values), encoding="utf-8")
    found = evaluate(result.folder, str(folder), split="validation")
    assert "parts" not in found.details


def test_logs_without_times_have_no_ages(tmp_path: Path) -> None:
    rows = [(f"u{number % 7}", f"story {number % 20}", int(number % 3 == 0)) for number in range(80)]
    write_log(tmp_path / "log.csv", rows, "user,title,clicked")
    found, items, tokens, _ = counted(tmp_path / "log.csv")
    ranker = count_clicks(tokens, items, Impressions(found.splits["train"]))
    assert ranker.unit == 0
    assert not features(ranker, items, Impressions(found.splits["train"]))[:, FEATURES.index("age")].any()
