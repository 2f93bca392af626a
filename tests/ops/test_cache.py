"""What is visible of a cache."""

import torch

from longspan.ops.cache import all_visible, as_mask, extended, spelled_out


def test_who_hides_nothing_pays_nothing() -> None:
    visible = extended(all_visible(2), 0, 5, None)
    visible = extended(visible, 5, 1, None)
    assert visible.shape == (2, 0)
    assert as_mask(visible) is None
    assert spelled_out(visible, 6).tolist() == [[True] * 6] * 2


def test_from_the_first_mask_on_every_position_is_named() -> None:
    visible = extended(all_visible(2), 2, 2, torch.tensor([[True, False], [False, False]]))
    visible = extended(visible, 4, 1, None)
    expected = [[True, True, True, False, True], [True, True, False, False, True]]
    assert visible.tolist() == spelled_out(visible, 5).tolist() == expected
    assert as_mask(visible) is visible
