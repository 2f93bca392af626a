"""Results of models that write masked spans: tables and the model card."""

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from longspan.report import count, scores_table
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.corpora import documents_table


def evaluation_report(evaluation: Evaluation) -> str:
    """Report that `longspan evaluate` prints."""
    details = evaluation.details
    parts = [
        documents_table({evaluation.split: details}),
        scores_table({evaluation.split: evaluation.scores}),
        f"{details['masked_share']:.0%} of the tokens were masked, in spans of {details['span_length']:g} on average, "
        f"the same ones each time, in {count(details['windows'])} windows of at most {count(details['max_length'])} "
        "tokens.",
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


def mistakes(
    losses: np.ndarray, windows: Dataset, documents: Dataset, size: int, tokenizer: PreTrainedTokenizerBase
) -> Mistakes:
    """Return the windows whose masked spans have the highest loss per token.

    Args:
        losses: `(n, 2)` the nats of each window's target, and its tokens.
        windows: What `longspan.tasks.masked_spans.masking.windows` returned for the documents.
        documents: They have `length` and `where`.
        size: Tokens of a window.
        tokenizer: Turns tokens into text.
    """
    ends = np.cumsum(-(-np.asarray(documents["length"][:]) // size))

    def tell(number: int) -> dict[str, str]:
        document = int(np.searchsorted(ends, number, "right"))
        window = number - int(ends[document - 1] if document else 0)
        row = windows[number]
        return {
            "where": f"{documents[document]['where']}, window {window + 1}",
            "expected": tokenizer.decode(row["labels"]),
            "said": "",
            "text": tokenizer.decode(row["input_ids"]),
        }

    return Mistakes.ranked("nats per token", losses[:, 0] / losses[:, 1], tell)
