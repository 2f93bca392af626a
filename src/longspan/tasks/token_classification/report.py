"""Results of token classifiers: tables, errors in their context, and what the model card says."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.task import Task
from longspan.tasks.token_classification.scores import TokenScores
from longspan.tasks.token_classification.trainer import Sentence


def mistakes(sentences: Sequence[Sentence], rows: Dataset) -> Mistakes:
    """Return the sentences with the most wrong labels; their texts have words with a wrong label in brackets."""
    errors = [sum(a != b for a, b in zip(each.gold, each.given, strict=True)) for each in sentences]

    def tell(number: int) -> dict[str, str]:
        sentence = sentences[number]
        row = rows[sentence.document]
        sizes = row["sentences"] or [len(row["tokens"])]
        start = sum(sizes[: sentence.number])
        words = row["tokens"][start : start + len(sentence.gold)]
        labels = list(zip(words, sentence.gold, sentence.given, strict=True))
        return {
            "where": f"{row['where']}, sentence {sentence.number + 1}" if len(sizes) > 1 else row["where"],
            "expected": " ".join(f"{word}/{gold}" for word, gold, given in labels if gold != given),
            "said": " ".join(f"{word}/{given}" for word, gold, given in labels if gold != given),
            "text": " ".join(word if gold == given else f"[{word}]" for word, gold, given in labels),
        }

    return Mistakes.ranked("wrong words", np.where(np.array(errors) > 0, errors, np.nan), tell)


def errors_text(found: Mistakes) -> str:
    """Return sentences with their errors for people."""
    told = (
        f"{one.where}: {one.score:.0f} wrong\n{one.text}\nright: {one.expected}\ngiven: {one.said}"
        for one in found.worst
    )
    return "\n\n".join(told) + "\n"


def evaluation_report(task: Task, evaluation: Evaluation[TokenScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores = evaluation.scores
    keys = ("precision", "recall", "f1")
    types = ([name, *(share(row[key]) for key in keys), count(row["support"])] for name, row in scores.per_type.items())
    confused = ([str(label), str(given), count(float(number))] for label, given, number in scores.confused[:10])
    parts = [
        task.data_table({evaluation.split: evaluation.details["data_summary"]}),
        f"read by {evaluation.details['unit']}",
        scores_table({evaluation.split: scores}),
        table(["label", "precision", "recall", "F1", "support"], types),
        table(["label", "taken for", "words"], confused),
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)
