"""Models that read slices of rows, without processes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification
from longspan.testing.mixers.slices import in_slices
from longspan.training.context_parallel import check_model

SIZES = [5, 1, 9, 4]


def config(**settings: Any) -> LongspanConfig:
    small = {"vocab_size": 30, "dim": 16, "depth": 2, "heads": 4, "dropout": 0.0, "pad_token_id": 0}
    return LongspanConfig(**{**small, **settings})


def same_gradients(model: torch.nn.Module, one: Tensor, other: Tensor) -> None:
    parameters = [each for each in model.parameters() if each.requires_grad]
    found = [torch.autograd.grad(each, parameters, allow_unused=True, materialize_grads=True) for each in (one, other)]
    for own, whole in zip(*found, strict=True):
        torch.testing.assert_close(own, whole, rtol=1e-9, atol=1e-9)


def inputs() -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 30, (2, sum(SIZES)), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :7], mask[1, 15:] = 0, 0
    return ids, mask


@pytest.mark.parametrize("position", ["fourier", "learned"])
def test_a_language_model_in_slices_is_the_whole(position: str) -> None:
    embeddings = {"kind": "tokens", "ngrams": [2, 3], "ngram_buckets": 50}
    shape = {"mixers": ["additive", "linear"], "causal": True, "forget": "input", "rotary": True, "position": position}
    model = LongspanForCausalLM(config(**shape, short_convolution=4, embeddings=embeddings)).double()
    torch.nn.init.normal_(model.longspan.embeddings.ngrams.weight)
    ids, mask = inputs()
    targets = torch.where(mask > 0, ids.roll(-1, 1), -100)
    items = int((targets != -100).sum())
    parts = [each.split(SIZES, 1) for each in (ids, mask, targets)]

    def read(number: int) -> Any:
        own = [each[number] for each in parts]
        return model(own[0], own[1], shift_labels=own[2], num_items_in_batch=items)

    whole, found = model(ids, mask, shift_labels=targets), in_slices(len(SIZES), read)
    losses = torch.cat([each.losses for each in found], 1)
    torch.testing.assert_close(losses, whole.losses, rtol=1e-12, atol=1e-12)
    same_gradients(model, sum(each.loss for each in found), whole.loss)


@pytest.mark.parametrize("pooling", ["attention", "mean+max"])
def test_a_classifier_in_slices_is_the_whole(pooling: str) -> None:
    head = {"kind": "classification", "pooling": pooling, "wide": False}
    # The scale of sinusoids has a gradient of float32.
    shape = {"mixers": ["additive", "messages"], "num_labels": 3, "short_convolution": 3, "position": "learned"}
    model = LongspanForSequenceClassification(config(**shape, head=head)).double()
    (ids, mask), labels = inputs(), torch.tensor([0, 2])
    parts = [each.split(SIZES, 1) for each in (ids, mask)]
    found = in_slices(len(SIZES), lambda n: model(parts[0][n], parts[1][n], labels=labels))
    whole = model(ids, mask, labels=labels)
    for each in found:
        torch.testing.assert_close(each.logits, whole.logits, rtol=1e-12, atol=1e-12)
    same_gradients(model, sum(each.loss for each in found) / len(SIZES), whole.loss)


def test_states_and_slices_are_refused_together() -> None:
    model = LongspanForCausalLM(config(causal=True))
    with pytest.raises(UserError, match="slices"):
        in_slices(2, lambda _: model(torch.ones(1, 4, dtype=torch.long), use_cache=True))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"mixers": ["softmax"]}, "Softmax"),
        ({"mixers": ["recurrent"]}, "Recurrent"),
        ({"head": {"kind": "classification", "wide": False, "pooling": "first"}}, "pooling=first"),
        ({"head": {"kind": "classification", "wide": True}}, "wide"),
        ({"embeddings": {"kind": "tokens", "word_characters": True}}, "embeddings"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(settings: dict[str, Any], part: str) -> None:
    head = {"kind": "classification", "wide": False, "pooling": "mean"}
    model = LongspanForSequenceClassification(config(**{"head": head, **settings}))
    with pytest.raises(UserError, match=part):
        check_model(model)
