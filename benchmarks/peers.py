"""Layers of other libraries and ours on the same inputs: `python benchmarks/peers.py [GROUP ...] [--json FILE]`.

Groups: fastformer, softmax, windows, linear, mamba, causal, classifier. Layers have width 256 and 16 heads and read
random numbers that are drawn for each shape. All of a group take turns in one process, and medians are shown, forward
and with backward (of inputs and parameters), with the memory that autograd saves for the backward pass. Where two of
them are the same mathematics they have the same weights, and their outputs are compared in the run that is timed;
otherwise the column "difference" is empty. Packages: `pip install "longspan[peers]"`. Layers with a matrix per head are
in `fast_weights_speed.py`.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from turns import medians, settle_allocator

from longspan import LongspanConfig, LongspanForSequenceClassification, mixers
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment

DIM, HEADS = 256, 16
# How far apart two orders of the same computation may be, as a share of the largest output: some roundings.
MOST_APART = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Group:
    """Candidates that take turns; ours come first, and the last is what the others are compared with."""

    candidates: dict[str, nn.Module]
    shapes: tuple[tuple[int, int], ...]
    inputs: Callable[[int, int], Tensor] = lambda b, t: torch.randn(b, t, DIM)
    # Names of candidates that are the same mathematics with the same weights.
    equal: tuple[str, ...] = ()


class AuthorsFastformer(nn.Module):
    """Fastformer in the order of the paper and of its authors' code: everything is formed at each position."""

    def __init__(self, ours: mixers.base.Mixer) -> None:
        super().__init__()
        self.ours = ours

    def forward(self, x: Tensor) -> Tensor:
        ours, scale = self.ours, (DIM // HEADS) ** 0.5
        query, key = ours.query(x), ours.key(x)
        heads = query.unflatten(2, (HEADS, -1)).transpose(1, 2)
        weights = (query @ ours.query_score.T / scale).transpose(1, 2).softmax(-1).unsqueeze(2)
        pooled = (weights @ heads).transpose(1, 2).reshape(-1, 1, DIM)
        met = key * pooled.repeat(1, x.shape[1], 1)
        weights = (met @ ours.key_score.T / scale).transpose(1, 2).softmax(-1).unsqueeze(2)
        pooled = weights @ met.unflatten(2, (HEADS, -1)).transpose(1, 2)
        y: Tensor = ours.output((pooled * heads).transpose(1, 2).flatten(2)) + query
        return y


class Attention(nn.Module):
    """Projections around PyTorch's `scaled_dot_product_attention`."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.key, self.value, self.output = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = (p(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        y: Tensor = self.output(scaled_dot_product_attention(*heads, is_causal=self.causal).transpose(1, 2).flatten(2))
        return y


class Calling(nn.Module):
    """A module called in its own way."""

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.module, x)


def fastformer() -> Group:
    from fast_transformer_pytorch.fast_transformer_pytorch import FastAttention

    ours = mixers.build("additive", DIM, heads=HEADS, scoring="all-heads")
    peer = FastAttention(DIM, heads=HEADS, dim_head=DIM // HEADS)
    candidates: dict[str, nn.Module] = {
        "longspan additive": ours,
        "longspan additive, scores per head": mixers.build("additive", DIM, heads=HEADS),
        f"one Linear({DIM}, {DIM})": nn.Linear(DIM, DIM),
        # Its keys are pooled before they meet the global query, so that outputs differ.
        "fast-transformer-pytorch": Calling(peer, lambda m, x: m(x, mask=torch.ones(x.shape[:2], dtype=torch.bool))),
        "authors' order": AuthorsFastformer(ours),
    }
    return Group(candidates, ((2, 4096), (1, 16384)), equal=("longspan additive", "authors' order"))


def softmax() -> Group:
    from x_transformers.x_transformers import Attention as XAttention

    ours, sdpa = mixers.build("softmax", DIM, heads=HEADS), Attention()
    for name in ("query", "key", "value", "output"):
        theirs, mine = getattr(sdpa, name), getattr(ours, name)
        theirs.weight, theirs.bias = mine.weight, mine.bias
    torch_layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    with torch.no_grad():
        torch_layer.in_proj_weight.copy_(torch.cat([p.weight for p in (sdpa.query, sdpa.key, sdpa.value)]))
        torch_layer.in_proj_bias.copy_(torch.cat([p.bias for p in (sdpa.query, sdpa.key, sdpa.value)]))
    torch_layer.out_proj.weight, torch_layer.out_proj.bias = sdpa.output.weight, sdpa.output.bias
    flash = XAttention(DIM, heads=HEADS, dim_head=DIM // HEADS, flash=True)
    candidates: dict[str, nn.Module] = {
        "longspan softmax": ours,
        "x-transformers": Calling(flash, lambda m, x: m(x)[0] if isinstance(m(x), tuple) else m(x)),
        "torch.nn.MultiheadAttention": Calling(torch_layer, lambda m, x: m(x, x, x, need_weights=False)[0]),
        "torch SDPA": sdpa,
    }
    equal = ("longspan softmax", "torch.nn.MultiheadAttention", "torch SDPA")
    return Group(candidates, ((2, 2048),), equal=equal)


def windows() -> Group:
    from local_attention import LocalAttention
    from transformers import BigBirdConfig, LongformerConfig, ReformerConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdAttention
    from transformers.models.longformer.modeling_longformer import LongformerAttention
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    size = {"hidden_size": DIM, "num_attention_heads": HEADS}
    longformer = LongformerAttention(LongformerConfig(**size, attention_window=[256]), layer_id=0)
    bigbird = BigBirdAttention(BigBirdConfig(**size, block_size=64))
    shape = {"num_attention_heads": HEADS, "attention_head_size": DIM // HEADS, "num_hashes": 1}
    reformer = LSHSelfAttention(ReformerConfig(hidden_size=DIM, **shape, attn_layers=["lsh"], lsh_attn_chunk_length=64))

    class Local(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.attend = LocalAttention(window_size=128, use_rotary_pos_emb=False, autopad=True)

        def forward(self, x: Tensor) -> Tensor:
            heads = (p(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
            y: Tensor = self.output(self.attend(*heads).transpose(1, 2).flatten(2))
            return y

    def call_longformer(layer: nn.Module, x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[:2])
        y: Tensor = layer(x, attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0)[0]
        return y

    def call_bigbird(layer: nn.Module, x: Tensor) -> Tensor:
        from transformers.models.big_bird.modeling_big_bird import BigBirdModel

        parts = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(x.shape[:2]), 64)
        y: Tensor = layer(
            x,
            band_mask=parts[1],
            from_mask=parts[2],
            to_mask=parts[3],
            from_blocked_mask=parts[0],
            to_blocked_mask=parts[0],
        )[0]
        return y

    candidates: dict[str, nn.Module] = {
        "longspan local, 128 on either side": mixers.build("local", DIM, heads=HEADS, radius=128),
        "longspan longformer, window 257": mixers.build("longformer", DIM, heads=HEADS, radius=128),
        "longspan bigbird": mixers.build("bigbird", DIM, heads=HEADS),
        "longspan reformer, one hash": mixers.build("reformer", DIM, heads=HEADS, hashes=1),
        "local-attention, blocks of 128": Local(),
        "transformers BigBird": Calling(bigbird, call_bigbird),
        "transformers Reformer, one hash": Calling(reformer, lambda m, x: m(x).hidden_states),
        "transformers Longformer, window 257": Calling(longformer, call_longformer),
    }
    return Group(candidates, ((2, 4096),))


def linear() -> Group:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    candidates: dict[str, nn.Module] = {
        "longspan additive": mixers.build("additive", DIM, heads=HEADS),
        "longspan messages": mixers.build("messages", DIM),
        "longspan linear": mixers.build("linear", DIM, heads=HEADS),
        "linear-attention-transformer": SelfAttention(DIM, HEADS),
    }
    return Group(candidates, ((2, 4096), (1, 16384)))


def mamba() -> Group:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    candidates: dict[str, nn.Module] = {
        "longspan gated_linear, rates per channel": mixers.build(
            "gated_linear", DIM, heads=HEADS, causal=True, gate="channel"
        ),
        # Without its kernels it takes its positions one after the other.
        "transformers Mamba": MambaMixer(MambaConfig(hidden_size=DIM, expand=1), layer_idx=0),
    }
    return Group(candidates, ((1, 2048),))


def causal() -> Group:
    candidates: dict[str, nn.Module] = {
        "longspan additive, causal": mixers.build("additive", DIM, heads=HEADS, causal=True),
        "torch SDPA, causal": Attention(causal=True),
    }
    return Group(candidates, ((1, 16384),))


def classifier() -> Group:
    from transformers import LongformerConfig, LongformerForSequenceClassification

    torch.manual_seed(0)
    words, length = 5000, 4096

    def ours(mixer: str) -> nn.Module:
        config = LongspanConfig(
            vocab_size=words, dim=DIM, depth=2, mixers=[mixer], mixer_options={mixer: {"heads": HEADS}}, num_labels=2
        )
        model = LongspanForSequenceClassification(config)
        return Calling(model, lambda m, ids: m(input_ids=ids).logits)

    config = LongformerConfig(
        vocab_size=words,
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=4 * DIM,
        attention_window=256,
        max_position_embeddings=length + 2,
        num_labels=2,
    )
    peer = LongformerForSequenceClassification(config)
    candidates = {
        "longspan additive, 2 layers": ours("additive"),
        "transformers Longformer, 2 layers": Calling(peer, lambda m, ids: m(input_ids=ids).logits),
        "the same with softmax (SDPA)": ours("softmax"),
    }
    return Group(candidates, ((2, length),), inputs=lambda b, t: torch.randint(5, words, (b, t)))


GROUPS = {g.__name__: g for g in (fastformer, softmax, windows, linear, mamba, causal, classifier)}


def forward(module: nn.Module, x: Tensor) -> None:
    with torch.inference_mode():
        module(x)


def forward_backward(module: nn.Module, x: Tensor) -> None:
    module.zero_grad()
    y = module(x.detach().requires_grad_(x.is_floating_point()))
    y.backward(torch.ones_like(y))


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd keeps for the backward pass, without parameters and the input."""
    known = {p.untyped_storage().data_ptr() for p in module.parameters()} | {x.untyped_storage().data_ptr()}
    found: dict[int, int] = {}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            # A storage that is freed meanwhile could give its address to another.
            kept.append(tensor)
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x.detach().requires_grad_(x.is_floating_point()))
    return sum(found.values())


