"""What mixers show of how they read rows: outputs follow from it, and checks find mistakes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import mixers
from longspan.mixers import Look
from longspan.mixers.additive import Additive
from longspan.mixers.base import Capabilities, Mixer
from longspan.mixers.convolution import Convolution
from longspan.mixers.gated_linear import GatedLinear
from longspan.mixers.recurrent import Recurrent, SimpleRecurrentUnit
from longspan.ops.heads import merge_heads, split_heads
from longspan.testing import mixer_checks

FORMS: list[tuple[str, dict[str, Any]]] = [
    ("additive", {}),
    ("additive", {"forget": "input"}),
    ("additive", {"interaction": "concat", "scoring": "all-heads", "sharing": "none"}),
    ("additive", {"interaction": "concat", "forget": "fixed"}),
    ("additive", {"interaction": "add", "sharing": "head-wise", "output": "r"}),
    ("messages", {}),
    ("messages", {"forget": "learned", "causal": True}),
    ("competitive_gate", {}),
    ("competitive_gate", {"forget": "input", "causal": True}),
    ("competitive_lookup", {}),
    ("competitive_lookup", {"forget": "input", "causal": True, "output_projection": False}),
    ("softmax", {}),
    ("softmax", {"rotary": True}),
    ("softmax", {"alibi": True}),
    ("local", {"radius": 3}),
    ("local", {"radius": 3, "alibi": True, "rotary": True}),
    ("relative", {}),
    ("relative", {"same_length": True, "memory": 4, "clamp": 5, "causal": True}),
    ("linear", {}),
    ("linear", {"rotary": True}),
    ("linear", {"forget": "input", "causal": True}),
    ("bounded_memory", {}),
    ("bounded_memory", {"forget": "input", "causal": True}),
    ("gated_linear", {}),
    ("gated_linear", {"gate": "channel"}),
    ("gated_linear", {"decay": "none"}),
    ("delta", {}),
    ("longformer", {"radius": 2}),
    ("longformer", {"radius": 2, "global_tokens": 3}),
    ("bigbird", {"block_size": 2, "random_blocks": 1}),
    ("linformer", {"max_length": 16}),
    ("reformer", {"chunk": 4}),
    ("graph", {}),
    ("graph", {"value_projection": False, "output_projection": False}),
]


def inputs(t: int, dim: int = 8, b: int = 1) -> Tensor:
    return torch.randn(b, t, dim, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


def outputs(name: str, mixer: Any, x: Tensor, mask: Tensor, looks: list[Look]) -> Tensor:
    """Return the outputs of a mixer, from what each position reads: its equations, with the weights put in."""
    # (b, heads or slots, position that reads, position that is read)
    weights = {each: torch.stack([look.weights[each] for look in looks], 2) for each in looks[0].weights}
    own = {each: found.diagonal(dim1=2, dim2=3).unsqueeze(-1) for each, found in weights.items()}
    heads = getattr(mixer, "heads", 0)
    if isinstance(mixer, Additive):
        query, key = mixer.project(mixer.query, x), mixer.project(mixer.key, x)
        value = query if mixer.value is None else mixer.project(mixer.value, x)
        asked, key = weights["alpha"] @ split_heads(query, heads), split_heads(key, heads)
        met = {"product": asked * key, "add": asked + key, "concat": torch.cat((asked, key), -1)}[mixer.interaction]
        told = weights["beta"] @ met
        if mixer.interaction == "concat":
            used = torch.cat([*(merge_heads(part) for part in told.chunk(2, -1)), value], -1)
        else:
            used = merge_heads(told) * value if mixer.interaction == "product" else merge_heads(told) + value
        return mixer.output(used) + (query if mixer.adds_query else 0)
    if name == "messages":
        return (own["receive"] * (weights["send"] @ mixer.message(x).unsqueeze(1))).sum(1)
    if name == "competitive_lookup":
        return mixer.output(merge_heads(own["shares"] * (weights["lookup"] @ split_heads(mixer.value(x), heads))))
    if name == "competitive_gate":
        gate = torch.stack([look.gates["gate"] for look in looks]).mean(0).unsqueeze(-1)
        return mixer.output(merge_heads(gate * (weights["shares"] @ split_heads(mixer.value(x), heads))))
    taken = weights["attention"] if "attention" in weights else weights["adds"] - weights["subtracts"]
    if name in ("delta", "gated_linear"):
        read = taken @ mixer.values(x)
        read = read / (read.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.scale
        gate = mixer.gate(x)
        return mixer.output(merge_heads(read) * gate * gate.sigmoid())
    y = mixer.output(merge_heads(taken @ split_heads(mixer.value(x), heads)))
    if name == "longformer":
        of_all = mixer.output(merge_heads(taken @ split_heads(mixer.value_global(x), heads)))
        y = torch.where((mask.cumsum(1) <= mixer.global_tokens).unsqueeze(-1), of_all, y)
    return y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), FORMS)
def test_outputs_follow_from_the_weights(name: str, options: dict[str, Any], causal: bool) -> None:
    if causal and not mixers.describe(name).causal:
        pytest.skip("It has no causal form.")
    options = {"causal": causal} | options if mixers.describe(name).causal else options
    torch.manual_seed(0)
    mixer = mixers.build(name, 8, **({} if name == "messages" else {"heads": 2}), **options).double()
    x, mask = inputs(13, b=4), torch.rand(4, 13, generator=torch.Generator().manual_seed(0)) > 0.3
    mask[0], mask[1, :5], mask[2, 6:] = True, False, False
    with torch.no_grad():
        looks = [mixer.look(x, mask, at=at) for at in range(13)]
        y = outputs(name, mixer, x * mask.unsqueeze(-1), mask, looks)
        torch.testing.assert_close(y[mask], mixer(x, mask)[mask])


@pytest.mark.parametrize("causal", [True, False])
def test_gated_linear_attention_keeps_what_its_gates_leave(causal: bool) -> None:
    mixer = GatedLinear(8, heads=2, causal=causal).double()
    x, at = inputs(9), 4
    gates = (-mixer.forgetting(x, None)[0]).exp()
    left = mixer.look(x, at=at).weights["kept"][0]
    for head, kept in enumerate(left):
        backward = head == 1 and not causal
        for j in range(9):
            # The gates of all positions that are read after j.
            between = range(at, j) if backward else range(j + 1, at + 1)
            seen = j >= at if backward else j <= at
            torch.testing.assert_close(kept[j], gates[list(between), head].prod() if seen else kept[j] * 0)


@pytest.mark.parametrize("cell", ["lstm", "gru", "sru"])
def test_recurrent_layers_keep_what_their_forget_gates_leave(cell: str) -> None:
    mixer = Recurrent(4, cell=cell, causal=True).double()
    x, state, gates = inputs(7, 4), mixer.init_state(1), []
    real, of = [0, 1, 3, 4, 6], dict(mixer.reader.named_parameters())
    for i in real:
        if isinstance(mixer.reader, SimpleRecurrentUnit):
            gates.append((of["projection.weight"][4:8] @ x[0, i] + of["gate_bias"][:4]).sigmoid())
        else:
            sums = of["weight_ih_l0"] @ x[0, i] + of["bias_ih_l0"] + of["weight_hh_l0"] @ state.hidden[0]
            gates.append((sums + of["bias_hh_l0"])[4:8].sigmoid())
        _, state = mixer.step(x[:, i : i + 1], state)
    mask = torch.zeros(1, 7, dtype=torch.bool)
    mask[0, real] = True
    left = mixer.look(x, mask, at=6).weights["kept"][0]
    for number, j in enumerate(real):
        torch.testing.assert_close(left[:, j], torch.stack([torch.ones(4).double(), *gates[number + 1 :]]).prod(0))


def test_the_second_direction_of_a_recurrent_layer_is_the_first_from_the_end() -> None:
    mixer: Any = Recurrent(8).double()
    x = inputs(9)
    kept = mixer.look(x, at=3).weights["kept"]
    mixer.reader, mixer.reverse_reader = mixer.reverse_reader, mixer.reader
    turned = mixer.look(x.flip(1), at=5).weights["kept"].flip(2)
    torch.testing.assert_close(torch.cat(turned.chunk(2, 1)[::-1], 1), kept)


def test_time_constants_are_those_that_were_built() -> None:
    """Fixed rates: geometric from 2 to 4,096 positions; padding does not count."""
    mixer = mixers.build("additive", 8, heads=4, causal=True, forget="fixed").double()
    mask = torch.arange(9) < torch.tensor([[5], [9]])
    found = mixer.look(inputs(9).expand(2, -1, -1), mask).time_constants
    torch.testing.assert_close(found, 2.0 * 2048.0 ** (torch.arange(4).double() / 3))
    assert mixers.build("additive", 8, heads=4).double().look(inputs(9)).time_constants is None


def test_distances_are_those_of_a_window() -> None:
    mixer = mixers.build("local", 8, heads=2, radius=3).double()
    look = mixer.look(inputs(40))
    assert look.distances is not None
    assert look.reach is not None
    assert (look.distances[:, :3] > 0).all()
    # From a distance of 4 on.
    assert (look.distances[:, 3:] == 0).all()
    assert (look.reach <= 3).all()


def test_distances_of_a_kernel_are_its_norms() -> None:
    mixer = Convolution(8, kernel_size=5)
    with torch.no_grad():
        mixer.kernel.weight.zero_()[:, :, 4] = 1
    look = mixer.look(inputs(9).float())
    assert look.reach is not None
    torch.testing.assert_close(look.distances, torch.tensor([[0.0, 0.0, 1.0]]))
    assert look.reach.tolist() == [2]


class Mean(Mixer):
    """Every position receives the mean of all, or of those so far."""

    capabilities = Capabilities(causal=True, looks=True)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        real = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(2).to(x.dtype)
        y = x.cumsum(1) / real.cumsum(1).clamp_min(1)
        return y if self.causal else y[:, -1:].expand_as(x)

    def operations(self, length: int) -> int:
        return 0

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        seen = torch.ones_like(x[..., 0]) if mask is None else mask.to(x.dtype)
        if at is not None and self.causal:
            seen = seen * (torch.arange(x.shape[1]) <= at.unsqueeze(1))
        shares = seen / seen.sum(1, keepdim=True).clamp_min(1)
        return Look({"attention": shares.unsqueeze(1).to(torch.promote_types(x.dtype, torch.float32))})


def changed(change: Callable[[Tensor], Tensor]) -> type[Mean]:
    class Changed(Mean):
        def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
            look = super().look_at(x, mask, at)
            return replace(look, weights={"attention": change(look.weights["attention"])})

    return Changed


class CountsPadding(Mean):
    """Padding in the normaliser."""

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        return super().look_at(x, None, at)


class LooksAhead(Mean):
    """Weights of the future."""

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        look = super().look_at(x, mask, at)
        return replace(look, weights={"attention": look.weights["attention"] + (0.0 if at is None else 1e-3)})


def reasons(kind: type[Mixer]) -> set[str]:
    """Return why a mixer breaks promises about looks."""
    broken = set()
    for promise, check in mixer_checks(kind):
        if "look" in promise:
            try:
                check()
            except AssertionError as error:
                broken.add(str(error).partition("But: ")[2].partition("\n")[0])
    return broken


def test_checks_find_mistakes() -> None:
    assert not reasons(Mean)
    assert any("not close" in reason for reason in reasons(CountsPadding))
    assert any("not seen yet" in reason for reason in reasons(LooksAhead))
    assert any("negative" in reason for reason in reasons(changed(lambda weights: -weights)))
    assert any("not close" in reason for reason in reasons(changed(lambda weights: weights * 1.01)))
    assert any("are torch.float16" in reason for reason in reasons(changed(lambda weights: weights.half())))
