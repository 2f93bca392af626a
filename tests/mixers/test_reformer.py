"""Reformer against the class of Hugging Face transformers."""

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from rounding import assert_within, rounding
from torch import Tensor

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.reformer import Reformer, naive
from longspan.ops.heads import split_heads
from longspan.ops.lsh import hash_buckets

SMALL: dict[str, Any] = {"heads": 3, "chunk": 4, "buckets": 6}


def published(hashes: int, ours: Reformer) -> Any:
    """Return transformers' LSHSelfAttention with the weights and the random directions of `ours`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import ReformerConfig
        from transformers.models.reformer.modeling_reformer import LSHSelfAttention

        config = ReformerConfig(
            num_attention_heads=3,
            attention_head_size=4,
            hidden_size=12,
            num_hashes=hashes,
            num_buckets=6,
            lsh_attn_chunk_length=4,
            lsh_attention_probs_dropout_prob=0.0,
            hash_seed=5,
            is_decoder=False,
        )
        theirs = LSHSelfAttention(config).double().eval()
    # The paper's keys have unit length; transformers adds 1e-6 to the mean of their squares.
    theirs._len_norm = functools.partial(theirs._len_norm, epsilon=0)
    theirs.query_key.load_state_dict(ours.query_key.state_dict())
    theirs.value.load_state_dict(ours.value.state_dict())
    # It draws its directions anew in each call, in the type of the input.
    torch.manual_seed(5)
    ours.rotations.copy_(torch.randn(3, 4, hashes, 3, dtype=torch.float64))
    return theirs


@pytest.mark.parametrize("hashes", [1, 3])
@pytest.mark.parametrize("t", [3, 4, 8, 24])
def test_agrees_with_transformers(hashes: int, t: int) -> None:
    ours = Reformer(12, hashes=hashes, bias=False, **SMALL).double()
    theirs = published(hashes, ours)
    x = torch.randn(2, t, 12, dtype=torch.float64, requires_grad=True)
    expected = theirs(x)
    y = ours(x)
    torch.testing.assert_close(y, ours.output(expected.hidden_states))
    weight = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad((y * weight).sum(), x)[0],
        torch.autograd.grad((ours.output(expected.hidden_states) * weight).sum(), x)[0],
    )
    if t > 4:
        buckets = hash_buckets(split_heads(ours.query_key(x), ours.heads), ours.rotations)
        assert torch.equal(buckets + 6 * torch.arange(hashes).view(-1, 1), expected.buckets.view_as(buckets))


def test_default_directions_are_those_of_transformers_for_the_same_seed() -> None:
    ours = Reformer(12, hashes=2, seed=7, **SMALL)
    torch.manual_seed(7)
    assert torch.equal(ours.rotations, torch.randn(3, 4, 2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"hashes": 1}, {"chunk": 1}, {"chunk": 7, "bias": False}, {"buckets": 2}], ids=str)
@pytest.mark.parametrize("t", [1, 9, 30])
def test_options_agree_with_the_naive_form(options: dict[str, Any], t: int) -> None:
    mixer = Reformer(12, **(SMALL | options)).double()
    x, mask = torch.randn(2, t, 12, dtype=torch.float64), torch.rand(2, t) > 0.4
    torch.testing.assert_close(mixer(x, mask), naive(mixer, x, mask))
    torch.testing.assert_close(mixer(x), naive(mixer, x))


def test_padding_changes_nothing_however_many_chunks_it_fills() -> None:
    """Known failure elsewhere: a number of buckets, or a chunk to look back at, that depends on the padding."""
    mixer, x = Reformer(12, **SMALL), torch.randn(2, 14, 12)
    padded = torch.full((2, 60, 12), 1e3)
    mask = torch.zeros(2, 60, dtype=torch.bool)
    mask[:, 20:48:2] = True
    padded[mask] = x.flatten(0, 1)
    torch.testing.assert_close(mixer(padded, mask)[mask], mixer(x).flatten(0, 1))


def test_outputs_repeat_in_training_in_evaluation_and_after_loading() -> None:
    """Known failure elsewhere: new directions in each call."""
    mixer, x = Reformer(12, **SMALL), torch.randn(1, 40, 12)
    y = mixer(x)
    assert torch.equal(mixer(x), y)
    assert torch.equal(mixer.eval()(x), y)
    other = Reformer(12, seed=3, **SMALL)
    assert not torch.equal(other.rotations, mixer.rotations)
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other(x), y)


def test_half_precision_and_autocast_fall_into_the_same_buckets() -> None:
    """Known failure elsewhere: rounded queries fall into other buckets."""
    mixer, x = Reformer(12, **SMALL), torch.randn(1, 3000, 12)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    # Projections, scores, weights, means and what is computed of them are rounded.
    expected = copy.deepcopy(mixer).double()(x.double())
    assert_within(y, expected, rounding(8, 1 + expected.abs(), torch.bfloat16))
    mixer.bfloat16()
    x = x.bfloat16()
    expected = copy.deepcopy(mixer).double()(x.double())
    assert_within(mixer(x), expected, rounding(8, 1 + expected.abs(), torch.bfloat16))


@pytest.mark.slow
def test_compiles_and_exports_with_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    mixer, x, mask = Reformer(12, **SMALL), torch.randn(2, 14, 12), torch.rand(2, 14) > 0.3

    def check(y: Tensor) -> None:
        torch.testing.assert_close(y, mixer(x, mask))

    check(torch.compile(mixer, backend="aot_eager", fullgraph=True)(x, mask))
    check(torch.export.export(mixer, (x, mask)).module()(x, mask))


@pytest.mark.parametrize("options", [{"hashes": 0}, {"chunk": 0}, {"buckets": 0}, {"buckets": 7}], ids=str)
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(UserError, match=f"{name}={value}"):
        mixers.build("reformer", 12, heads=3, **options)
