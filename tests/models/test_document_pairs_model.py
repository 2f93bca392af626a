"""The classifier of pairs of documents, against its formula in float64, with every mixer as the encoder."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoConfig

from longspan import LongspanForDocumentPairs, UserError, mixers
from longspan.models.heads.classification import POOLINGS

# Needs the edges of a graph, which no document has.
NAMES = [name for name in mixers.names() if name != "graph"]
OPTIONS = {"local": {"radius": 3}, "relative": {"memory": 16}, "linformer": {"max_length": 32}}


def build(name: str = "additive", **changes: Any) -> LongspanForDocumentPairs:
    torch.manual_seed(3)
    settings: dict[str, Any] = {"vocab_size": 30, "dim": 16, "heads": 2, "depth": 1, "dropout": 0.0, "mixers": [name]}
    settings |= {"mixer_options": {name: OPTIONS[name]} if name in OPTIONS else {}, "num_labels": 3}
    settings |= {"initializer_range": 0.3}
    return LongspanForDocumentPairs(LongspanForDocumentPairs.configured(**settings | changes)).eval()


def ids(*shape: int) -> Tensor:
    return torch.randint(1, 30, shape, generator=torch.Generator().manual_seed(sum(shape)))


def joined(rows: list[Tensor], left: int = 0, right: int = 0) -> tuple[Tensor, Tensor]:
    """Return documents of different lengths as one batch, padded on the right, and more on either side; its mask."""
    longest = max(map(len, rows))
    padded = [pad(row, (left, longest - len(row) + right)) for row in rows]
    masks = [pad(torch.ones_like(row), (left, longest - len(row) + right)) for row in rows]
    return torch.stack(padded), torch.stack(masks)


def batch(left: int = 0, right: int = 0) -> dict[str, Tensor]:
    """Three pairs: of different lengths, of one token and of no token in the second."""
    first, first_mask = joined([ids(7), ids(1), ids(4)], left, right)
    second, second_mask = joined([ids(3), ids(6), ids(0)], right, left)
    names = ("input_ids", "attention_mask", "second_ids", "second_mask")
    return dict(zip(names, (first, first_mask, second, second_mask), strict=True))


def swapped(given: dict[str, Tensor]) -> dict[str, Tensor]:
    first, mask, second, second_mask = given.values()
    return dict(zip(given, (second, second_mask, first, mask), strict=True))


def pooled(model: LongspanForDocumentPairs, document: Tensor) -> np.ndarray:
    """Return the vector of one document, (p,), with numpy from the encoder's outputs."""
    dim, pooling = model.config.dim, model.config.head.pooling
    if not len(document):
        return np.zeros(dim * (1 + (pooling == "mean+max")))
    hidden = model.longspan(input_ids=document[None]).last_hidden_state[0].numpy()
    if pooling == "attention":
        weight = {name: value.numpy() for name, value in model.pooling.state_dict().items()}
        logits = np.tanh(hidden @ weight["hidden.weight"].T + weight["hidden.bias"]) @ weight["score.weight"][0]
        shares = np.exp(logits - logits.max())
        return np.asarray((shares[:, None] * hidden).sum(0) / shares.sum())
    parts = {"mean": hidden.mean(0), "max": hidden.max(0), "first": hidden[0]}
    return np.concatenate([parts[name] for name in pooling.split("+")])


@torch.no_grad()
@pytest.mark.parametrize("pooling", POOLINGS)
def test_logits_and_loss_are_those_of_the_formula(pooling: str) -> None:
    model = build("softmax", pooling=pooling).double()
    given, labels = batch(), [2, 0, -100]
    found = model(**given, labels=torch.tensor(labels))
    weight, bias = model.classifier.weight.numpy(), model.classifier.bias.numpy()
    width, losses = weight.shape[1] // 4, []
    for row, label in enumerate(labels):
        u, v = (
            pooled(model, given[name][row][given[mask][row] > 0])
            for name, mask in (("input_ids", "attention_mask"), ("second_ids", "second_mask"))
        )
        expected = [
            bias[c]
            + sum(
                weight[c, i] * u[i]
                + weight[c, width + i] * v[i]
                + weight[c, 2 * width + i] * abs(u[i] - v[i])
                + weight[c, 3 * width + i] * u[i] * v[i]
                for i in range(width)
            )
            for c in range(3)
        ]
        np.testing.assert_allclose(found.logits[row], expected, rtol=1e-9, atol=1e-12)
        if label >= 0:
            losses.append(math.log(sum(math.exp(one - expected[label]) for one in expected)))
    assert found.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-9)


