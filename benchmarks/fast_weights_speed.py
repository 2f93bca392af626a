"""Speed of `delta` and `gated_linear` against transformers' PyTorch code, interleaved in one process.

    python benchmarks/fast_weights_speed.py [--mixer delta] [--lengths 4096,16384,65536] [--dim 256] [--heads 16]
                                            [--longest-rival 16384] [--repeats 5] [--json FILE]

Ops compute the same from the same tensors, which is checked; so are the layers, of which one has transformers' op in
place of ours. The layers of transformers have as many projections, and a matrix of the same size per head: Qwen3-Next's
has a convolution besides, MiniMax's constant rates, and Mamba-2's keys and queries without a projection of their own.
"Plain" is our form in plain operations, which other devices than a CPU have. Times are medians in milliseconds.
"Saved" is what a forward pass keeps for its backward pass, without parameters.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tabulate import tabulate
from torch import Tensor, nn
from transformers import Mamba2Config, MiniMaxConfig, Qwen3NextConfig
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet, torch_chunk_gated_delta_rule
from turns import attend, medians, settle_allocator

from longspan import mixers
from longspan.machine.environment import environment
from longspan.ops.delta import gated_delta_rule
from longspan.ops.fast_weights import plain
from longspan.ops.gated_linear import gated_linear_attention

# A function, its inputs, and what it has gradients for.
Candidate = tuple[Callable[..., Tensor], Sequence[Tensor], Sequence[Tensor]]
# Of float32 sums over up to 65,536 positions in another order.
TOLERANCE = 1e-3


def qwen_op(query: Tensor, key: Tensor, value: Tensor, strength: Tensor, rates: Tensor, state: Tensor) -> Any:
    """Return `gated_delta_rule` by transformers' function, which divides queries by the root of their width."""
    query, key, value, strength, rates = (x.transpose(1, 2) for x in (query, key, value, strength, rates))
    scaled = query * query.shape[-1] ** 0.5
    out, last = torch_chunk_gated_delta_rule(
        scaled, key, value, -rates, strength, initial_state=state, output_final_state=True
    )
    return out.transpose(1, 2), last


def op_candidates(mixer: str, length: int, dim: int, heads: int) -> dict[str, Candidate]:
    """Return ops over the same tensors, by name."""
    width = dim // heads
    query, key, value = (torch.randn(1, length, heads, width).transpose(1, 2) for _ in range(3))
    query, key = (nn.functional.normalize(x, dim=-1) for x in (query, key))
    strength, rates = torch.rand(1, heads, length), torch.rand(1, heads, length)
    state = torch.zeros(1, heads, width, width)
    found: dict[str, Candidate] = {}
    if mixer == "delta":
        tensors = [query, key, value, strength, rates, state]
        functions = {
            "ours": gated_delta_rule,
            "plain": lambda *given: plain.fast_weights(*given, backwards=0),
            "transformers": qwen_op,
        }
    else:
        tensors = [query, key, value, rates, state]
        functions = {
            "ours": gated_linear_attention,
            "plain": lambda query, key, value, *rest: plain.fast_weights(query, key, value, None, *rest, backwards=0),
        }
        per_channel = torch.rand(1, heads, length, width)
        tensors_per_channel = [x.clone().requires_grad_() for x in (query, key, value, per_channel, state)]
        for name, function in functions.items():
            found[f"op, rate per channel: {name}"] = partial(_first, function), tensors_per_channel, tensors_per_channel
    tensors = [x.clone().requires_grad_() for x in tensors]
    shared = {f"op: {name}": (partial(_first, function), tensors, tensors) for name, function in functions.items()}
    return shared | found


def _first(function: Callable[..., Any], *given: Tensor) -> Tensor:
    found: Tensor = function(*given)[0]
    return found


