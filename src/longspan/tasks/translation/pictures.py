"""Pictures of translation scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from longspan.report.pictures import save


def by_length(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw BLEU and chrF by the length of the source.

    Args:
        rows: What `longspan.tasks.translation.report.by_length` returns.
        path: The PNG file to write.
    """
    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    for name, words, marker in (("bleu", "BLEU", "o"), ("chrf", "chrF", "s")):
        axes.plot(places, [row[name] for row in rows], marker=marker, label=words)
    axes.set_xticks(places, [f"{row['from']:.0f} to {row['to']:.0f}" for row in rows])
    axes.set(xlabel="source (tokens)", ylabel="score", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save(figure, path)
