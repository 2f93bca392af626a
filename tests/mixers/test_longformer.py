"""Longformer's attention against transformers', and its global tokens wherever they stand."""

import pytest
import torch
from rounding import EXP, assert_within, module_errors
from torch import Tensor

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.longformer import Longformer, naive


def inputs(b: int, t: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(b, t, 8, generator=torch.Generator().manual_seed(t)).to(dtype)


def theirs(mixer: Longformer, x: Tensor, mask: Tensor) -> Tensor:
    """Return what transformers' attention gives with the weights of `mixer`, before the output projection."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=8,
        num_attention_heads=mixer.heads,
        attention_window=[2 * mixer.radius],
        attention_probs_dropout_prob=0.0,
    )
    attention = LongformerSelfAttention(config, 0).to(x.dtype)
    attention.load_state_dict({k: v for k, v in mixer.state_dict().items() if not k.startswith("output")})
    everywhere = mask & (mask.cumsum(1) <= mixer.global_tokens)
    kinds = torch.zeros_like(x[..., 0]).masked_fill(~mask, -10000).masked_fill(everywhere, 10000)
    return attention(
        x,
        attention_mask=kinds,
        is_index_masked=~mask,
        is_index_global_attn=everywhere,
        is_global_attn=True,
    )[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("global_tokens", [1, 3])
def test_agrees_with_transformers(global_tokens: int, dtype: torch.dtype) -> None:
    mixer, x = Longformer(8, heads=2, radius=4, global_tokens=global_tokens).to(dtype), inputs(3, 80, dtype)
    mask = torch.ones(3, 80, dtype=torch.bool)
    mask[1, 61:] = mask[2, :5] = mask[2, 20:22] = False
    expected = mixer.output(theirs(mixer, x, mask)) * mask.unsqueeze(-1)
    # Their softmax is taken in float32 whatever the precision, over a window and the tokens that all see.
    roundings = 8 + 2 * 4 + 1 + global_tokens + EXP
    allowed = module_errors(mixer, lambda other, rounded: other(rounded(x.double()), mask), roundings, torch.float32)
    assert_within(mixer(x, mask), expected.double(), 2 * allowed)


@pytest.mark.slow
@pytest.mark.parametrize("radius", [0, 3, 200])
@pytest.mark.parametrize("global_tokens", [1, 4, 90])
def test_every_option_agrees_with_the_naive_form(global_tokens: int, radius: int) -> None:
    for t, bias in ((1, True), (3, True), (80, False)):
        mixer = Longformer(8, heads=2, radius=radius, global_tokens=global_tokens, bias=bias).double()
        x, mask = inputs(2, t), torch.rand(2, t) > 0.6
        torch.testing.assert_close(mixer(x), naive(mixer, x))
        torch.testing.assert_close(mixer(x, mask), naive(mixer, x, mask))


def test_who_sees_whom() -> None:
    """The first real tokens see all and are seen by all; the others see their neighbours. No key counts twice."""
    mixer = Longformer(8, heads=2, radius=5, global_tokens=2).double()
    x, mask = inputs(1, 90), torch.ones(1, 90, dtype=torch.bool)
    mask[0, :10] = mask[0, 11:20] = False
    sees = torch.autograd.functional.jacobian(lambda x: mixer(x, mask).sum((0, 2)), x).abs().sum((1, 3)) > 0
    place, real = torch.arange(90), mask[0]
    first = (place == 10) | (place == 20)
    near = (place.view(-1, 1) - place).abs() <= 5
    expected = near | first | first.view(-1, 1)
    assert torch.equal(sees, expected & real & real.view(-1, 1))


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
def test_several_windows_compile_and_export() -> None:
    """The contract's short sequences fit into one window."""
    torch._dynamo.reset()
    mixer, x = Longformer(8, heads=2, radius=3, global_tokens=2).double(), inputs(2, 80)
    mask = torch.rand(2, 80) > 0.3
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), mixer(x, mask))
    program = torch.export.export(mixer, (x, mask))
    torch.testing.assert_close(program.module()(x, mask), mixer(x, mask))


@pytest.mark.parametrize(("option", "value"), [("radius", -1), ("global_tokens", 0)])
def test_numbers_out_of_range_are_errors(option: str, value: int) -> None:
    with pytest.raises(UserError, match=f"got {value}"):
        mixers.build("longformer", 8, **{option: value})
