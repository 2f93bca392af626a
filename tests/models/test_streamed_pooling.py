"""Pooling of a sequence in segments gives what pooling it at once does."""

import pytest
import torch

from longspan.models.heads.classification import POOLINGS, Pooling
from longspan.models.parts.streamed_pooling import StreamedPooling


@pytest.mark.parametrize("name", POOLINGS)
def test_segments_give_the_same_as_the_whole(name: str) -> None:
    pooling = Pooling(name, 6).double()
    # Logits far above what exp can hold.
    x = 500 * torch.randn(1, 20, 6, dtype=torch.float64)
    streamed = StreamedPooling(pooling)
    for part in x.split([1, 7, 12], 1):
        streamed.add(part)
    torch.testing.assert_close(streamed.result(), pooling(x))


def test_nothing_has_no_pooled_vector() -> None:
    with pytest.raises(ValueError, match="got none"):
        StreamedPooling(Pooling("mean", 2)).result()
