"""Embeddings of n-grams: which there are, with padding, packed documents and streams, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForSequenceClassification,
    LongspanModel,
    UserError,
    recipes,
)
from longspan.models.parts.ngrams import NOTHING, NgramEmbedding
from longspan.programs.making import export_program


def build(head: Any = LongspanModel, **changes: Any) -> Any:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"vocab_size": 23, "dim": 16, "heads": 2, "depth": 1, "position": "none"}
    model = head(head.configured(**shape | {"ngrams": [2, 4], "ngram_buckets": 99} | changes)).double().eval()
    # New ones are zero, as none has been met.
    torch.nn.init.normal_(model.base_model.embeddings.ngrams.weight[1:])
    return model


def tokens(b: int, t: int) -> Tensor:
    return torch.randint(1, 23, (b, t), generator=torch.Generator().manual_seed(t))


def embedding(sizes: list[int], buckets: int = 1000) -> NgramEmbedding:
    made = NgramEmbedding(sizes, buckets, 4)
    torch.nn.init.normal_(made.weight[1:])
    return made


def test_each_position_has_the_ngrams_that_end_there() -> None:
    """A position's vector is that of the same n-grams anywhere else, and changes with each of their tokens alone."""
    made = embedding([2, 3])
    x = made(torch.tensor([[5, 6, 7, 8], [9, 6, 7, 8]]))
    # Both n-grams are the same at the end; the first of the row have none, the second no 3-gram.
    torch.testing.assert_close(x[0, 3], x[1, 3])
    assert (x[:, 0] == 0).all()
    assert (x[0, 2] != x[1, 2]).all()
    pair = embedding([2])
    pair.weight = made.weight
    torch.testing.assert_close(x[:, 1], pair(torch.tensor([[5, 6], [9, 6]]))[:, 1])
    assert made(torch.ones(2, 0, dtype=torch.long)).shape == (2, 0, 4)


def test_orders_and_sizes_differ_and_buckets_are_filled_evenly() -> None:
    made = embedding([2, 3], 5000)
    ids = torch.cartesian_prod(torch.arange(100), torch.arange(100))
    found = made.buckets(torch.cat((torch.full((10_000, 2), NOTHING), ids), 1))[:, 1, 0]
    counts = torch.bincount(found, minlength=5000)
    assert counts[0] == 0
    # Thrown at random, 10,000 pairs would leave e^-2 = 0.135 of the buckets empty, and none with more than about ten.
    assert (counts[1:] == 0).float().mean() < 0.15
    assert counts.max() < 15
    same = made.buckets(torch.tensor([[NOTHING, NOTHING, 7, 7, 7]]))[0, 2]
    assert same[0] != same[1]


@torch.inference_mode()
def test_the_largest_ids_do_not_overflow() -> None:
    found = embedding([2, 5]).buckets(torch.full((1, 9), 2**31 - 1))
    assert ((found > 0) & (found < 1000)).all()


@torch.inference_mode()
def test_padding_changes_nothing() -> None:
    for causal in (False, True):
        model, ids = build(causal=causal), tokens(2, 7)
        expected = model(ids).last_hidden_state
        for left, right in ((3, 0), (0, 3), (5, 5)):
            padded = torch.nn.functional.pad(ids, (left, right), value=9)
            mask = torch.zeros_like(padded)
            mask[:, left : left + 7] = 1
            y = model(padded, attention_mask=mask).last_hidden_state
            torch.testing.assert_close(y[:, left : left + 7], expected)
        mask = torch.tensor([[1] * 7, [0] * 7])
        assert model(ids, attention_mask=mask).last_hidden_state.isfinite().all()


def test_packed_documents_are_separate_calls() -> None:
    model, ids, lengths = build(causal=True), tokens(1, 12), [1, 2, 6, 3]
    numbers = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)).unsqueeze(0)
    packed = model(ids, document_ids=numbers).last_hidden_state
    apart = torch.cat([model(part).last_hidden_state for part in ids.split(lengths, 1)], 1)
    torch.testing.assert_close(packed, apart)
    table = model.embeddings.ngrams.weight
    (found,) = torch.autograd.grad((packed**2).sum(), table)
    torch.testing.assert_close(found, torch.autograd.grad((apart**2).sum(), table)[0])
    assert (found[0] == 0).all()


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
def test_they_export_together_with_a_short_convolution() -> None:
    model = build(LongspanForSequenceClassification, num_labels=3, short_convolution=4).float()
    run = export_program(model, None).module()
    for b, t in ((1, 1), (2, 2), (2, 50)):
        ids, mask = tokens(b, t), torch.ones(b, t, dtype=torch.long)
        mask[-1, t - t // 3 :] = 0
        torch.testing.assert_close(run(ids, mask), model(ids, attention_mask=mask).logits, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_saved_models_come_back_and_new_tables_are_zero(tmp_path: Path) -> None:
    model, ids = build().float(), tokens(2, 9)
    model.save_pretrained(tmp_path / "with")
    assert torch.equal(LongspanModel.from_pretrained(tmp_path / "with")(ids)[0], model(ids)[0])
    plain = LongspanModel(LongspanConfig(vocab_size=23, dim=16, heads=2, depth=1)).eval()
    plain.save_pretrained(tmp_path / "without")
    grown = LongspanModel.from_pretrained(tmp_path / "without", ngrams=[2], ngram_buckets=50)
    assert torch.equal(grown(ids)[0], plain(ids)[0])


def test_embeddings_in_place_of_ids_are_refused() -> None:
    model = build()
    with pytest.raises(UserError, match="expected input_ids, as this model has ngrams of them, got inputs_embeds"):
        model(inputs_embeds=model.embeddings.table(tokens(1, 4)))


@pytest.mark.parametrize("sizes", [[1], [2, 2], [17], [-1], [0, 2]])
def test_sizes_that_are_none_are_refused(sizes: list[int]) -> None:
    with pytest.raises(UserError, match="expected ngrams of different sizes from 2 to 16, got"):
        LongspanForCausalLM.configured(ngrams=sizes)


def test_n_grams_of_a_recipe_can_be_switched_off() -> None:
    config = LongspanForSequenceClassification.configured(
        **recipes.load("imdb", ["model.ngrams=[]"]).model, vocab_size=50
    )
    assert config.embeddings.ngrams is None
    assert config.embeddings.ngram_buckets == LongspanConfig().embeddings.ngram_buckets


def test_buckets_need_ngrams_and_memory() -> None:
    with pytest.raises(UserError, match="ngram_buckets needs sizes of n-grams, got 99 without ngrams"):
        LongspanForCausalLM.configured(ngram_buckets=99)
    with pytest.raises(UserError, match="ngram_buckets must be at least 2, got 1"):
        LongspanForCausalLM.configured(ngrams=[2], ngram_buckets=1)
    with pytest.raises(UserError, match=r"this machine's [\d.e+]+ GiB of memory, got ngram_buckets=2147483647"):
        LongspanForCausalLM(LongspanForCausalLM.configured(ngrams=[2], ngram_buckets=2**31 - 1, dim=256, causal=True))
    assert build().embeddings.ngrams.weight.shape == (99, 16)
    assert LongspanForCausalLM.configured(ngrams=[]).embeddings.ngrams is None
