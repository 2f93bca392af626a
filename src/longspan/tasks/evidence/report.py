"""Results of finding evidence: tables, and what the model card says."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from longspan.models.publishing import NAME
from longspan.report import scores_table, share, table
from longspan.report.card import CardParts
from longspan.results import Evaluation, TrainingResult
from longspan.results.mistakes import Mistakes
from longspan.tasks.base import Recipe, Task
from longspan.tasks.evidence.scores import EvidenceScores, probabilities


def mistakes(logits: Sequence[np.ndarray], gold: Sequence[np.ndarray], examples: Dataset) -> Mistakes:
    """Return the questions whose likeliest part is no answer, the most confident first.

    Args:
        logits: For each question, `(p,)` those of the document's parts.
        gold: For each question, `(p,)` whether a part answers it; questions without any are left out.
        examples: The documents, with `parts`, `questions` and `where`.
    """
    top = [int(row.argmax()) for row in logits]
    scores = [
        float(probabilities(row)[best]) if right.any() and not right[best] else np.nan
        for row, right, best in zip(logits, gold, top, strict=True)
    ]
    ends = np.cumsum([len(questions) for questions in examples["questions"][:]])

    def tell(number: int) -> dict[str, str]:
        document = int(np.searchsorted(ends, number, "right"))
        row = examples[document]
        question = row["questions"][number - int(ends[document])]
        return {
            "where": row["where"],
            "expected": " / ".join(row["parts"][place] for place in np.flatnonzero(gold[number])),
            "said": row["parts"][top[number]],
            "text": question,
        }

    return Mistakes.ranked("probability of the likeliest part", scores, tell)


def evaluation_report(task: Task, evaluation: Evaluation[EvidenceScores]) -> str:
    """Return what `longspan evaluate` prints."""
    scores, split = evaluation.scores, evaluation.split
    recalls = ([share(float(read)), share(recall)] for read, recall in scores.recall_by_share.items())
    left = f"{scores.unanswered} questions that no part answers are not scored\n\n" if scores.unanswered else ""
    parts = [
        task.data_table({split: evaluation.details["data_summary"]}),
        scores_table({split: scores}),
        table(["share read", "recall"], recalls),
        f"{left}written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


def card_parts(recipe: Recipe, result: TrainingResult) -> CardParts:
    """Return what the model card says about a model that finds evidence."""
    return CardParts(
        description=f"A model trained with the recipe `{recipe.name}`, which finds what answers a question.",
        made=". It gives each part of a long document the probability that it answers a question about the document.",
        results=_RESULTS,
        use=_USE.format(name=NAME),
        limitations="The scores apply to documents and questions like those it was trained on. Words that were not in "
        "its training data are all one word to it if its tokens are words. It shares the biases of its training data.",
        tags=("evidence", "long-document"),
    )


_RESULTS = """\
Recall at a sixth is the share of the parts that answer a question among the sixth of the document's parts that the
model ranks first; a random order has 16.7 %. Parts are marked from the probability that has the highest F1 on the
validation split: there F1 is a little better than on new documents."""

_USE = """\
```python
from longspan import LongspanForEvidence

{name}
model = LongspanForEvidence.from_pretrained(name)
```

`longspan predict FOLDER FILE` ranks the parts of the documents in JSON lines such as
{{"parts": ["...", "..."], "questions": ["..."]}}."""
