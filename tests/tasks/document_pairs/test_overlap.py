"""A linear model over shared tokens inside classifiers of pairs."""

import json
import math
import random
from pathlib import Path

import pytest
import torch

import longspan
from longspan.models.wide.pairs import PairPart

FIRST, SECOND = [5, 5, 7, 9], [5, 9, 9, 11, 12]
SMALL = ["model.dim=8", "model.heads=2", "data.vocab_size=500", "training.num_train_epochs=2", "training.min_steps=1"]


def _part() -> PairPart:
    part = PairPart(2)
    part.idf.fill_(1.5)
    part.idf[5] = 0.5
    return part


def _features(first: list[int], second: list[int]) -> torch.Tensor:
    return _part().features(None, None, input_ids=torch.tensor([first]), second_ids=torch.tensor([second]))[0]


def test_features_are_those_of_the_formula() -> None:
    idf = {token: 0.5 if token == 5 else 1.5 for token in (*FIRST, *SECOND)}

    def cosine(weigh: dict[int, float]) -> float:
        u, v = ({token: math.log1p(ids.count(token)) * weigh[token] for token in set(ids)} for ids in (FIRST, SECOND))
        product = sum(value * v.get(token, 0) for token, value in u.items())
        return product / math.hypot(*u.values()) / math.hypot(*v.values())

    lengths = math.log1p(4), math.log1p(5)
    expected = [
        cosine(idf),
        cosine(dict.fromkeys(idf, 1.0)),
        2 / 3,
        2 / 4,
        2 / 5,
        math.log1p(idf[5] + idf[9]),
        *lengths,
        lengths[1] - lengths[0],
    ]
    torch.testing.assert_close(_features(FIRST, SECOND), torch.tensor(expected))


@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_no_feature(left: bool) -> None:
    def padded(ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        row = [7, 7, *ids] if left else [*ids, 7, 7]
        real = [False] * 2 + [True] * len(ids) if left else [True] * len(ids) + [False] * 2
        return torch.tensor([row]), torch.tensor([real])

    (first, mask), (second, second_mask) = padded(FIRST), padded(SECOND)
    found = _part().features(mask, None, input_ids=first, second_ids=second, second_mask=second_mask)[0]
    torch.testing.assert_close(found, _features(FIRST, SECOND))


def test_empty_documents_share_nothing() -> None:
    none = torch.zeros(1, 4, dtype=torch.bool)
    found = _part().features(
        none, None, input_ids=torch.tensor([FIRST]), second_ids=torch.tensor([FIRST]), second_mask=none
    )
    assert not found.any()


def test_unknown_tokens_do_not_count() -> None:
    part = _part()
    part.idf[11] = part.idf[7] = 0
    first, second = torch.tensor([FIRST]), torch.tensor([SECOND])
    without = torch.tensor([[5, 5, 9]]), torch.tensor([[5, 9, 9, 12]])
    torch.testing.assert_close(
        part.features(None, None, input_ids=first, second_ids=second),
        part.features(None, None, input_ids=without[0], second_ids=without[1]),
    )


def test_a_count_of_0_is_a_deletion() -> None:
    counts = torch.tensor([[1.0, 1, 0, 1]])
    found = _part().features(None, counts, input_ids=torch.tensor([FIRST]), second_ids=torch.tensor([SECOND]))[0]
    torch.testing.assert_close(found, _features([5, 5, 9], SECOND))


def test_shared_words_decide(tmp_path: Path) -> None:
    draw = random.Random(0)
    words = [f"w{number}" for number in range(300)]
    rows = []
    for number in range(240):
        topic, other = draw.sample(words, 30), draw.sample(words, 30)
        first, second = (draw.choices(some, k=12) for some in (topic, other if number % 2 else topic))
        label = "other" if number % 2 else "same"
        rows.append({"first": " ".join(first), "second": " ".join(second), "label": label})
    run = longspan.train(
        "pairs", SMALL, data={"train": rows[:160], "validation": rows[160:]}, run=tmp_path / "run", progress=False
    )
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    counts, both = (metrics["parts"]["values"][name] for name in ("counts", "both"))
    assert counts > 0.9
    assert both >= counts
    assert len(run.explain({key: rows[0][key] for key in ("first", "second")}).scores) > 0
