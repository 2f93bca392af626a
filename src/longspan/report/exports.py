"""What `longspan export` prints."""

from longspan.report import share, table
from longspan.results import Export, Int8


def export_summary(result: Export) -> str:
    """Return what `longspan export` prints."""
    rows, longest = (max(sizes) for sizes in zip(*result.checked, strict=True))
    reach = "any number of tokens" if result.longest is None else f"1 to {result.longest} tokens"
    model = "the model in 8 bits" if result.int8 else "the model"
    parts = [
        f"{result.file}: {_megabytes(result.bytes)}, for any number of texts of {reach}",
        f"checked on {result.data}, 1 to {rows} texts of 1 to {longest} tokens at a time: the outputs differ from "
        f"those of {model} by at most {result.difference:.1e}",
    ]
    if result.int8 is not None:
        parts += _cost(result.int8, result.bytes)
    return "\n\n".join([*parts, f"written to {result.folder}, where README.md has the lines that run it"])


def _cost(int8: Int8, size: int) -> list[str]:
    kind = type(int8.before)
    rows = [
        [name, *map(share, scores.numbers().values())]
        for name, scores in (("float32", int8.before), ("8 bits", int8.after))
    ]
    name = kind.headline()
    change = int8.after.numbers()[name] - int8.before.numbers()[name]
    told = "does not change"
    if change:
        told = f"gets {'better' if (change > 0) == kind.higher_is_better() else 'worse'} by {abs(change):.2g}"
    speed = int8.speedup
    if speed >= 1:
        compared = f"{speed:.2f} times as fast as in float32 on this machine"
    else:
        compared = f"slower than in float32 on this machine, which is {1 / speed:.2f} times as fast"
    return [
        table([f"{int8.documents} documents of {int8.split}", *kind.shown().values()], rows),
        f"8 bits in {int8.layers} linear layers: {kind.shown()[name]} {told}; {compared}; "
        f"{_megabytes(size)} instead of {_megabytes(int8.float32_bytes)}",
    ]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
