"""Results of language models: tables and the model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.corpora import documents_table

#: Tokens of the passages whose losses are compared.
_PASSAGE = 64


def evaluation_report(evaluation: Evaluation) -> str:
    """Report that `longspan evaluate` prints."""
    split, details = evaluation.split, evaluation.details
    positions = (
        [count(row["from"]) if row["from"] == row["to"] else f"{count(row['from'])} to {count(row['to'])}",
         count(row["tokens"]), share(row["loss"])]
        for row in details["by_position"]
    )  # fmt: skip
    parts = [
        documents_table({split: details}),
        scores_table({split: evaluation.scores}),
        f"{_context(details)}\nThe ends of documents count as tokens, but have no bytes and no characters.",
        table(["position", "tokens", "nats per token"], positions),
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


def _context(result: Mapping[str, Any]) -> str:
    """Say what tokens were predicted from."""
    if result["context"] == "sliding":
        return (
            f"Each token was predicted from at most {count(result['window'])} before it, in windows "
            f"{count(result['stride'])} apart."
        )
    reach = result["attention_length"]
    memory = "" if reach is None else f", with {count(reach)} positions of memory"
    return f"Documents were read {count(result['segment_length'])} tokens at a time with carried states{memory}."


def passages(losses: Sequence[np.ndarray], documents: Dataset, tokenizer: PreTrainedTokenizerBase) -> Mistakes:
    """Return the passages with the highest loss per token, and the least expected token of each.

    Args:
        losses: For each document, `(n + 1,)` nats of its tokens and of its end.
        documents: The same documents, with `input_ids` and `where`.
        tokenizer: Turns tokens into text.
    """
    first = [np.arange(0, len(row), _PASSAGE) for row in losses]
    ends = np.cumsum([len(places) for places in first])
    means = [
        np.add.reduceat(row.astype(np.float64), places) / np.diff([*places, len(row)])
        for row, places in zip(losses, first, strict=True)
    ]

    def tell(number: int) -> dict[str, str]:
        document = int(np.searchsorted(ends, number, "right"))
        start = int(first[document][number - ends[document]])
        row = documents[document]
        ids = list(row["input_ids"][start : start + _PASSAGE])
        least = int(losses[document][start : start + _PASSAGE].argmax())
        expected = tokenizer.decode(ids[least]) if least < len(ids) else "the end of the document"
        where = f"{row['where']}, tokens {start + 1} to {start + max(1, len(ids))}"
        return {"where": where, "expected": expected, "said": "", "text": tokenizer.decode(ids)}

    return Mistakes.ranked("nats per token", np.concatenate(means), tell)


def loss_by_position(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the loss against the position in the document, on a logarithmic axis.

    Args:
        rows: What `longspan.tasks.language_modelling.scores.loss_by_position` returns.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    from longspan.report.pictures import save

    figure = Figure(figsize=(5.4, 3.6), layout="constrained")
    axes = figure.subplots()
    edges = [row["from"] for row in rows] + [rows[-1]["to"] + 1]
    axes.stairs([row["loss"] for row in rows], edges, baseline=None, linewidth=2)
    axes.set(xscale="log", xlabel="position in the document (tokens)", ylabel="nats per token")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    save(figure, path)
