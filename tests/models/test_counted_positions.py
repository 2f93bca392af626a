"""How often positions count in models: zero removes them, and gradients say what that changes."""

import pytest
import torch

from longspan import LongspanForCausalLM, LongspanForSequenceClassification, UserError
from longspan.models.heads.classification import POOLINGS, Pooling

SMALL = {"vocab_size": 30, "dim": 16, "depth": 2, "heads": 2, "feed_forward_dim": 16, "dropout": 0.0}
IDS = torch.randint(0, 30, (2, 12), generator=torch.Generator().manual_seed(0))


def classifier(**more: object) -> LongspanForSequenceClassification:
    torch.manual_seed(0)
    config = LongspanForSequenceClassification.configured(**SMALL, num_labels=3, position="none", **more)
    return LongspanForSequenceClassification(config).double().eval()


@pytest.mark.slow
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("mixer", ["additive", "local", "recurrent"])
def test_a_count_of_zero_removes_a_token(pooling: str, mixer: str) -> None:
    model = classifier(mixers=[mixer], pooling=pooling, short_convolution=3)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, [0, 5]] = mask[1, [7, 11]] = 0
    torch.testing.assert_close(
        model(IDS, counts=mask.double()).logits, model(IDS, attention_mask=mask).logits, rtol=1e-10, atol=1e-10
    )
    ones = torch.ones(2, 12, dtype=torch.float64)
    torch.testing.assert_close(model(IDS, counts=ones).logits, model(IDS).logits, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings_count_positions(pooling: str) -> None:
    torch.manual_seed(0)
    pool, x = Pooling(pooling, 4).double(), torch.randn(2, 6, 4, dtype=torch.float64)
    repeats = torch.tensor([1, 2, 1, 1, 3, 1])
    found = pool(x, repeats.double().expand(2, -1))
    torch.testing.assert_close(found, pool(x.repeat_interleave(repeats, 1)), rtol=1e-10, atol=1e-10)
    counts = torch.full((2, 6), 0.7, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda counts: pool(x, counts), (counts,), atol=1e-6)


def test_the_short_convolution_sees_itself_as_it_is() -> None:
    model = classifier(short_convolution=3, mixers=["additive"])
    convolution = model.longspan.backbone.blocks[0].convolution
    x, counts = torch.randn(1, 5, 16, dtype=torch.float64), torch.ones(1, 5, dtype=torch.float64)
    counts[0, 2] = 0
    found, plain = convolution(x, counts=counts)[0], convolution(x)[0]
    without = convolution(x * counts.unsqueeze(-1))[0]
    torch.testing.assert_close(found[:, [0, 1, 3, 4]], without[:, [0, 1, 3, 4]])
    torch.testing.assert_close(found[:, 2], plain[:, 2])


def test_a_causal_model_counts_whole_rows_only() -> None:
    torch.manual_seed(0)
    model = LongspanForCausalLM(LongspanForCausalLM.configured(**SMALL, mixers=["linear"], causal=True)).eval()
    counts = torch.ones(2, 12, requires_grad=True)
    model(IDS, counts=counts, use_cache=False).logits[:, -1].sum().backward()
    assert counts.grad is not None
    assert counts.grad[:, :-1].abs().min() > 0
    with pytest.raises(UserError, match="counts"):
        model(IDS, counts=counts, use_cache=True)
