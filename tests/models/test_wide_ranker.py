"""The wide part of recommenders, against its definition, and models that have it."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recommending import LABELS, NEWS, USERS, batch, build, news, padded
from torch import Tensor

from longspan import LongspanForRecommendation, UserError
from longspan.models.wide.ranker import FEATURES, NEVER, Ranker

RECOMMENDERS = ["longspan", "nrms", "naml", "lstur", "npa", "fastformer", "longspan-causal"]
ITEM_IDS = torch.tensor([0, 1, 2, 3, 0, 4, 5])
TIMES = torch.tensor([5000, 200, NEVER, 90000])


def filled(ranker: Ranker) -> Ranker:
    """Give all buffers values: token 19 is token 15 in capitals, and tokens 18 and 28 are unknown."""
    generator = torch.Generator().manual_seed(3)
    ranker.token_words.copy_(torch.arange(len(ranker.idf)))
    ranker.token_words[19] = 15
    for tensor in (ranker.word_odds, ranker.item_odds, ranker.weights):
        tensor.normal_(generator=generator)
    ranker.idf.uniform_(0.5, 2.0, generator=generator)
    ranker.idf[[18, 28]] = 0
    ranker.item_odds[0] = 0
    ranker.first[1:] = torch.randint(0, 4000, (len(ranker.first) - 1,), generator=generator)
    ranker.scales.copy_(torch.tensor([0.7, 1.3]))
    return ranker


def make(form: str, **changes: Any) -> LongspanForRecommendation:
    model = build(form, **{"wide": True, "items": 5, "time_unit": 60.0, **changes})
    assert model.wide is not None
    filled(model.wide)
    return model


def given(model: LongspanForRecommendation, **changes: Tensor) -> dict[str, Tensor]:
    return batch(model) | {"item_ids": ITEM_IDS, "times": TIMES} | changes


def vector(ranker: Ranker, which: int) -> dict[int, float]:
    """The TF-IDF vector of a title, by word."""
    ids = NEWS["input_ids"][which][NEWS["attention_mask"][which].bool()].tolist()
    words = [15 if token == 19 else token for token in ids if token not in (18, 28)]
    found = {word: (1 + math.log(words.count(word))) * float(ranker.idf[word]) for word in words}
    length = math.sqrt(sum(value**2 for value in found.values()))
    return {word: value / length for word, value in found.items()}


def written_out(ranker: Ranker, row: int, which: int) -> list[float]:
    """The features of a candidate, from the definition."""
    history = USERS["history"][row][USERS["history_mask"][row].bool()].tolist()
    profile: dict[int, float] = {}
    for click in history:
        for word, value in vector(ranker, click).items():
            profile[word] = profile.get(word, 0) + value
    length = math.sqrt(sum(value**2 for value in profile.values()))
    own, item, now = vector(ranker, which), int(ITEM_IDS[which]), int(TIMES[row])
    match = sum(value * profile.get(word, 0) for word, value in own.items()) / length if length else 0.0
    odds = sum(float(ranker.word_odds[word]) for word in own) / len(own) if own else 0.0
    timed = item > 0 and now != NEVER
    age = math.log1p(max(0, now - int(ranker.first[item])) / 1000) if timed else 0.0
    return [match, odds, float(ranker.item_odds[item]) if item else 0.0, age]


def arguments(fields: dict[str, Tensor]) -> dict[str, Tensor]:
    masks = {name: fields[name].bool() for name in ("history_mask", "candidate_mask")}
    return {name: fields[name] for name in ("item_ids", "history", "candidates", "times")} | masks


def test_features_are_those_of_the_definition() -> None:
    ranker = filled(Ranker(30, 5, unit=60.0)).double()
    fields = NEWS | USERS | {"item_ids": ITEM_IDS, "times": TIMES}
    # The titles have repeated, unknown and capital words.
    assert {15, 18, 19, 28} <= set(NEWS["input_ids"][NEWS["attention_mask"].bool()].tolist())
    titles = ranker.titles(fields["input_ids"], fields["attention_mask"])
    found = ranker.features(titles, **arguments(fields))
    for row, column in np.argwhere(USERS["candidate_mask"].numpy() > 0):
        expected = written_out(ranker, row, int(USERS["candidates"][row, column]))
        # Logarithms of whole numbers are float32.
        assert found[row, column].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert found.shape[2] == len(FEATURES)
    assert not found[USERS["candidate_mask"] == 0].any()
    assert found.flatten(0, 1).std(0).min() > 0.01


def test_many_users_in_parts_have_what_they_have_together(monkeypatch: pytest.MonkeyPatch) -> None:
    ranker = filled(Ranker(30, 5, unit=60.0))
    titles = ranker.titles(NEWS["input_ids"], NEWS["attention_mask"])
    fields = arguments(USERS | {"item_ids": ITEM_IDS, "times": TIMES})
    together = ranker(titles, **fields)
    monkeypatch.setattr("longspan.models.wide.ranker._ROOM", 30)
    assert torch.equal(ranker(titles, **fields), together)


def test_all_items_have_the_scores_that_candidates_have_and_profiles_add_up() -> None:
    ranker = filled(Ranker(30, 5, unit=60.0)).double()
    titles = ranker.titles(NEWS["input_ids"], NEWS["attention_mask"])
    everything = torch.arange(7).expand(4, -1)
    mask = USERS["history_mask"].bool()
    expected = ranker(titles, ITEM_IDS, USERS["history"], mask, everything, torch.ones(4, 7).bool(), TIMES)
    profiles = sum(
        ranker.profiles(titles, USERS["history"][:, [place]], mask[:, [place]]) for place in range(mask.shape[1])
    )
    assert isinstance(profiles, Tensor)
    # Logarithms of ages are float32.
    torch.testing.assert_close(ranker.of_all(profiles, titles, ITEM_IDS, TIMES), expected, rtol=1e-6, atol=1e-7)


def test_times_are_exact_whatever_the_type_of_the_model() -> None:
    ranker = Ranker(3, 2, origin=1.5e9, unit=10.0)
    ticks = ranker.ticks(np.array([1.5e9, 1.5e9 + 25, np.nan]))
    assert ticks.tolist() == [0, 2500, NEVER]
    ranker.first[1:] = ticks[:2]
    assert ranker.to(torch.bfloat16).first.tolist() == [NEVER, 0, 2500]
    assert Ranker(3, 2).ticks(np.array([7.0])).tolist() == [NEVER]


@pytest.mark.parametrize("form", RECOMMENDERS)
@torch.no_grad()
def test_each_recommender_has_the_same_wide_part(form: str) -> None:
    model, alone = make(form), build(form)
    assert not alone.load_state_dict(model.state_dict(), strict=False).missing_keys
    found, network = model(**given(model)), alone(**batch(model))
    assert model.wide is not None
    counts, own = found.parts.unbind(1)
    torch.testing.assert_close(own, network.logits)
    titles = model.wide.titles(NEWS["input_ids"], NEWS["attention_mask"])
    fields = arguments(USERS | {"item_ids": ITEM_IDS, "times": TIMES})
    torch.testing.assert_close(counts, model.wide(titles, **fields))
    torch.testing.assert_close(found.logits, 0.7 * counts + 1.3 * own)
    torch.testing.assert_close(found.user_vectors, network.user_vectors)
    assert network.parts is None
    # In training the network learns by itself; known users are hidden at random there.
    unknown = torch.zeros(4, dtype=torch.long)
    trained = model.train()(**given(model, labels=LABELS, user_ids=unknown))
    expected = alone.train()(**batch(model, labels=LABELS, user_ids=unknown))
    torch.testing.assert_close(trained.logits, expected.logits)
    torch.testing.assert_close(trained.loss, expected.loss)


@torch.no_grad()
def test_padding_batches_and_vectors_kept_change_nothing() -> None:
    model = make("longspan")
    expected = model(**given(model))
    for left, right in ((0, 2), (3, 1)):
        texts = padded(given(model), ("input_ids", "attention_mask"), left, right, 3)
        texts = padded(texts, ("abstract_ids", "abstract_mask"), right, left, 3)
        rows = padded(texts, ("history", "history_mask"), left, right, -1)
        # Sums in another order, and sinusoids that are float32 inside.
        torch.testing.assert_close(model(**rows).parts, expected.parts, rtol=1e-6, atol=1e-7)
    more = model(**padded(given(model), ("candidates", "candidate_mask"), 1, 0, 99))
    torch.testing.assert_close(more.parts[:, :, 1:], expected.parts)
    assert not more.parts[:, :, 0].any()
    for row in range(4):
        users = {name: column[row : row + 1] for name, column in USERS.items()}
        alone = model(**news(model), **users, item_ids=ITEM_IDS, times=TIMES[row : row + 1])
        torch.testing.assert_close(alone.parts[0], expected.parts[row], rtol=1e-6, atol=1e-7)
    words = {name: NEWS[name] for name in ("input_ids", "attention_mask")}
    kept = model(news_vectors=model.encode_news(**news(model)), **words, **USERS, item_ids=ITEM_IDS, times=TIMES)
    torch.testing.assert_close(kept.parts, expected.parts, rtol=1e-6, atol=1e-7)


@torch.no_grad()
def test_users_without_clicks_one_candidate_and_unknown_items() -> None:
    model = make("nrms")
    assert model.wide is not None
    fields = {name: tensor for name, tensor in batch(model).items() if not name.startswith("history")}
    fields |= {name: fields[name][:, :1] for name in ("candidates", "candidate_mask")}
    counts = model(**fields).parts[:, 0, 0]
    titles = model.wide.titles(NEWS["input_ids"], NEWS["attention_mask"])
    # Neither match nor clicks nor age are known: words alone count.
    expected = model.wide.weights[1] * titles.odds[USERS["candidates"][:, 0]] * USERS["candidate_mask"][:, 0]
    torch.testing.assert_close(counts, expected)


@torch.no_grad()
def test_saved_copied_and_in_other_types(tmp_path: Path) -> None:
    model = make("longspan", dtype=torch.float32)
    expected = model(**given(model))
    model.save_pretrained(tmp_path)
    loaded = LongspanForRecommendation.from_pretrained(tmp_path).eval()
    for other in (loaded, copy.deepcopy(model)):
        assert torch.equal(other(**given(model)).logits, expected.logits)
    half = LongspanForRecommendation.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    assert half.wide is not None
    assert model.wide is not None
    assert torch.equal(half.wide.first, model.wide.first)
    # Eight bits of each of a few factors.
    torch.testing.assert_close(half(**given(model)).parts.float(), expected.parts, rtol=0.05, atol=0.1)
    numbers = sum(tensor.numel() for tensor in model.wide.buffers())
    assert model.num_parameters() - model.num_parameters(only_trainable=True) == numbers
    assert not {name for name, _ in model.named_parameters() if name.startswith("wide")}


def test_a_new_model_counts_nothing() -> None:
    model = build("longspan", wide=True, items=5)
    with torch.no_grad():
        found = model(**given(model))
    assert torch.equal(found.parts[:, 0], torch.zeros(4, 3, dtype=torch.float64))
    torch.testing.assert_close(found.logits, found.parts[:, 1])


def test_what_is_refused() -> None:
    model = make("longspan")
    vectors = model.encode_news(**news(model))
    with pytest.raises(UserError, match="expected input_ids with wide=True, got none"):
        model(news_vectors=vectors, **USERS)
    with pytest.raises(UserError, match="items"):
        build("longspan", wide=True, items=-1)
