"""The model that finds evidence, and the words it shares with a question."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import LongspanForEvidence
from longspan.errors import UserError
from longspan.models.parts.matching import FIRST_SPREAD, LENGTH, SATURATION, LexicalMatch, matches

# Two documents: of four parts, the third without tokens, and of two. Three questions, the second about the second.
IDS = torch.tensor([[3, 4, 5, 3, 6, 7, 7, 3], [8, 9, 3, 4, 0, 0, 0, 0]])
MASK = (IDS > 0).long()
PARTS = torch.tensor([[0, 0, 0, 1, 1, 3, 3, 3], [0, 0, 1, 1, 0, 0, 0, 0]])
PART_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
ASKED = torch.tensor([[3, 7, 2], [4, 9, 0], [5, 0, 0]])
ROWS = torch.tensor([0, 1, 0])
BATCH: dict[str, Any] = {
    "input_ids": IDS,
    "attention_mask": MASK,
    "part_ids": PARTS,
    "part_mask": PART_MASK,
    "question_ids": ASKED,
    "question_mask": (ASKED > 0).long(),
    "question_rows": ROWS,
}
LABELS = torch.tensor([[1, 0, 0, 1], [0, 1, -100, -100], [0, 0, 1, 0]])


def build(**changes: Any) -> LongspanForEvidence:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocab_size": 12, "dim": 8, "heads": 2, "depth": 1, "mixers": ["linear"]}
    return LongspanForEvidence(LongspanForEvidence.configured(**settings | {"initializer_range": 0.3} | changes)).eval()


def logits(model: LongspanForEvidence, **changes: Tensor) -> Tensor:
    found: Tensor = model(**BATCH | changes).logits
    return found


KINDS: list[dict[str, Any]] = [
    {},
    {"question": "front"},
    {"lexical_match": False, "pooling": "mean"},
    {"mixers": ["local", "softmax"]},
]


@pytest.mark.parametrize("kind", KINDS)
def test_neither_padding_nor_other_documents_change_anything(kind: dict[str, Any]) -> None:
    model = build(**kind)
    together = logits(model)
    assert together.shape == (3, 4)
    assert not together[1, 2:].any()
    one = {name: BATCH[name][1:2, :4] for name in ("input_ids", "attention_mask", "part_ids")}
    for left, right in ((0, 3), (2, 1)):
        # Padding on either side, with any numbers of parts.
        padded = {name: torch.nn.functional.pad(column, (left, right), value=0) for name, column in one.items()}
        padded["part_ids"] = padded["part_ids"].masked_fill(padded["attention_mask"] == 0, 1)
        question = {"question_ids": ASKED[1:2, :2], "question_mask": torch.ones(1, 2), "question_rows": ROWS[:1]}
        alone = model(**padded, **question, part_mask=torch.ones(1, 2)).logits
        # Other shapes round otherwise by 1e-7. Smoothed scores of two parts differ by 1e-3: standardised, by 1e-4.
        torch.testing.assert_close(alone, together[1:2, :2], atol=5e-4, rtol=0)


def test_matches_are_bm25() -> None:
    found, rarity = matches(IDS, MASK.bool(), PARTS, PART_MASK.bool(), ASKED, ASKED > 0, ROWS)
    for question, row in enumerate(ROWS.tolist()):
        texts = [IDS[row][(PARTS[row] == part) & (MASK[row] > 0)].tolist() for part in range(int(PART_MASK[row].sum()))]
        mean = sum(map(len, texts)) / len(texts)
        for place, token in enumerate(ASKED[question].tolist()):
            having = sum(token in text for text in texts) if token else 0
            i = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5)) if having else 0.0
            assert rarity[question, place].item() == pytest.approx(i, rel=1e-6)
            for part, text in enumerate(texts):
                f = text.count(token) if token else 0
                k = SATURATION * (1 - LENGTH + LENGTH * len(text) / mean)
                expected = i * f * (SATURATION + 1) / (f + k)
                assert found[question, part, place].item() == pytest.approx(expected, rel=1e-6)


def test_new_weights_rank_as_smoothed_bm25() -> None:
    torch.manual_seed(0)
    found = torch.rand(2, 40, 3, dtype=torch.float64)
    rarity, ids = torch.rand(2, 3, dtype=torch.float64), torch.tensor([[1, 2, 3], [4, 5, 6]])
    real = torch.arange(40) < torch.tensor([[40], [25]])
    match = LexicalMatch(10, 4).double()
    features, direct = match(found, rarity, ids, torch.randn(2, 3, 4).double(), torch.ones(2, 3).bool(), real)
    assert features.shape == (2, 40, match.features)
    # Features have mean 0 and variance 1 over the parts there are.
    torch.testing.assert_close(features[1, :25].mean(0), torch.zeros(match.features).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(
        features[1, :25].var(0, correction=0), torch.ones(match.features).double(), rtol=1e-3, atol=0
    )
    for row, count in enumerate((40, 25)):
        total = found[row, :count].sum(1)
        places = torch.arange(count, dtype=torch.float64)
        weights = (-0.5 * ((places - places[:, None]) / FIRST_SPREAD) ** 2).exp()
        expected = weights @ total
        expected = (expected - expected.mean()) / expected.std(correction=0)
        torch.testing.assert_close(direct[row, :count], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_is_the_mean_cross_entropy_of_labelled_parts(dtype: torch.dtype) -> None:
    model = build().to(dtype)
    found = model(**BATCH, labels=LABELS)
    known = LABELS >= 0
    expected = torch.nn.functional.binary_cross_entropy_with_logits(found.logits[known].float(), LABELS[known].float())
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(model(**BATCH, labels=LABELS, num_items_in_batch=20).loss, expected * 10 / 20)
    found.loss.backward()
    # Every weight takes part, as training on several processes needs.
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    none = model(**BATCH, labels=torch.full_like(LABELS, -100))
    assert none.loss == 0


def test_questions_and_words_they_share_are_read() -> None:
    for kind in KINDS:
        model = build(**kind)
        assert (logits(model) - logits(model, question_ids=ASKED.flip(0)))[0].abs().max() > 1e-4
    nothing = {name: torch.zeros_like(BATCH[name]) for name in ("attention_mask", "part_mask", "question_mask")}
    # A share of a batch without documents.
    assert build()(**BATCH | nothing, labels=torch.full_like(LABELS, -100)).loss == 0


def test_it_is_saved_and_begins_with_the_share_it_expects(tmp_path: Path) -> None:
    model = build()
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(logits(LongspanForEvidence.from_pretrained(tmp_path).eval()), logits(model))
    model.expect(0.1)
    assert model.classifier.bias.sigmoid().item() == pytest.approx(0.1)


def test_what_cannot_be_is_one_sentence() -> None:
    with pytest.raises(UserError, match="causal=False"):
        build(causal=True)
    with pytest.raises(UserError, match=r"pooling .*first"):
        build(pooling="first")
    with pytest.raises(UserError, match="cross attention to read questions, got local"):
        build(mixers=["local"])
    with pytest.raises(UserError, match=r"labels of \(3, 4\)"):
        build()(**BATCH, labels=LABELS[:, :2])
