"""Results of `longspan bench` for people: tables and a figure."""

from pathlib import Path

from longspan.report import count, number, table
from longspan.report.pictures import needs_matplotlib, save
from longspan.results.bench import Benchmark, Measurement

_HEAD = ("mixer", "length", "ms", "spread", "tokens/s", "MiB", "GFLOP/s", "GB/s", "x floor")


def bench_summary(result: Benchmark, style: str = "simple") -> str:
    """Summary that `longspan bench` prints."""
    rows = [_row(one) for name in result.mixers for one in result.measurements if one.mixer == name]
    said = [f"{one.mixer} at {one.length:,}: {one.left_out}" for one in result.measurements if one.left_out]
    said += [
        f"{one.mixer} at {one.length:,}: outputs or gradients that are not finite."
        for one in result.measurements
        if not one.finite
    ]
    rates = (
        f"This machine: {number(result.product_rate / 1e9)} GFLOP/s in matrix products, "
        f"{number(result.copy_rate / 1e9)} GB/s in copies ({result.settings['dtype']})."
    )
    return "\n\n".join(filter(None, [table(_HEAD, rows, style), "\n".join(said), rates, crossings(result)]))


def crossings(result: Benchmark) -> str:
    """Say from which length each mixer is faster than softmax; nothing if softmax is not among them."""
    if "softmax" not in result.mixers:
        return ""
    said = []
    for name in result.mixers:
        if name == "softmax":
            continue
        found = result.crossing(name)
        length = f"{found.length or 0:,.0f}"
        said.append(
            {
                "always": f"{name} is faster than softmax at every measured length, from {length} on.",
                "from": f"{name} is faster than softmax from about {length} positions on.",
                "never": f"{name} is not faster than softmax up to {length} positions, the longest measured for both.",
                "unknown": f"{name} and softmax were not measured at the same length.",
            }[found.kind]
        )
    return "\n".join(said)


def _row(one: Measurement) -> list[str]:
    if one.seconds is None:
        return [one.mixer, count(one.length), "left out", *["-"] * 6]
    milliseconds = [_digits(1000 * (value or 0)) for value in (one.seconds, one.low, one.high)]
    return [
        one.mixer,
        count(one.length),
        milliseconds[0],
        f"{milliseconds[1]} to {milliseconds[2]}",
        count(one.tokens_per_second),
        "-" if one.peak_memory_bytes is None else f"{one.peak_memory_bytes / 2**20:,.1f}",
        _digits(one.operations / one.seconds / 1e9),
        _digits(one.moved_bytes / one.seconds / 1e9),
        "-" if one.distance is None else f"{one.distance:.1f}",
    ]


def _digits(value: float) -> str:
    """Return three digits, so that a row fits on a line, or all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@needs_matplotlib
def bench_figure(result: Benchmark, path: Path) -> None:
    """Draw time and memory against length on logarithmic scales, with the spread of times."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(10, 4), layout="constrained")
    times, memory = figure.subplots(1, 2)
    for place, name in enumerate(result.mixers):
        if not (rows := result.of(name)):
            continue
        style = {"color": f"C{place}", "marker": "os^Dv*Ph<>"[place % 10], "markersize": 5}
        lengths = [one.length for one in rows]
        times.plot(lengths, [1000 * (one.seconds or 0) for one in rows], label=name, **style)
        low, high = (
            [1000 * (value or 0) for value in ends] for ends in ([r.low for r in rows], [r.high for r in rows])
        )
        times.fill_between(lengths, low, high, color=style["color"], alpha=0.2, linewidth=0)
        memory.plot(lengths, [(one.peak_memory_bytes or 0) / 2**20 for one in rows], **style)
    ticks = result.lengths[:: -(-len(result.lengths) // 6)]
    for axes, label in ((times, "milliseconds"), (memory, "peak memory (MiB)")):
        axes.set(xscale="log", yscale="log", xlabel="length (positions)", ylabel=label)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    save(figure, path)