def layer_candidates(mixer: str, length: int, dim: int, heads: int) -> dict[str, Candidate]:
    """Return layers over the same input, by name."""
    width = dim // heads
    x = torch.randn(1, length, dim, requires_grad=True)
    ours = mixers.build(mixer, dim, heads=heads, causal=True)
    found: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {"ours": (ours, ours)}
    if mixer == "delta":

        def with_theirs(x: Tensor) -> Tensor:
            with mock.patch("longspan.mixers.delta.gated_delta_rule", lambda *given, **_: qwen_op(*given)):
                y: Tensor = ours(x)
            return y

        widths = {"linear_key_head_dim": width, "linear_value_head_dim": width}
        config = Qwen3NextConfig(hidden_size=dim, linear_num_value_heads=heads, linear_num_key_heads=heads, **widths)
        qwen = Qwen3NextGatedDeltaNet(config, 0)
        found |= {"ours with transformers' op": (ours, with_theirs), "Qwen3-Next": (qwen, qwen)}
    else:
        lightning = MiniMaxConfig(hidden_size=dim, num_attention_heads=heads, num_hidden_layers=4)
        minimax = MiniMaxLightningAttention(lightning, 0)
        sizes = {"num_heads": heads, "head_dim": width, "state_size": width, "n_groups": heads, "expand": 1}
        mamba = Mamba2Mixer(Mamba2Config(hidden_size=dim, **sizes), 0)
        found |= {"MiniMax": (minimax, lambda x: minimax(x, None, None)[0]), "Mamba-2": (mamba, mamba)}
        for name, options in (("constant rates", {"decay": "fixed"}), ("rate per channel", {"gate": "channel"})):
            other = mixers.build(mixer, dim, heads=heads, causal=True, **options)
            found[f"ours, {name}"] = other, other
    return {f"layer: {name}": (call, [x], [x, *layer.parameters()]) for name, (layer, call) in found.items()}


def check(candidates: dict[str, Candidate], gradient: Tensor, names: Sequence[str]) -> None:
    """Raise AssertionError unless candidates agree in outputs and gradients."""
    results = []
    for name in names:
        function, inputs, wanted = candidates[name]
        out = function(*inputs)
        results.append([out.detach(), *torch.autograd.grad(out, wanted, gradient)])
    for name, result in zip(names[1:], results[1:], strict=True):
        for found, expected in zip(result, results[0], strict=True):
            error = float((found - expected).abs().max() / expected.abs().max().clamp_min(1))
            assert error < TOLERANCE, f"{name} differs from {names[0]} by {error:.1e}"


def saved(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> int:
    """Return the bytes that a forward pass keeps besides its inputs and parameters."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = function(*inputs)
    for tensor in inputs:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del out
    return sum(kept.values())


def measured(candidates: dict[str, Candidate], gradient: Tensor, repeats: int) -> list[dict[str, Any]]:
    """Return what each candidate takes."""
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    for name, (function, inputs, wanted) in candidates.items():
        calls[name, "forward"] = partial(attend, function, inputs, None)
        calls[name, "both"] = partial(_train, function, inputs, wanted, gradient)
    times = medians({f"{name}|{kind}": call for (name, kind), call in calls.items()}, repeats)
    return [
        {
            "name": name,
            "forward_ms": times[f"{name}|forward"],
            "forward_and_backward_ms": times[f"{name}|both"],
            "saved_bytes": saved(function, inputs),
        }
        for name, (function, inputs, _) in candidates.items()
    ]


def _train(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[Tensor], gradient: Tensor
) -> None:
    torch.autograd.grad(function(*inputs), wanted, gradient)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--mixer", choices=["delta", "gated_linear"], default="delta")
    parser.add_argument("--lengths", default="4096,16384,65536", help="comma-separated numbers of positions")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument(
        "--longest-rival", type=int, default=16384, help="positions up to which other than our compiled loops run"
    )
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    settle_allocator()
    rows = []
    for length in map(int, arguments.lengths.split(",")):
        size = (arguments.mixer, length, arguments.dim, arguments.heads)
        ops, layers = op_candidates(*size), layer_candidates(*size)
        to_op = torch.randn(1, arguments.heads, length, arguments.dim // arguments.heads)
        to_layer = torch.randn(1, length, arguments.dim)
        if length > arguments.longest_rival:
            ops, layers = (
                {name: each[name] for name in each if "ours" in name and "transformers" not in name}
                for each in (ops, layers)
            )
        for same in ([n for n in ops if "channel" in n], [n for n in ops if "channel" not in n]):
            if same:
                check(ops, to_op, same)
        check(layers, to_layer, [n for n in layers if n in ("layer: ours", "layer: ours with transformers' op")])
        for candidates, gradient in ((ops, to_op), (layers, to_layer)):
            rows += [{"positions": length, **row} for row in measured(candidates, gradient, arguments.repeats)]
    print(
        tabulate(
            [
                [
                    row["positions"],
                    row["name"],
                    row["forward_ms"],
                    row["forward_and_backward_ms"],
                    row["saved_bytes"] / 2**20,
                ]
                for row in rows
            ],
            ["positions", f"{arguments.dim} wide, {arguments.heads} heads", "forward ms", "both ms", "saved MiB"],
            floatfmt=".1f",
        )
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": rows, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
