"""The second loss of node classifiers: two readings of a graph shall agree."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longspan import LongspanForNodeClassification
from longspan.errors import UserError


def model(**settings: Any) -> LongspanForNodeClassification:
    torch.manual_seed(0)
    sizes = {"dim": 8, "depth": 1, "heads": 2, "mixers": ["graph"], "position": "none", "num_labels": 3}
    parts = {"embeddings": {"kind": "nodes", "node_features": 4}, "dropout": 0.0}
    config = LongspanForNodeClassification.configured(**{**parts, **sizes, **settings})
    return LongspanForNodeClassification(config)


def graph(*, mask: bool = False) -> dict[str, Tensor]:
    """Two graphs with five nodes of two features each."""
    draw = torch.Generator().manual_seed(1)
    batch = {
        "nodes": torch.full((2, 5), 2),
        "columns": torch.randint(4, (2, 10), generator=draw),
        "values": torch.rand(2, 10, generator=draw),
        "edges": torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 2, 4], [0, 0, 1, 2, 3]]),
        "labels": torch.tensor([[0, 1, -100, 2, -100], [-100, 1, 0, -100, -100]]),
    }
    if mask:
        batch["attention_mask"] = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        batch["edges"] = batch["edges"][:, :4]
    return batch


class Recorded(nn.Module):
    """Dropout that keeps what it returned."""

    found: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.found = nn.functional.dropout(x, 0.5)
        return self.found


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_that_of_the_formula(masked: bool) -> None:
    batch, found = graph(mask=masked), model(consistency=0.7).double().train()
    batch["values"] = batch["values"].double()
    last = found.dropout = Recorded()
    result = found(**batch)
    first, second = found.classifier(last.found).view(2, 2, 5, 3)
    torch.testing.assert_close(result.logits, first)
    shares = [each.softmax(-1) for each in (first, second)]
    sharp = (shares[0] + shares[1]) ** 2
    sharp = (sharp / sharp.sum(-1, keepdim=True)).detach()
    known, real = batch["labels"] >= 0, batch.get("attention_mask", torch.ones(2, 5)).bool()
    of_labels = torch.stack(
        [nn.functional.cross_entropy(each[known], batch["labels"][known]) for each in (first, second)]
    ).mean()
    apart = torch.stack([((each - sharp) ** 2).sum(-1)[real].mean() for each in shares]).mean()
    torch.testing.assert_close(result.loss, of_labels + 0.7 * apart)
    torch.testing.assert_close(result.plain_loss, of_labels.detach())
    # The same gradients, too: nothing flows through what both are sharpened to.
    weights = list(found.parameters())
    own = torch.autograd.grad(result.loss, weights, retain_graph=True)
    wanted = torch.autograd.grad(of_labels + 0.7 * apart, weights)
    torch.testing.assert_close(own, wanted)


def test_parts_of_a_batch_add_up() -> None:
    """Of accumulated batches, each has the share of its labels in all."""
    batch, found = graph(), model(consistency=0.7).train()
    found.dropout = Recorded()
    torch.manual_seed(0)
    alone = found(**batch).loss
    torch.manual_seed(0)
    torch.testing.assert_close(found(**batch, num_items_in_batch=10).loss, alone * 5 / 10)


def test_nothing_is_read_twice_without_need() -> None:
    batch, found = graph(), model(consistency=0.7)
    plain = model()
    plain.load_state_dict(found.state_dict())
    # Neither when scoring nor without labels.
    torch.testing.assert_close(found.eval()(**batch).loss, plain.eval()(**batch).loss)
    labels = batch.pop("labels")
    assert found.train()(**batch).logits.shape == (2, 5, 3)
    vectors = torch.randn(2, 5, 8)
    result = found(inputs_embeds=vectors, edges=batch["edges"], labels=labels, output_hidden_states=True)
    assert result.logits.shape == (2, 5, 3)
    assert {each.shape for each in result.hidden_states} == {(2, 5, 8)}
    assert result.loss > plain.train()(inputs_embeds=vectors, edges=batch["edges"], labels=labels).loss


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_other_weights_are_refused(weight: float) -> None:
    with pytest.raises(UserError, match="consistency must be at least 0 and finite"):
        model(consistency=weight)
