"""The stack of blocks: hybrids, sharing, norms, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import nn

from longspan.errors import UserError
from longspan.mixers.additive import Additive
from longspan.mixers.softmax import Softmax
from longspan.models.backbone import Backbone
from longspan.ops.dropout import Dropout


def build(depth: int = 2, **changes: Any) -> Backbone:
    settings: dict[str, Any] = {
        "mixer_names": ["additive"],
        "mixer_options": {},
        "shared_options": {"heads": 2, "causal": False},
        "feed_forward_dim": 16,
    }
    return Backbone(8, depth, **settings | changes)


def test_a_list_of_mixers_is_tiled_over_the_depth() -> None:
    backbone = build(5, mixer_names=["additive", "additive", "softmax"])
    kinds = [type(block.mixer) for block in backbone.blocks]
    assert kinds == [Additive, Additive, Softmax, Additive, Additive]


def test_shared_layers_hold_one_set_of_weights_per_position_in_the_list() -> None:
    def count(**changes: Any) -> int:
        return sum(p.numel() for block in build(4, **changes).blocks for p in block.parameters())

    assert count(share_layers=True) * 4 == count()
    hybrid = build(4, mixer_names=["additive", "softmax"], share_layers=True)
    assert len(hybrid.blocks) == 2
    # Two blocks run twice: the same as a stack of copies.
    x = torch.randn(1, 3, 8)
    y = x
    for block in [*hybrid.blocks, *hybrid.blocks]:
        y = block(y)
    torch.testing.assert_close(hybrid(x), hybrid.final_norm(y))


def test_pre_and_post_norm_are_the_formulas() -> None:
    x = torch.randn(2, 5, 8)
    for norm in ("pre", "post", "none"):
        backbone = build(1, norm=norm)
        block: Any = backbone.blocks[0]
        mixer, feed, n1 = block.mixer, block.feed_forward, block.mixer_norm
        n2 = block.feed_forward_norm
        if norm == "pre":
            y = x + mixer(n1(x))
            y = backbone.final_norm(y + feed(n2(y)))
        else:
            y = n1(x + mixer(x))
            y = n2(y + feed(y))
        torch.testing.assert_close(backbone(x), y)
        assert isinstance(n1, nn.Identity) == (norm == "none")


def test_the_feed_forward_network_is_the_formula() -> None:
    x = torch.randn(2, 5, 8)
    for activation, f in (("gelu", nn.functional.gelu), ("relu", torch.relu)):
        block: Any = build(1, norm="none", residual=False, activation=activation).blocks[0]
        first, _, last = block.feed_forward
        torch.testing.assert_close(block(x), last(f(first(block.mixer(x)))))


def test_dropout_inside_the_feed_forward_network_is_optional() -> None:
    for chosen, places in ((False, 1), (True, 2)):
        block = build(1, dropout=0.5, feed_forward_dropout=chosen).blocks[0]
        assert sum(isinstance(module, Dropout) for module in block.modules()) == places


def test_long_rows_are_fed_a_part_at_a_time_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = build(norm="post").double(), torch.randn(2, 23, 8, dtype=torch.float64)
    sizes: list[int] = []
    fed: list[Any] = [block.feed_forward for block in layers.blocks]
    for each in fed:
        each.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[1]))
    whole = layers.eval()(x).detach()
    # Five positions of two rows.
    monkeypatch.setattr("longspan.models.block.FED_AT_ONCE", 5 * 2 * 16)
    sizes.clear()
    with torch.no_grad():
        found = layers(x)
    assert sizes == [5, 5, 5, 5, 3] * 2
    # Products of other sizes may round differently.
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)
    sizes.clear()
    layers(x)
    with torch.no_grad():
        layers.train()(x)
    assert sizes == [23] * 4


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("share_layers", [False, True])
def test_steps_are_the_whole(norm: str, share_layers: bool) -> None:
    backbone = build(
        3,
        mixer_names=["additive", "softmax"],
        shared_options={"heads": 2, "causal": True},
        norm=norm,
        share_layers=share_layers,
    )
    x, mask = torch.randn(2, 9, 8), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 2:4] = False
    states, parts = backbone.init_states(2), []
    assert len(states) == 3
    for part, part_mask in zip(x.split([4, 1, 4], 1), mask.split([4, 1, 4], 1), strict=True):
        y, states = backbone.step(part, states, part_mask)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1)[mask], backbone(x, mask)[mask])
    hidden: list[torch.Tensor] = []
    y, _ = backbone.step(x, backbone.init_states(2), hidden_states=hidden)
    assert len(hidden) == 3
    assert hidden[0] is x
    torch.testing.assert_close(y, backbone(x))


def test_one_bare_mixer() -> None:
    backbone = build(1, norm="none", residual=False, feed_forward_dim=0)
    x = torch.randn(2, 5, 8)
    block: Any = backbone.blocks[0]
    assert torch.equal(backbone(x), block.mixer(x))


def test_conversion_reaches_every_weight() -> None:
    assert all(p.dtype == torch.float64 for p in build().double().parameters())


def test_options_belong_to_their_mixer() -> None:
    backbone = build(mixer_options={"additive": {"interaction": "add", "heads": 4}})
    mixer = backbone.blocks[0].mixer
    assert isinstance(mixer, Additive)
    assert (mixer.interaction, mixer.heads) == ("add", 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "prenorm"}, "did you mean 'pre'"),
        ({"activation": "rely"}, "did you mean 'relu'"),
        ({"mixer_names": []}, "at least one mixer"),
        ({"mixer_names": ["additiv"]}, "did you mean 'additive'"),
        ({"mixer_options": {"softmax": {}}}, "model.mixers lacks"),
        ({"mixer_options": {"additive": {"intraction": "add"}}}, "did you mean 'interaction'"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**changes)


def test_a_causal_model_refuses_a_mixer_without_a_causal_form() -> None:
    with pytest.raises(UserError, match="no causal form"):
        build(mixer_names=["linformer"], shared_options={"causal": True})


def test_forgetting_reaches_mixers_that_have_it_and_at_least_one_must() -> None:
    shared = {"heads": 2, "causal": True, "forget": "learned"}
    backbone = build(mixer_names=["additive", "softmax"], shared_options=shared)
    kinds = [getattr(block.mixer, "forgetting", None) for block in backbone.layers]
    assert [kind and kind.kind for kind in kinds[:2]] == ["learned", None]
    with pytest.raises(UserError, match="there is no forget 'inputs'; did you mean 'input'"):
        build(mixer_names=["softmax"], shared_options=shared | {"forget": "inputs"})
    with pytest.raises(UserError, match=r"got softmax, local; .* set it to none where a recipe has it"):
        build(mixer_names=["softmax", "local"], shared_options=shared)


def test_what_an_alias_sets_wins_over_what_all_mixers_are_offered() -> None:
    backbone = build(2, mixer_names=["transformer_xl", "lstm"], mixer_options={"lstm": {"bias": False}})
    first, second = (block.mixer for block in backbone.layers)
    assert (first.causal, first.heads) == (True, 2)
    assert (second.causal, second.cell) == (False, "lstm")
    causal = build(1, mixer_names=["lstm"], shared_options={"causal": True})
    assert causal.layers[0].mixer.causal
