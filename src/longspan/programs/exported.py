"""Results of `longspan export`: `Export` and `summary`."""

from dataclasses import dataclass
from typing import Any

from longspan.report import share, table
from longspan.results.base import Result
from longspan.results.scores import Scores


@dataclass(frozen=True)
class Int8(Result):
    """Costs and gains of 8 bits.

    Attributes:
        layers: Linear layers in 8 bits.
        split: The split that both models were scored on.
        documents: Number of its documents.
        before, after: Scores in float32 and in 8 bits.
        float32_bytes: Size of the program in float32.
        float32_seconds, seconds: Median time of both programs for the same texts, in alternating measurements.
    """

    layers: int
    split: str
    documents: int
    before: Scores
    after: Scores
    float32_bytes: int
    float32_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def speedup(self) -> float:
        """Speed relative to float32; below 1 it is slower."""
        return self.float32_seconds / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, of scores the numbers."""
        scores = {"before": self.before.numbers(), "after": self.after.numbers()}
        return super().to_dict() | scores | {"speedup": self.speedup}


@dataclass(frozen=True)
class Export(Result):
    """Result of `longspan.export`, in `export.json`.

    Attributes:
        task: Name of the task.
        format: "torch" or "onnx".
        folder: Where it was written.
        file: Name of the program in the folder.
        bytes: Its size.
        longest: The most tokens of a row; None for any number.
        data: Where the texts are from that it was checked on.
        checked: Rows and tokens of the batches it was checked on.
        difference: The largest difference between its outputs and the model's, with 8 bits those of the model in 8
            bits.
        int8: What 8 bits cost and gain; None for float32.
    """

    task: str
    format: str
    folder: str
    file: str
    bytes: int
    longest: int | None
    data: str
    checked: list[tuple[int, ...]]
    difference: float
    int8: Int8 | None = None


def summary(result: Export) -> str:
    """Summary that `longspan export` prints."""
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