def measured(name: str, repeats: int, dtype: torch.dtype) -> list[dict[str, object]]:
    """Return a row for each candidate and shape of a group."""
    torch.manual_seed(0)
    group, rows = GROUPS[name](), []
    for module in group.candidates.values():
        # Dropout would be work of its own.
        module.eval().to(dtype)
    for b, t in group.shapes:
        x, outputs = group.inputs(b, t), {}
        x = x.to(dtype) if x.is_floating_point() else x
        with torch.no_grad():
            for each in group.equal:
                outputs[each] = group.candidates[each](x)
        ahead = medians({n: partial(forward, m, x) for n, m in group.candidates.items()}, repeats)
        both = medians({n: partial(forward_backward, m, x) for n, m in group.candidates.items()}, repeats)
        last = list(group.candidates)[-1]
        for each, module in group.candidates.items():
            gap = (outputs[each] - outputs[last]).abs().max() / outputs[last].abs().max() if each in outputs else None
            rows.append(
                {
                    "group": name,
                    "layer": each,
                    "shape": f"{b} x {t:,}",
                    "forward_ms": ahead[each],
                    "forward_times_faster": ahead[last] / ahead[each],
                    "both_ms": both[each],
                    "both_times_faster": both[last] / both[each],
                    "saved_mib": saved_bytes(module, x) / 2**20,
                    "difference": None if gap is None else float(gap),
                }
            )
            if gap is not None and gap > MOST_APART[dtype]:
                raise SystemExit(f"{each} and {last} should be the same, but differ by {float(gap):.1e}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"any of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=9, help="timed turns of each candidate")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of inputs and parameters")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    if unknown := set(arguments.groups) - set(GROUPS):
        parser.error(f"expected groups from {', '.join(GROUPS)}, got {', '.join(sorted(unknown))}")
    use_fastest_exact_products()
    settle_allocator()
    header = [
        "",
        "shape",
        "forward, ms",
        "times as fast",
        "with backward, ms",
        "times as fast",
        "saved, MiB",
        "difference",
    ]
    found = []
    for name in arguments.groups or GROUPS:
        rows = measured(name, arguments.repeats, getattr(torch, arguments.dtype))
        found += rows
        table = tabulate(
            [list(row.values())[1:] for row in rows],
            header,
            floatfmt=["", "", ".1f", ".2f", ".1f", ".2f", ".1f", ".0e"],
        )
        print(f"\n{name}: times as fast as the last\n{table}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"rows": found, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
