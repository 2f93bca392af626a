"""The masked language model: BERT's head, losses at labelled positions, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForMaskedLM

from longspan import LongspanForMaskedLM, UserError


def build(**changes: Any) -> LongspanForMaskedLM:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"vocab_size": 40, "dim": 16, "heads": 2, "depth": 1, "dropout": 0.0}
    return LongspanForMaskedLM(LongspanForMaskedLM.configured(**settings | {"initializer_range": 0.2} | changes))


IDS = torch.arange(1, 19).view(2, 9)


@pytest.mark.parametrize("embedding_dim", [16, 8])
def test_the_head_is_berts(embedding_dim: int) -> None:
    model: Any = build(embedding_dim=embedding_dim).eval()
    hidden = model.longspan(IDS).last_hidden_state
    linear, _, norm = model.transform
    y = nn.functional.layer_norm(nn.functional.gelu(linear(hidden)), (embedding_dim,), norm.weight, norm.bias)
    expected = y @ model.longspan.embeddings.table.weight.T + model.lm_head.bias
    torch.testing.assert_close(model(IDS).logits, expected)


@pytest.mark.parametrize("training", [False, True])
def test_the_loss_is_of_labelled_positions_only(training: bool) -> None:
    model = build().eval()
    labels = torch.full_like(IDS, -100)
    labels[0, 2], labels[1, 0], labels[1, 8] = 5, 0, 39
    expected = nn.functional.cross_entropy(model(IDS).logits.transpose(1, 2), labels, ignore_index=-100)
    model.train(training)
    output = model(IDS, labels=labels)
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(model(IDS, labels=labels, num_items_in_batch=10).loss, expected * 0.3)
    assert (output.logits is None) == training
    assert model(IDS, labels=torch.full_like(IDS, -100)).loss == 0


def test_logits_that_are_asked_for_are_made_in_training_too() -> None:
    model = build().eval()
    logits = model(IDS).logits
    model.train()
    for asked, positions in ((0, slice(None)), (2, slice(-2, None)), (torch.tensor([1, 5]), [1, 5])):
        output = model(IDS, labels=IDS, logits_to_keep=asked)
        torch.testing.assert_close(output.logits, logits[:, positions])
        assert output.logits.requires_grad
        assert output.loss == model(IDS, labels=IDS).loss


@pytest.mark.parametrize("tied", [True, False])
def test_saved_models_come_back_through_the_auto_class(tied: bool, tmp_path: Path) -> None:
    model = build(tie_word_embeddings=tied, embedding_dim=8).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, LongspanForMaskedLM)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    for made in (model, loaded):
        assert (made.lm_head.weight is made.longspan.embeddings.table.weight) == tied


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"causal": True}, "expected causal=False, got causal=True"),
        ({"cutoffs": [5]}, "expected no cutoffs, as it has one softmax, got some"),
    ],
)
def test_other_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**changes)
