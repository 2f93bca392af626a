"""Edges on their way from a batch through the backbone to the mixers that take them."""

from typing import Any

import checkpointing
import pytest
import torch
from left_padding import moved_left
from torch import Tensor

from longspan import LongspanForSequenceClassification, LongspanModel, UserError
from longspan.data.batches.streams import Stream, pad
from longspan.mixers.graph import Edges

STREAMS = {"input_ids": Stream(mask="attention_mask"), "edges": Stream(width=2, joined=True)}
#: A star whose middle hears all others, and a ring in one direction.
STAR: dict[str, Any] = {"input_ids": [3, 4, 5, 6], "edges": [[1, 0], [2, 0], [3, 0]]}
RING: dict[str, Any] = {"input_ids": [7, 8, 9], "edges": [[0, 1], [1, 2], [2, 0]]}
ALONE: dict[str, Any] = {"input_ids": [5, 5], "edges": []}


def build(head: Any = LongspanModel, **changes: Any) -> Any:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"vocab_size": 12, "dim": 8, "heads": 2, "depth": 1, "mixers": ["graph"], "dropout": 0.0}
    return head(head.configured(**shape | {"position": "none"} | changes)).double().eval()


def batch_of(*graphs: dict[str, Any], side: str = "right") -> dict[str, Any]:
    batch: dict[str, Any] = pad(graphs, STREAMS)
    batch = batch if side == "right" else moved_left(batch)
    return {"structure": Edges(batch.pop("edges")), **batch}


def read(model: Any, *graphs: dict[str, Any], side: str = "right") -> list[Tensor]:
    batch = batch_of(*graphs, side=side)
    found = model(**batch).last_hidden_state
    return [row[real.bool()] for row, real in zip(found, batch["attention_mask"], strict=True)]


def test_batches_have_the_edges_of_all_rows() -> None:
    batch = pad([STAR, ALONE, RING], STREAMS)
    assert batch["edges"].tolist() == [[0, 0, 0, 2, 2, 2], [1, 2, 3, 0, 1, 2], [0, 0, 0, 1, 2, 0]]


def test_a_node_hears_those_with_edges_to_it_and_no_others() -> None:
    model = build()
    before = read(model, STAR, RING)
    changed = {**STAR, "input_ids": [3, 4, 5, 11]}
    after = read(model, changed, RING)
    # The middle of the star, and the node that changed.
    assert [not torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True)] == [True, False, False, True]
    assert torch.equal(before[1], after[1])
    # Not a chain.
    chain = batch_of(STAR) | {"structure": None}
    assert not torch.allclose(model(**chain).last_hidden_state[0], before[0])


@pytest.mark.parametrize("mixers", [["graph"], ["graph", "softmax"]])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_and_batch_mates_change_nothing(mixers: list[str], side: str) -> None:
    model = build(mixers=mixers, depth=2)
    graphs = [STAR, ALONE, RING]
    together = read(model, *graphs, side=side)
    for graph, found in zip(graphs, together, strict=True):
        (alone,) = read(model, graph)
        torch.testing.assert_close(found, alone)


def test_edges_reach_the_head_and_survive_checkpointing() -> None:
    model = build(LongspanForSequenceClassification, num_labels=2, depth=2)
    batch = batch_of({**STAR, "labels": 0}, {**RING, "labels": 1})
    model(**batch).loss.backward()
    wanted = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    assert wanted["longspan.backbone.blocks.0.mixer.query.weight"].any()
    model.zero_grad()
    checkpointing.enable(model.train())
    model(**batch).loss.backward()
    for name, gradient in wanted.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient)


def test_nobody_reads_edges_in_vain() -> None:
    batch = batch_of(STAR)
    with pytest.raises(UserError, match="a mixer that reads Edges, such as graph for the edges of graphs, got none"):
        build(mixers=["softmax"])(**batch)
    with pytest.raises(UserError, match="either a structure or states"):
        build(mixers=["softmax"], causal=True)(**batch, use_cache=True)
    wrong = batch | {"structure": Edges(torch.tensor([[0], [4], [0]]))}
    with pytest.raises(UserError, match="sources and targets below 4"):
        build()(**wrong)
