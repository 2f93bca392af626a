"""Results of summarisation: tables, samples and the model card."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.models.publishing import NAME
from longspan.report import count, scores_table
from longspan.report.card import CardParts
from longspan.results import Evaluation, TrainingResult
from longspan.tasks.base.seq2seq.task import by_likelihood, data_table
from longspan.tasks.base.task import Recipe
from longspan.tasks.summarisation.scores import SIGNATURE, SummaryScores


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
    """Return what `longspan evaluate` prints."""
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


def card_parts(recipe: Recipe, result: TrainingResult[SummaryScores]) -> CardParts:
    """Return what the model card says about a model that summarises."""
    return CardParts(
        description=f"A summarisation model trained with the recipe `{recipe.name}`.",
        made=f". It reads {_read(recipe)}, with a question in front if there is one, and writes summaries.",
        results=f"ROUGE is `{SIGNATURE}`. Summaries were made with {recipe.options.beams} beams.",
        use=_USE.format(name=NAME, beams=recipe.options.beams),
        limitations="The scores apply to documents like its training data. Summaries may say what the document does "
        "not say, or leave out what matters, however fluent they are. It shares the biases of its training data.",
        pipeline_tag="summarization",
        tags=("summarization", "long-document"),
        metrics=("rouge",),
    )


def _read(recipe: Recipe) -> str:
    """Return what is read of documents, in words."""
    words = recipe.data.select_words
    if not words:
        return "whole documents"
    return f"at most {count(words)} words of a document, its lines that match the question best"


_USE = """\
```python
import longspan.models  # makes the architecture known to transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

{name}
model = AutoModelForSeq2SeqLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
# Without a question, tokenizer(document, ...).
read = tokenizer("A question?", "A long document.", return_tensors="pt", return_token_type_ids=False)
ids = model.generate(**read, num_beams={beams}, no_repeat_ngram_size=3, max_new_tokens=256)
print(tokenizer.batch_decode(ids, skip_special_tokens=True))
```

`longspan predict FOLDER FILE` summarises the documents of whole files."""
