"""Results of summarisation: tables, samples and the model card."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.report import count, scores_table
from longspan.results import Evaluation
from longspan.tasks.base.seq2seq.task import by_likelihood, data_table
from longspan.tasks.summarisation.scores import SummaryScores


def samples(examples: Dataset, texts: Sequence[str], losses: np.ndarray) -> list[dict[str, Any]]:
    """Return some examples, from the one whose reference is most likely to the least likely one, as JSON."""
    return [
        {
            "where": examples[row]["where"],
            "question": (examples[row]["questions"] or [None])[0],
            "reference": examples[row]["summaries"][0],
            "summary": texts[row],
            "loss": float(losses[row, 0] / losses[row, 1]),
        }
        for row in by_likelihood(losses)
    ]


def evaluation_report(evaluation: Evaluation[SummaryScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores, details, split = evaluation.scores, evaluation.details, evaluation.split
    kind = type(scores).shown()
    told = [f"{kind[name]}: 95 % interval {low:.2f} to {high:.2f}" for name, (low, high) in scores.intervals.items()]
    told.append(f"ROUGE is {scores.signature}.")
    told.append(
        f"Summaries have {scores.words:.1f} words, references {scores.reference_words:.1f}, with {details['search']}. "
        f"Of their word pairs, {scores.novelty:.1%} are not in the document. Of the sources, {scores.source_read:.1%} "
        "was read."
    )
    if details["cut_summaries"]:
        told.append(
            f"{count(details['cut_summaries'])} of {count(scores.examples)} summaries never ended, and were cut."
        )
    if scores.empty:
        told.append(f"{count(scores.empty)} of {count(scores.examples)} summaries are empty.")
    shown = (
        f"{row['where']} ({row['loss']:.2f} nats per token)\n"
        + (f"  question:  {row['question']}\n" if row["question"] else "")
        + f"  reference: {row['reference']}\n  summary:   {row['summary']}"
        for row in details["samples"]
    )
    parts = [
        data_table({split: details["data_table"]}),
        scores_table({split: scores}),
        "\n".join(told),
        "From the likeliest reference to the least likely one:\n\n" + "\n".join(shown),
        f"written to {evaluation.folder} (summaries.txt has all summaries)",
    ]
    return "\n\n".join(parts)
