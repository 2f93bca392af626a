"""Clicks that come one by one: any steps give what the whole history gives, and states can be kept."""

import copy
from pathlib import Path

import pytest
import torch
from recommending import STREAMING, USERS, build, news
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._pytree import tree_leaves

from longspan import LongspanForRecommendation, UserError

every = pytest.mark.parametrize("form", STREAMING)
MASK, IDS = USERS["history_mask"].bool(), USERS["user_ids"]


def clicks(model: LongspanForRecommendation) -> Tensor:
    return model.select(model.encode_news(**news(model)), USERS["history"], MASK, IDS)


def close(found: Tensor, expected: Tensor) -> None:
    # Sums in another order, and tokens' sinusoids that are float32 inside.
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def whole(model: LongspanForRecommendation) -> Tensor:
    return model.encode_users(model.encode_news(**news(model)), USERS["history"], MASK, IDS)[0]


@every
@torch.no_grad()
def test_any_steps_are_the_whole(form: str) -> None:
    model = build(form)
    read, expected = clicks(model), whole(model)
    for cuts in ([5], [1, 1, 1, 1, 1], [2, 3]):
        state, begin = model.init_user_state(4, IDS), 0
        for size in cuts:
            part = slice(begin, begin + size)
            users, state = model.step(read[:, part], state, MASK[:, part])
            begin += size
        close(users, expected)
    assert state.seen.tolist() == MASK.sum(1).tolist()


@every
@torch.no_grad()
def test_each_prefix_is_a_history(form: str) -> None:
    """What a user's vector is after each click, as an evaluation in the order of time needs it."""
    model = build(form)
    vectors = model.encode_news(**news(model))
    history, ids = torch.tensor([[3, 1, 4, 1]]), torch.tensor([2])
    state = model.init_user_state(1, ids)
    for length in range(1, 5):
        users, state = model.step(model.select(vectors, history[:, length - 1 : length], user_ids=ids), state)
        close(users, model.encode_users(vectors, history[:, :length], user_ids=ids)[0])


@every
@torch.no_grad()
def test_states_are_saved_reordered_reset_and_not_changed(form: str, tmp_path: Path) -> None:
    model = build(form)
    read, expected = clicks(model), whole(model)
    _, state = model.step(read[:, :3], model.init_user_state(4, IDS), MASK[:, :3])
    before = copy.deepcopy(state)
    save_file(state.tensors(), tmp_path / "state.safetensors")
    again = model.user_states_from(load_file(tmp_path / "state.safetensors"))
    close(model.step(read[:, 3:], again, MASK[:, 3:])[0], expected)
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(state.layers), tree_leaves(before.layers), strict=True))
    # Rows that begin anew are unknown users.
    fresh = state.reset(torch.tensor([True, False, False, True]))
    users, _ = model.step(read[:, 3:], fresh, MASK[:, 3:])
    close(users[1:3], expected[1:3])
    unknown, _ = model.step(read[:1, 3:], model.init_user_state(1), MASK[:1, 3:])
    close(users[:1], unknown)
    order = torch.tensor([2, 2, 0, 1])
    state.reorder_cache(order)
    close(model.step(read[order, 3:], state, MASK[order, 3:])[0], expected[order])


@every
def test_gradients_end_where_a_state_is_detached(form: str) -> None:
    model = build(form)
    read = clicks(model).detach().requires_grad_()
    _, state = model.step(read[:, :3], model.init_user_state(4, IDS), MASK[:, :3])
    users, _ = model.step(read[:, 3:], state.detach(), MASK[:, 3:])
    users.square().sum().backward()
    assert read.grad is not None
    assert not read.grad[:, :3].any()
    assert read.grad[:, 3:].any()


def test_states_do_not_grow() -> None:
    """In constant memory, for recommenders whose mixers' states are bounded."""
    for model in (build("naml"), build("lstur"), build("longspan", user_causal=True)):
        state = model.init_user_state(1)
        sizes = set()
        for _ in range(3):
            _, state = model.step(torch.randn(1, 50, model.recommender.dim).double(), state)
            sizes.add(state.nbytes)
        assert len(sizes) == 1


def test_half_precision_streams_as_it_reads() -> None:
    model = build("longspan-causal", torch.bfloat16, initializer_range=0.1)
    read, expected = clicks(model), whole(model)
    users, _ = model.step(read, model.init_user_state(4, IDS), MASK)
    assert users.dtype == torch.bfloat16
    torch.testing.assert_close(users.float(), expected.float(), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("form", ["nrms", "longspan", "fastformer"])
def test_clicks_that_see_each_other_are_refused(form: str) -> None:
    with pytest.raises(UserError, match=f"expected a recommender that reads one click after the other, got {form}"):
        build(form).init_user_state(2)
    streaming = build("naml")
    with pytest.raises(UserError, match="at least one click to read, got none"):
        streaming.step(torch.zeros(1, 0, 6).double(), streaming.init_user_state(1))
