"""Time and memory of mixers over lengths: `bench`."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longspan import mixers as all_mixers
from longspan.errors import UserError, check_choice, suggestion
from longspan.machine import imports
from longspan.machine.environment import environment
from longspan.machine.floors import Rates, Times, interleaved, measured_rates, peak_of
from longspan.machine.memory import memory_limit
from longspan.mixers.base import Mixer
from longspan.models.backbone import Backbone
from longspan.results.bench import Benchmark, Measurement
from longspan.results.outputs import write_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda")
MIXERS = ("additive", "linear", "delta", "softmax")
LENGTHS = (512, 1024, 2048, 4096, 8192)
_SHARE_OF_MEMORY = 0.8
"""A measurement that is expected to take more of the machine's memory is left out: the system would end the process."""


def bench(
    mixers: Sequence[str] = MIXERS,
    lengths: Sequence[int] = LENGTHS,
    *,
    dim: int = 256,
    heads: int = 8,
    batch_size: int = 1,
    layers: int = 0,
    causal: bool = False,
    backward: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 7,
    seconds: float = 3.0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    out: Path | str | None = None,
    allow_imports: Iterable[str] = (),
) -> Benchmark:
    """Measure time and memory of mixers over lengths, and how far they are from what this machine could do.

    Mixers take turns at each length. Inputs are random; all positions are real.

    Args:
        mixers: Names or dotted paths; "a+b" is a hybrid, which needs `layers`.
        lengths: Positions of a row.
        dim: Width.
        heads: Heads of the mixers that have heads.
        batch_size: Rows.
        layers: Number of layers of a model around the mixers, each with a feed-forward network of `4 * dim`; 0 measures
            mixers alone.
        causal: Measure the causal forms.
        backward: Measure forward and backward passes together, to the input and the weights.
        dtype: "float32" or "bfloat16".
        device: "cpu" or "cuda".
        repeats: Times that each is measured.
        seconds: No further turn begins after so many seconds for each mixer and length. A mixer whose call is expected
            to take longer is left out.
        options: Options of mixers, by mixer.
        out: Folder for `bench.json`, written after each length, and `bench.png`. None writes nothing.
        allow_imports: Packages or modules that dotted paths may import.

    Returns:
        The measurements, with the reasons for those left out.

    Raises:
        UserError: Before measuring: an unknown mixer, option, type or device, a length that a mixer cannot take, or a
            size that does not fit.
    """
    if isinstance(mixers, str):
        raise UserError(f"expected mixers to be several names, got the text {mixers!r}; write [{mixers!r}].")
    names, sizes, chosen = list(dict.fromkeys(mixers)), sorted(set(lengths)), options or {}
    numbers = {"dim": dim, "heads": heads, "batch size": batch_size, "repeats": repeats, "seconds": seconds}
    _check(names, sizes, numbers, layers, dtype, device)
    place, kind = torch.device(device), DTYPES[dtype]
    shared = {"heads": heads, "causal": causal}
    # The same weights and inputs each time; the caller's random numbers stay as they were.
    with imports.allow(*allow_imports), torch.random.fork_rng():
        torch.manual_seed(0)
        modules = {name: _built(name, dim, layers, shared, chosen, sizes[-1]).to(place, kind) for name in names}
        if unused := [name for name in chosen if name not in {part for name in names for part in name.split("+")}]:
            raise UserError(
                f"there are options for {unused[0]!r}, which is not measured; {suggestion(unused[0], names)}"
            )
        for module in modules.values():
            # What a mixer refuses, it refuses before anything is measured.
            module(torch.randn(1, min(8, sizes[0]), dim).to(place, kind))
        settings = {"mixers": names, "lengths": sizes, "dim": dim, "batch_size": batch_size, "layers": layers}
        settings |= shared | {"backward": backward, "dtype": dtype, "device": device, "seconds": seconds}
        settings |= {"options": {name: dict(values) for name, values in chosen.items()}}
        settings |= {"out": None if out is None else str(out)}
        print("measuring matrix products and copies", file=sys.stderr)
        rates = measured_rates(kind, place)
        rows: list[Measurement] = []
        result = Benchmark(settings, rates.operations, rates.bytes, environment(), rows)
        for length in sizes:
            print(f"measuring length {length:,}", file=sys.stderr)
            x = torch.randn(batch_size, length, dim).to(place, kind)
            with _kept_at_interrupt(rows, out):
                rows += _measured(modules, x, rows, rates, backward, repeats, seconds)
            if out is not None:
                Path(out).mkdir(parents=True, exist_ok=True)
                write_json(Path(out, "bench.json"), result.to_dict())
    if out is not None:
        from longspan.report.bench import bench_figure

        bench_figure(result, Path(out, "bench.png"))
    return result


