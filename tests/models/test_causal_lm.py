"""The causal language model: losses, logits, what is tied, saving, and Transformer-XL as a configuration."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from longspan import LongspanForCausalLM, LongspanModel, UserError
from longspan.models.parts.adaptive import AdaptiveSoftmax
from longspan.ops.dropout import Dropout

ADAPTIVE = {"cutoffs": [7, 15], "div_val": 2}


def build(**changes: Any) -> LongspanForCausalLM:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"vocab_size": 40, "dim": 16, "heads": 2, "depth": 2, "causal": True, "dropout": 0.0}
    return LongspanForCausalLM(LongspanForCausalLM.configured(**settings | {"initializer_range": 0.2} | changes))


def batch(b: int = 2, t: int = 9) -> Tensor:
    return torch.randint(1, 40, (b, t), generator=torch.Generator().manual_seed(t))


@pytest.mark.parametrize("changes", [{}, {"embedding_dim": 8}, ADAPTIVE])
@pytest.mark.parametrize("training", [False, True])
def test_losses_are_those_of_the_next_tokens(changes: dict[str, Any], training: bool) -> None:
    model, ids = build(**changes).double(), batch()
    probabilities = model.eval()(ids).logits.softmax(-1)
    model.train(training)
    output = model(ids, labels=ids)
    for row in range(2):
        for i in range(8):
            expected = -probabilities[row, i, ids[row, i + 1]].log()
            torch.testing.assert_close(output.losses[row, i], expected)
    assert (output.losses[:, -1] == 0).all()
    torch.testing.assert_close(output.loss, output.losses.sum() / 16)
    # What is large and not asked for is not made.
    assert (output.logits is None) == (training or "cutoffs" in changes)


def test_targets_may_come_shifted_and_win() -> None:
    model, ids = build().eval(), batch()
    shifted = torch.cat((ids[:, 1:], torch.full((2, 1), -100)), 1)
    by_labels = model(ids, labels=ids)
    for output in (model(ids, shift_labels=shifted), model(ids, shift_labels=shifted, labels=torch.zeros_like(ids))):
        assert torch.equal(output.losses, by_labels.losses)
        assert output.loss == by_labels.loss


def test_ignored_targets_count_neither_in_sum_nor_in_number() -> None:
    model, ids = build().eval(), batch()
    targets = batch(2, 10)[:, 1:].clone()
    every = model(ids, shift_labels=targets).losses
    targets[0, :4] = targets[1, 8] = -100
    output = model(ids, shift_labels=targets)
    assert torch.equal(output.losses, every.masked_fill(targets == -100, 0))
    torch.testing.assert_close(output.loss, output.losses.sum() / 13)
    torch.testing.assert_close(model(ids, shift_labels=targets, num_items_in_batch=50).loss, output.losses.sum() / 50)
    number = torch.tensor(50)
    torch.testing.assert_close(
        model(ids, shift_labels=targets, num_items_in_batch=number).loss, output.losses.sum() / 50
    )
    assert model(ids, shift_labels=torch.full_like(ids, -100)).loss == 0


@pytest.mark.parametrize("changes", [{}, ADAPTIVE])
def test_logits_to_keep_keeps_logits_and_all_losses(changes: dict[str, Any]) -> None:
    model, ids = build(**changes).eval(), batch()
    logits = model(ids).logits
    assert logits.shape == (2, 9, 40)
    # A product of fewer rows may be summed in another order: a few roundings of float32.
    for wanted, kept in ((3, slice(-3, None)), (torch.tensor([0, 4]), [0, 4])):
        torch.testing.assert_close(model(ids, logits_to_keep=wanted).logits, logits[:, kept], rtol=1e-5, atol=1e-6)
    output = model(ids, labels=ids, logits_to_keep=1)
    torch.testing.assert_close(output.losses, model(ids, labels=ids).losses)
    torch.testing.assert_close(output.logits, logits[:, -1:])


@pytest.mark.parametrize("changes", [{}, {"embedding_dim": 8}, ADAPTIVE])
def test_logits_that_are_asked_for_are_made_in_training_too(changes: dict[str, Any]) -> None:
    model, ids = build(**changes).double(), batch()
    logits = model.eval()(ids).logits
    model.train()
    model(ids, labels=ids).loss.backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for asked, positions in ((0, slice(None)), (2, slice(-2, None)), (torch.tensor([1, 5]), [1, 5])):
        model.zero_grad()
        output = model(ids, labels=ids, logits_to_keep=asked)
        torch.testing.assert_close(output.logits, logits[:, positions])
        # A loss of the caller's own may use them.
        assert output.logits.requires_grad
        output.loss.backward()
        for one, other in zip([p.grad for p in model.parameters() if p.grad is not None], expected, strict=True):
            torch.testing.assert_close(one, other)
    # For tools that expect them from every call.
    model.forward = functools.partial(model.forward, logits_to_keep=0)
    torch.testing.assert_close(model(ids, labels=ids).logits, logits)
    assert model.accepts_loss_kwargs


def test_padding_on_either_side_changes_no_loss() -> None:
    model, ids = build(mixers=["softmax", "additive"]).eval(), batch(1, 7)
    alone = model(ids, shift_labels=ids).losses
    for left, right in ((4, 0), (0, 3), (2, 2)):
        padded, mask = (nn.functional.pad(tensor, (left, right)) for tensor in (ids, torch.ones_like(ids)))
        targets = nn.functional.pad(ids, (left, right), value=-100)
        losses = model(padded, attention_mask=mask, shift_labels=targets).losses
        torch.testing.assert_close(losses[:, left : left + 7], alone)
        assert losses.count_nonzero() == 7


COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"embedding_dim": 8},
    {"position_combine": "concat"},
    {"share_layers": True, "depth": 4},
    {"cutoffs": []},
    ADAPTIVE | {"position_combine": "concat"},
]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", COMBINATIONS)
def test_saved_models_come_back_through_the_auto_class(changes: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    model = build(tie_word_embeddings=tied, **changes).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, LongspanForCausalLM)
    assert torch.equal(loaded(batch()).logits, model(batch()).logits)
    for made in (model, loaded):
        head = made.lm_head.outputs[0] if isinstance(made.lm_head, AdaptiveSoftmax) else made.lm_head
        table = made.longspan.embeddings.table.tables[0] if "cutoffs" in changes else made.longspan.embeddings.table
        assert (head.weight is table.weight) == tied
    count = sum(p.numel() for p in model.parameters())
    assert count == sum(p.numel() for p in loaded.parameters())
    assert isinstance(LongspanModel.from_pretrained(tmp_path), LongspanModel)


@pytest.mark.parametrize("changes", [{}, ADAPTIVE])
def test_a_new_head_on_a_saved_body_is_tied_to_it(changes: dict[str, Any], tmp_path: Path) -> None:
    body = build(**changes).longspan.eval()
    body.save_pretrained(tmp_path)
    model = LongspanForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(model.longspan(batch()).last_hidden_state, body(batch()).last_hidden_state)
    assert model(batch()).logits.isfinite().all()
    body_weights = {p.data_ptr() for p in model.longspan.parameters()}
    assert any(p.data_ptr() in body_weights for p in model.lm_head.parameters())


def test_resized_vocabularies_stay_tied() -> None:
    model = build()
    model.resize_token_embeddings(45, mean_resizing=False)
    assert isinstance(model.lm_head, nn.Linear)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert model(batch()).logits.shape == (2, 9, 45)
    assert model.config.vocab_size == 45


TRANSFORMER_XL: dict[str, Any] = {
    "mixers": ["relative"],
    "mixer_options": {"relative": {"memory": 32, "bias": False}},
    "position": "none",
    "norm": "post",
    "embedding_norm": False,
    "scale_embeddings": True,
    "activation": "relu",
    "feed_forward_dropout": True,
    "feed_forward_dim": 24,
    "pad_token_id": None,
}


def test_transformer_xl_is_a_configuration() -> None:
    model, ids = build(**TRANSFORMER_XL, **ADAPTIVE).double().eval(), batch(2, 12)
    body: Any = model.longspan
    x = body.embeddings.table(ids) * 16**0.5
    for block in body.backbone.blocks:
        x = nn.functional.layer_norm(x + block.mixer(x), (16,), block.mixer_norm.weight, block.mixer_norm.bias)
        first, last, norm = block.feed_forward[0], block.feed_forward[2], block.feed_forward_norm
        y = last(first(x).clamp_min(0))
        x = nn.functional.layer_norm(x + y, (16,), norm.weight, norm.bias)
        assert all(layer.bias is None for layer in (block.mixer.query, block.mixer.output, block.mixer.distance))
    torch.testing.assert_close(body(ids).last_hidden_state, x)
    assert isinstance(model.lm_head, AdaptiveSoftmax)
    torch.testing.assert_close(model(ids).logits, model.lm_head.log_probabilities(x))
    states, parts = None, []
    for segment in ids.split(4, 1):
        output = model(segment, past_key_values=states, use_cache=True)
        states = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits)


def test_transformer_xl_drops_where_the_paper_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(**TRANSFORMER_XL | {"dropout": 0.3}, **ADAPTIVE).train()
    dropped: list[tuple[int, ...]] = []

    def watch(self: Dropout, x: Tensor) -> Tensor:
        assert self.p == 0.3
        dropped.append(tuple(x.shape[2:]))
        return x

    monkeypatch.setattr(Dropout, "forward", watch)
    model(batch(), labels=batch())
    # The embeddings; each layer's attention, inside its feed-forward network and behind it; the last layer's output.
    assert dropped == [(16,), *[(16,), (24,), (16,)] * 2, (16,)]


def test_feed_forward_dropout_moves_no_weights() -> None:
    assert build(feed_forward_dropout=True).state_dict().keys() == build().state_dict().keys()


def test_the_embedding_norm_follows_the_norm_unless_chosen() -> None:
    for changes, normed in (
        ({"norm": "post"}, True),
        ({"norm": "pre"}, False),
        ({"norm": "post", "embedding_norm": False}, False),
        ({"norm": "pre", "embedding_norm": True}, True),
    ):
        model = build(**changes)
        assert isinstance(model.longspan.embedding_norm, nn.LayerNorm) == normed


def test_scaled_embeddings_take_vectors_as_the_table_gives_them() -> None:
    model, ids = build(scale_embeddings=True, position="none").eval(), batch()
    assert torch.equal(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, model(ids).logits)
    scaled = model(ids).logits
    with torch.no_grad():
        model.longspan.embeddings.table.weight.mul_(4)
        model.lm_head.weight = nn.Parameter(model.longspan.embeddings.table.weight / 4)
    model.config.scale_embeddings = False
    torch.testing.assert_close(model(ids).logits, scaled)


@pytest.mark.parametrize("changes", [{}, ADAPTIVE])
def test_bfloat16_follows_float32(changes: dict[str, Any]) -> None:
    model, ids = build(initializer_range=0.05, **changes), batch(2, 300)
    expected = model(ids, labels=ids).losses
    losses = model.bfloat16()(ids, labels=ids).losses
    assert losses.dtype == torch.float32
    # Eight bits of each score, of size below 4.
    torch.testing.assert_close(losses, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("changes", [{}, ADAPTIVE])
def test_autocast_follows_float32(changes: dict[str, Any]) -> None:
    model, ids = build(initializer_range=0.05, **changes), batch(2, 50)
    expected = model(ids, labels=ids).losses
    with torch.autocast("cpu", torch.bfloat16):
        output = model(ids, labels=ids)
    output.loss.backward()
    torch.testing.assert_close(output.losses.float(), expected, rtol=0.05, atol=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_model_that_sees_the_future_is_refused() -> None:
    with pytest.raises(UserError, match="expected a causal model"):
        build(causal=False)
