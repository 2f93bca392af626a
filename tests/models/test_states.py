"""States of models: going on in any segments, resets, saving, what they must not change, and what is refused."""

import copy
from pathlib import Path
from typing import Any

import checkpointing
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._pytree import tree_leaves

from longspan import LongspanForCausalLM, LongspanModel, UserError, mixers
from longspan.models import MixerStates
from longspan.models.limits import check_length

CAUSAL = [name for name in mixers.names() if mixers.describe(name).causal]
OPTIONS = {"local": {"radius": 4}, "relative": {"memory": 64}}
# What a model may have besides its mixers that has a state.
FORMS: dict[str, dict[str, Any]] = {name: {"mixers": [name]} for name in CAUSAL} | {
    "hybrid": {"mixers": ["local", "additive"]},
    "neighbours": {"mixers": ["local", "additive"], "short_convolution": 4, "ngrams": [2, 5], "ngram_buckets": 200},
}
every = pytest.mark.parametrize("form", FORMS)


def settings(form: str, **changes: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {"vocab_size": 23, "dim": 16, "heads": 2, "depth": 2, "causal": True} | FORMS[form]
    return shape | {"mixer_options": {name: OPTIONS[name] for name in shape["mixers"] if name in OPTIONS}} | changes


def build(form: str, **changes: Any) -> LongspanModel:
    torch.manual_seed(3)
    model = LongspanModel(LongspanModel.configured(**settings(form, **changes)))
    if model.embeddings.ngrams is not None:
        # New ones are zero, as none has been met.
        torch.nn.init.normal_(model.embeddings.ngrams.weight[1:])
    return model.double().eval()


def tokens(b: int = 3, t: int = 12) -> Tensor:
    return torch.randint(1, 23, (b, t), generator=torch.Generator().manual_seed(b * 100 + t))


def close(actual: Tensor, expected: Tensor) -> None:
    # Sinusoids are float32 inside; everything else is float64.
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def leaves(states: MixerStates) -> list[Tensor]:
    found: list[Tensor] = tree_leaves((states.layers, states._by_row()))
    return found


@pytest.mark.slow
@every
@torch.inference_mode()
def test_segments_with_padding_anywhere_are_the_whole(form: str) -> None:
    model, ids = build(form), tokens()
    mask = torch.rand(3, 12) > 0.4
    # A row that is padding throughout a segment.
    mask[0, 4:8] = False
    expected = model(ids, attention_mask=mask).last_hidden_state
    for sizes in ([4, 4, 4], [1] * 12, [5, 7]):
        states, parts = model.init_states(3), []
        for part, part_mask in zip(ids.split(sizes, 1), mask.split(sizes, 1), strict=True):
            output = model(part, attention_mask=part_mask, past_key_values=states)
            parts.append(output.last_hidden_state)
            states = output.past_key_values
        close(torch.cat(parts, 1)[mask], expected[mask])
        assert torch.equal(states.seen, mask.sum(1))
        assert states.get_seq_length() == 12


@every
@torch.inference_mode()
def test_rows_that_are_reset_start_anew(form: str) -> None:
    """Known failure elsewhere: memories never reset at a document's end."""
    model, before, after = build(form), tokens(3, 7), tokens(3, 6)
    states = model(before, use_cache=True).past_key_values
    rows = torch.tensor([True, False, True])
    actual = model(after, past_key_values=states.reset(rows)).last_hidden_state
    close(actual[rows], model(after).last_hidden_state[rows])
    went_on = model(torch.cat((before, after), 1)).last_hidden_state[:, 7:]
    close(actual[1], went_on[1])


@every
@torch.inference_mode()
def test_states_are_left_as_they_are(form: str) -> None:
    model = build(form)
    states = model(tokens(3, 5), use_cache=True).past_key_values
    before = [leaf.clone() for leaf in leaves(states)]
    after = model(tokens(3, 4), past_key_values=states).past_key_values
    copied = copy.deepcopy(states)
    copied.reorder_cache(torch.tensor([2, 2, 0]))
    copied.batch_repeat_interleave(2)
    states.reset(torch.tensor([True, True, False]))
    assert after is not states
    assert copied.batch_size == 6
    assert all(torch.equal(one, other) for one, other in zip(before, leaves(states), strict=True))


@every
@torch.inference_mode()
def test_rows_can_be_reordered_and_repeated(form: str) -> None:
    model, before, after = build(form), tokens(3, 5), tokens(3, 4)
    mask = torch.ones(3, 5)
    mask[1, :2] = 0
    expected = model(after, past_key_values=model(before, mask, use_cache=True).past_key_values).last_hidden_state
    states = model(before, mask, use_cache=True).past_key_values
    order = torch.tensor([2, 0, 1, 1])
    states.reorder_cache(order)
    close(model(after[order], past_key_values=states).last_hidden_state, expected[order])
    states.batch_repeat_interleave(2)
    twice = order.repeat_interleave(2)
    close(model(after[twice], past_key_values=states).last_hidden_state, expected[twice])


@every
@torch.inference_mode()
def test_states_come_back_from_a_file(form: str, tmp_path: Path) -> None:
    model, ids = build(form), tokens()
    states = model(ids, use_cache=True).past_key_values
    save_file(states.tensors(), tmp_path / "states.safetensors")
    loaded = model.states_from(load_file(tmp_path / "states.safetensors"))
    assert loaded.get_seq_length() == 12
    assert all(torch.equal(one, other) for one, other in zip(leaves(loaded), leaves(states), strict=True))
    expected = model(tokens(3, 3), past_key_values=states).last_hidden_state
    assert torch.equal(model(tokens(3, 3), past_key_values=loaded).last_hidden_state, expected)


def test_states_of_another_model_are_refused() -> None:
    tensors = build("additive").init_states(1).tensors()
    for other in (build("softmax"), build("additive", depth=3)):
        with pytest.raises(UserError, match="layers of these mixers, got other tensors"):
            other.states_from(tensors)
    del tensors["seen"]
    with pytest.raises(UserError, match="seen"):
        build("additive").states_from(tensors)


def test_no_gradient_flows_past_detached_states() -> None:
    model, ids = build("additive"), tokens()
    first = model(inputs_embeds=(before := model.embeddings.table(ids).detach().requires_grad_()), use_cache=True)
    for states, flows in ((first.past_key_values, True), (first.past_key_values.detach(), False)):
        before.grad = None
        model(ids, past_key_values=states).last_hidden_state.sum().backward(retain_graph=True)
        assert (before.grad is not None and bool(before.grad.any())) == flows


@pytest.mark.slow
@every
def test_activation_checkpointing_gives_the_same_gradients(form: str) -> None:
    torch.manual_seed(3)
    model = LongspanForCausalLM(LongspanForCausalLM.configured(**settings(form, dropout=0.2))).double().train()
    ids = tokens(2, 12)
    mask = torch.ones(2, 6)
    mask[1, 4:] = 0

    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        states = model(ids[:, :6], attention_mask=mask, use_cache=True).past_key_values
        model(ids[:, 6:], labels=ids[:, 6:], past_key_values=states).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    checkpointing.enable(model)
    checkpointed = gradients()
    assert len(plain) == len(list(model.parameters()))
    for one, other in zip(checkpointed, plain, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@every
@torch.inference_mode()
def test_bfloat16_states_follow_float64(form: str) -> None:
    model, ids = build(form), tokens(2, 40)
    expected = model(ids).last_hidden_state
    model = model.bfloat16()
    states, parts = None, []
    for part in ids.split(13, 1):
        output = model(part, past_key_values=states, use_cache=True)
        states = output.past_key_values
        parts.append(output.last_hidden_state)
    # Normalised outputs of size 1, from two layers of eight bits.
    torch.testing.assert_close(torch.cat(parts, 1).double(), expected, rtol=0.1, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["additive", "relative", "neighbours"])
@pytest.mark.usefixtures("no_shape_checks")
def test_a_segment_compiles_in_one_piece(name: str) -> None:
    torch._dynamo.reset()
    model, ids = build(name, depth=1), tokens(2, 12)
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[0, :2] = 0
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    first = compiled(ids[:, :6], attention_mask=mask, use_cache=True)
    second = compiled(ids[:, 6:], past_key_values=first.past_key_values.detach())
    expected = model(ids[:, :6], attention_mask=mask, use_cache=True)
    close(second.last_hidden_state, model(ids[:, 6:], past_key_values=expected.past_key_values).last_hidden_state)


def test_states_are_returned_when_asked_for() -> None:
    model, ids = build("additive"), tokens()
    assert model(ids).past_key_values is None
    assert model(ids, use_cache=False).past_key_values is None
    states = model(ids, use_cache=True).past_key_values
    assert model(ids, past_key_values=states).past_key_values.get_seq_length() == 24
    assert model(ids, past_key_values=states, use_cache=False).past_key_values is None
    assert len(model(ids, use_cache=True, output_hidden_states=True).hidden_states) == 3


def test_shared_layers_have_states_of_their_own() -> None:
    model, ids = build("additive", mixers=["additive", "softmax"], depth=5, share_layers=True), tokens()
    states = model(ids[:, :7], use_cache=True).past_key_values
    assert len(states.layers) == 5
    close(model(ids[:, 7:], past_key_values=states).last_hidden_state, model(ids).last_hidden_state[:, 7:])


def test_learned_positions_end_where_their_table_does() -> None:
    model = build("additive", position="learned", max_positions=10)
    states = model(tokens(2, 8), use_cache=True).past_key_values
    states = model(tokens(2, 2), past_key_values=states).past_key_values
    with pytest.raises(UserError, match="at most 10 tokens for learned positions, got token 11"):
        model(tokens(2, 1), past_key_values=states)
    # Padding after the last position is no position.
    model(tokens(2, 3), attention_mask=torch.zeros(2, 3), past_key_values=states)
    # A row that starts anew counts from zero again.
    model(tokens(2, 1), past_key_values=states.reset(torch.tensor([True, True])))


def test_positions_with_a_period_have_no_end() -> None:
    model = build("softmax", position="learned", max_positions=10, position_period=10)
    ids = tokens(2, 25)
    whole, states = model(ids).last_hidden_state, None
    for part, expected in zip(ids.split(7, 1), whole.split(7, 1), strict=True):
        found = model(part, past_key_values=states, use_cache=True)
        states = found.past_key_values
        close(found.last_hidden_state, expected)
    check_length(model, 10**6, "a document", "cut it")
    short = build("softmax", position="learned", max_positions=10, position_period=11)
    with pytest.raises(UserError, match="at most 10 tokens for learned positions, got 12 in a document; cut it"):
        check_length(short, 12, "a document", "cut it")
    with pytest.raises(UserError, match="position_period must be at least 1, got 0"):
        build("softmax", position_period=0)


@torch.inference_mode()
def test_states_are_given_by_either_name() -> None:
    """transformers 5.24 calls `cache` what earlier releases call `past_key_values`."""
    model, ids = build("additive"), tokens()
    states = model(ids[:, :7], use_cache=True).past_key_values
    expected = model(ids[:, 7:], past_key_values=states).last_hidden_state
    assert torch.equal(model(ids[:, 7:], cache=states).last_hidden_state, expected)
    with pytest.raises(UserError, match="either cache or past_key_values, got both"):
        model(ids[:, 7:], cache=states, past_key_values=states)


def test_mistakes_are_named() -> None:
    ids = tokens()
    with pytest.raises(UserError, match="expected a causal model for states"):
        LongspanModel(LongspanModel.configured(**settings("additive", causal=False)))(ids, use_cache=True)
    model = build("additive")
    states = model.init_states(2)
    with pytest.raises(UserError, match="past_key_values of 3 sequences, got 2"):
        model(ids, past_key_values=states)
    with pytest.raises(UserError, match="either packed documents"):
        model(ids, document_ids=torch.zeros_like(ids), use_cache=True)
    with pytest.raises(UserError, match="at least one token"):
        model(ids[:, :0], past_key_values=model.init_states(3))


def test_a_mixer_without_states_is_named() -> None:
    model = build("additive")
    model.backbone.blocks[0].mixer = mixers.build("linformer", model.config.dim)
    with pytest.raises(UserError, match="continues from a state, got linformer"):
        model.init_states(1)