def _check(
    names: Sequence[str], lengths: Sequence[int], numbers: Mapping[str, float], layers: int, dtype: str, device: str
) -> None:
    if not names or not lengths:
        raise UserError("expected at least one mixer and one length, got none; name some.")
    for what, value in {"length": lengths[0], **numbers}.items():
        if not value > 0:
            raise UserError(f"expected {what} to be above 0, got {value}; choose a larger number.")
    if layers < 0:
        raise UserError(f"expected layers to be at least 0, got {layers}; 0 measures mixers alone.")
    check_choice("dtype", dtype, DTYPES)
    if (kind := device.partition(":")[0]) not in DEVICES:
        raise UserError(f"there is no device {device!r}; {suggestion(kind, DEVICES, meant={'gpu': 'cuda'})}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("expected a GPU for the device 'cuda', got none; use 'cpu'.")
    for name in names:
        if "+" in name and not layers:
            raise UserError(f"expected layers for the hybrid {name!r}, got a mixer alone; set layers to 2 or more.")


@contextlib.contextmanager
def _kept_at_interrupt(rows: Sequence[Measurement], out: Path | str | None) -> Any:
    try:
        yield
    except KeyboardInterrupt:
        done = rows[-1].length if rows else None
        raise KeyboardInterrupt(
            f"lengths up to {done:,} are in {str(Path(out, 'bench.json'))!r}" if done and out else "nothing was written"
        ) from None


def _built(
    name: str,
    dim: int,
    layers: int,
    shared: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    longest: int,
) -> nn.Module:
    """Return a mixer, or a model of `layers` layers around it."""
    parts = name.split("+")
    for part in parts:
        all_mixers.load(part)
    own = {part: dict(options[part]) for part in parts if part in options}
    model = Backbone(
        dim, layers or 1, mixer_names=parts, mixer_options=own, shared_options=shared, feed_forward_dim=4 * dim
    )
    for layer, block in enumerate(model.layers):
        part = parts[layer % len(parts)]
        limit = block.mixer.max_length
        if limit is not None and longest > limit:
            raise UserError(
                f"mixer {part!r} takes at most {limit:,} positions, got the length {longest:,}; choose shorter ones, "
                f"or set {part}.max_length={longest}."
            )
    module: nn.Module = model if layers else model.layers[0].mixer
    return module


def _measured(
    modules: Mapping[str, nn.Module],
    x: Tensor,
    before: Sequence[Measurement],
    rates: Rates,
    backward: bool,
    repeats: int,
    seconds: float,
) -> list[Measurement]:
    """Measure all mixers at one length, after those of `before`."""
    calls: dict[str, Callable[[], list[Tensor]]] = {}
    peaks: dict[str, int] = {}
    left_out: dict[str, str] = {}
    finite: dict[str, bool] = {}
    for name, module in modules.items():
        reason = _reason([one for one in before if one.mixer == name], x.shape[1], seconds, x.device)
        if reason is None:
            try:
                call = _call(module, x, backward)
                finite[name] = all(bool(torch.isfinite(one).all()) for one in call())
                peaks[name] = peak_of(call, x.device)
                calls[name] = call
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                reason = "left out: not enough memory."
        if reason is not None:
            left_out[name] = reason
    times = interleaved(calls, repeats=repeats, seconds=seconds * len(calls), device=x.device)
    return [
        _row(name, module, x, rates, backward, times.get(name), peaks.get(name), finite.get(name, True), left_out)
        for name, module in modules.items()
    ]


def _row(
    name: str,
    module: nn.Module,
    x: Tensor,
    rates: Rates,
    backward: bool,
    times: Times | None,
    peak: int | None,
    finite: bool,
    left_out: Mapping[str, str],
) -> Measurement:
    # Backward passes take two products for each one forward, and read and write gradients.
    operations = (3 if backward else 1) * x.shape[0] * _operations(module, x.shape[1])
    weights = sum(weight.numel() * weight.element_size() for weight in module.parameters())
    moved = 2 * x.numel() * x.element_size() + weights
    moved *= 2 if backward else 1
    length, tokens, floor = x.shape[1], x.shape[0] * x.shape[1], rates.floor(operations, moved)
    known = {"operations": operations, "moved_bytes": moved, "floor_seconds": floor}
    if times is None:
        return Measurement(name, length, tokens, left_out=left_out[name], **known)  # type: ignore[arg-type]
    return Measurement(
        name, length, tokens, times.median, times.low, times.high, times.repeats, peak, operations, moved, floor, finite
    )


def _call(module: nn.Module, x: Tensor, backward: bool) -> Callable[[], list[Tensor]]:
    """Return a call that computes the outputs, or with `backward` the outputs and all gradients."""
    if not backward:

        def forward() -> list[Tensor]:
            with torch.inference_mode():
                return [module(x)]

        return forward
    read = x.detach().requires_grad_()
    gradient = torch.randn_like(x)
    inputs = [read, *(weight for weight in module.parameters() if weight.requires_grad)]

    def both() -> list[Tensor]:
        y = module(read)
        found = torch.autograd.grad(y, inputs, gradient, allow_unused=True)
        return [y.detach(), *(one for one in found if one is not None)]

    return both


def _operations(module: nn.Module, length: int) -> int:
    """Return the operations of the matrix products over one row."""
    if isinstance(module, Mixer):
        return module.operations(length)
    assert isinstance(module, Backbone)
    # Two products of width times four widths in each layer.
    fed = sum(4 * length * block.mixer.dim * block.feed_forward_dim for block in module.layers)
    return fed + sum(block.mixer.operations(length) for block in module.layers)


def _reason(before: Sequence[Measurement], length: int, seconds: float, device: torch.device) -> str | None:
    """Say why a mixer is left out at a length, by what it took at shorter ones; None if it is not."""
    if before and before[-1].left_out is not None:
        return "left out, as at the length before."
    expected = _expected([(one.length, one.seconds or 0.0) for one in before], length)
    if expected is not None and expected > seconds:
        return f"left out: a call takes about {expected:.1f} s, more than the {seconds:g} s of --seconds."
    memory = _expected([(one.length, float(one.peak_memory_bytes or 0)) for one in before], length)
    there = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else memory_limit()
    if memory is not None and memory > _SHARE_OF_MEMORY * there:
        return f"left out: it needs about {memory / 2**30:.1f} GiB of memory, of {there / 2**30:.1f} GiB."
    return None


def _expected(points: Sequence[tuple[int, float]], length: int) -> float | None:
    """Return the value at `length` of a power law through the last two points, linear with one; None without any."""
    if not points:
        return None
    last, value = points[-1]
    power = 1.0
    if len(points) > 1 and min(value, points[-2][1]) > 0:
        # Noise must not make it look steeper than quadratic.
        power = min(2.0, max(1.0, math.log(value / points[-2][1]) / math.log(last / points[-2][0])))
    return value * (length / last) ** power


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)