@torch.no_grad()
def test_changing_places_changes_what_the_vectors_themselves_say_alone() -> None:
    model, given = build().double(), batch()
    width = model.pooling.output_dim
    change = model(**swapped(given)).logits - model(**given).logits
    u, v = (model.pooled(*pair)[0] for pair in (list(given.values())[:2], list(given.values())[2:]))
    own = model.classifier.weight[:, :width] - model.classifier.weight[:, width : 2 * width]
    torch.testing.assert_close(change, (v - u) @ own.mT)
    model.classifier.weight[:, width : 2 * width] = model.classifier.weight[:, :width]
    torch.testing.assert_close(model(**swapped(given)).logits, model(**given).logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_padding_batch_mates_and_empty_documents_change_nothing(name: str) -> None:
    model = build(name)
    together = model(**batch()).logits
    assert together.isfinite().all()
    for left, right in ((3, 0), (0, 5), (2, 1)):
        # Sums of other numbers of zeros in float32.
        torch.testing.assert_close(model(**batch(left, right)).logits, together, rtol=1e-4, atol=1e-4)
    for row, (first, second) in enumerate(((ids(7), ids(3)), (ids(1), ids(6)))):
        alone = model(first[None], second_ids=second[None]).logits
        torch.testing.assert_close(alone, together[row : row + 1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_documents_teach_the_encoder_in_bfloat16_too(name: str) -> None:
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        model = build(name).to(dtype)
        output = model(**batch(), labels=torch.tensor([0, 2, 1]))
        assert output.loss.dtype == torch.float32
        output.loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(grad.isfinite().all() for grad in grads)
        # Every weight takes part, as training on several processes needs.
        assert [n for n, p in model.named_parameters() if p.grad is None] == []
        gradients.append(model.classifier.weight.grad)
    # Two digits of bfloat16, of what is about 1.
    torch.testing.assert_close(gradients[1].float(), gradients[0], rtol=0.1, atol=0.1)
    model = build(name)
    for changed in ("input_ids", "second_ids"):
        given = batch()
        logits = model(**given).logits
        given[changed] = given[changed].roll(1, 0) % 29 + 1
        assert (model(**given).logits - logits).abs().max() > 1e-4


@pytest.mark.parametrize("pooling", POOLINGS)
def test_nan_in_padding_reaches_nothing(pooling: str) -> None:
    model = build(pooling=pooling)
    vectors, masks = torch.randn(2, 2, 6, 16), torch.ones(2, 2, 6)
    masks[0, 0, :2] = masks[1, 1, 4:] = 0

    def run(padding: float) -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        first, second = (v.masked_fill(m.unsqueeze(-1) == 0, padding) for v, m in zip(vectors, masks, strict=True))
        output = model(
            inputs_embeds=first,
            attention_mask=masks[0],
            second_embeds=second,
            second_mask=masks[1],
            labels=torch.tensor([0, 1]),
        )
        output.loss.backward()
        return output.logits, [p.grad for p in model.parameters() if p.grad is not None]

    (logits, gradients), (expected, expected_gradients) = run(float("nan")), run(0.0)
    assert torch.equal(logits, expected)
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected_gradients, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
def test_a_compiled_model_gives_the_same_loss_and_gradients() -> None:
    torch._dynamo.reset()
    model = build(dropout=0.0).train()
    results = []
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        loss = run(**batch(), labels=torch.tensor([0, 2, 1]), num_items_in_batch=torch.tensor(7)).loss
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_label_smoothing_and_class_weights_are_those_of_classifiers() -> None:
    model = build(label_smoothing=0.1, class_weights=[1.0, 2.0, 0.5]).train()
    labels = torch.tensor([0, 2, 1])
    found = model(**batch(), labels=labels)
    log = found.logits.log_softmax(-1)
    losses = -(0.9 * log.gather(1, labels[:, None])[:, 0] + 0.1 * log.mean(1))
    torch.testing.assert_close(found.loss, (losses * torch.tensor([1.0, 0.5, 2.0])).mean())
    torch.testing.assert_close(found.plain_loss, torch.nn.functional.cross_entropy(found.logits, labels))


def test_it_is_saved_and_gives_hidden_states_of_both(tmp_path: Path) -> None:
    model = build()
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).head.kind() == "document_pairs"
    loaded = LongspanForDocumentPairs.from_pretrained(tmp_path).eval()
    found = loaded(**batch(), output_hidden_states=True)
    torch.testing.assert_close(found.logits, model(**batch()).logits)
    assert [tuple(one.shape[:2]) for one in found.hidden_states] == [(3, 7)] * 2 + [(3, 6)] * 2
    assert loaded(**batch()).hidden_states is None
    assert torch.equal(loaded(**batch(), return_dict=False)[0], loaded(**batch()).logits)


def test_what_cannot_be_is_one_sentence() -> None:
    model = build()
    with pytest.raises(UserError, match="the second as second_ids, got only one; give both"):
        model(ids(2, 5))
    with pytest.raises(UserError, match="got neither"):
        model()
    with pytest.raises(UserError, match="a second document for each first one, got 3 for 2; give as many"):
        model(ids(2, 5), second_ids=ids(3, 5))
    with pytest.raises(UserError, match="expected tokens of both documents for a model with wide=True"):
        build(wide=True).eval()(inputs_embeds=torch.zeros(2, 5, 16), second_ids=ids(2, 5))
    with pytest.raises(UserError, match=r"expected labels as integers of shape \(2,\)"):
        model(ids(2, 5), second_ids=ids(2, 5), labels=torch.zeros(3, dtype=torch.long))
    with pytest.raises(UserError, match="mixers return no attention maps"):
        model(ids(2, 5), second_ids=ids(2, 5), output_attentions=True)
    with pytest.raises(TypeError, match="document_ids"):
        model(ids(2, 5), second_ids=ids(2, 5), document_ids=ids(2, 5))
