"""Results of translation: tables, samples and the model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.report import count, scores_table, table
from longspan.results import Evaluation
from longspan.tasks.base.seq2seq.task import by_likelihood, data_table
from longspan.tasks.translation.scores import TranslationScores, translation_scores

_BINS = 5


def by_length(texts: Sequence[str], references: Sequence[str], lengths: Sequence[int]) -> list[dict[str, float]]:
    """Return BLEU and chrF of about equally many examples each, by the length of the source in tokens."""
    order = np.argsort(lengths, kind="stable")
    found = []
    for rows in np.array_split(order, min(_BINS, len(order))):
        scores = translation_scores([texts[row] for row in rows], [references[row] for row in rows], intervals=False)
        found.append(
            {
                "from": int(lengths[rows[0]]),
                "to": int(lengths[rows[-1]]),
                "examples": len(rows),
                "bleu": scores.bleu,
                "chrf": scores.chrf,
            }
        )
    return found


def samples(examples: Dataset, texts: Sequence[str], losses: np.ndarray) -> list[dict[str, Any]]:
    """Return some examples, from the one whose reference is most likely to the least likely one, as JSON."""
    return [
        {
            "where": examples[row]["where"],
            "source": examples[row]["source"],
            "reference": examples[row]["target"],
            "translation": texts[row],
            "loss": float(losses[row, 0] / losses[row, 1]),
        }
        for row in by_likelihood(losses)
    ]


def evaluation_report(evaluation: Evaluation[TranslationScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores, details, split = evaluation.scores, evaluation.details, evaluation.split
    kind = type(scores).shown()
    told = [
        f"{kind[name]}: 95 % interval {low:.2f} to {high:.2f}, {scores.signatures[name]}"
        for name, (low, high) in scores.intervals.items()
    ]
    told.append(f"Length ratio {scores.length_ratio:.3f}, with {details['search']}.")
    if details["cut_translations"]:
        told.append(
            f"{count(details['cut_translations'])} of {count(scores.examples)} translations never ended, and were cut."
        )
    lengths = (
        [f"{row['from']} to {row['to']}", count(row["examples"]), f"{row['bleu']:.2f}", f"{row['chrf']:.2f}"]
        for row in details["by_length"]
    )
    shown = (
        f"{row['where']} ({row['loss']:.2f} nats per token)\n  source:      {row['source']}\n"
        f"  reference:   {row['reference']}\n  translation: {row['translation']}"
        for row in details["samples"]
    )
    parts = [
        data_table({split: details["data_table"]}),
        scores_table({split: scores}),
        "\n".join(told),
        table(["source tokens", "examples", "BLEU", "chrF"], lengths),
        "From the likeliest reference to the least likely one:\n\n" + "\n".join(shown),
        f"written to {evaluation.folder} (translations.txt has all translations)",
    ]
    return "\n\n".join(parts)


def draw_by_length(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw BLEU and chrF by the length of the source.

    Args:
        rows: What `longspan.tasks.translation.report.by_length` returns.
        path: The PNG file to write.
    """
    from matplotlib.figure import Figure

    from longspan.report.pictures import save

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
