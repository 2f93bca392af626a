"""Pictures of a language model's scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from longspan.report.pictures import save


def loss_by_position(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the loss against the position in the document, on a logarithmic axis.

    Args:
        rows: What `longspan.tasks.language_modelling.scores.loss_by_position` returns.
        path: The PNG file to write.
    """
    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    edges = [row["from"] for row in rows] + [rows[-1]["to"] + 1]
    axes.stairs([row["loss"] for row in rows], edges, baseline=None, linewidth=2)
    axes.set(xscale="log", xlabel="position in the document (tokens)", ylabel="nats per token")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    save(figure, path)
