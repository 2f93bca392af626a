"""Results of models that fill in masked words: tables and the model card."""

from collections.abc import Mapping, Sequence

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from longspan.models.parts.losses import IGNORED
from longspan.report import count, scores_table
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.corpora import documents_table

#: Tokens on either side of a masked one that are shown.
_AROUND = 24


def evaluation_report(evaluation: Evaluation) -> str:
    """Report that `longspan evaluate` prints."""
    details = evaluation.details
    parts = [
        documents_table({evaluation.split: details}),
        scores_table({evaluation.split: evaluation.scores}),
        f"{count(details['masked'])} tokens were predicted, {details['masked_share']:.0%} of all in "
        f"{details['masking']}, in rows of {count(details['segment_length'])} tokens, the same ones each time.",
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


def mistakes(
    losses: np.ndarray,
    found: np.ndarray,
    wanted: np.ndarray,
    rows: Sequence[Mapping[str, Tensor]],
    documents: Dataset,
    tokenizer: PreTrainedTokenizerBase,
) -> Mistakes:
    """Return the masked tokens that are predicted wrongly, those with the highest loss first.

    Args:
        losses: `(n,)` nats of the masked tokens.
        found: `(n,)` the likeliest tokens.
        wanted: `(n,)` the right ones.
        rows: What `longspan.tasks.masked_words.rows.fixed_rows` returned for the documents.
        documents: They have `length` and `where`.
        tokenizer: Turns tokens into text.
    """
    masked = [row["labels"].numpy() != IGNORED for row in rows]
    places = np.flatnonzero(np.concatenate(masked))
    starts = np.cumsum([0, *(len(row) for row in masked)])
    ends = np.cumsum(documents["length"][:])

    def tell(number: int) -> dict[str, str]:
        place = int(places[number])
        document, row = int(np.searchsorted(ends, place, "right")), int(np.searchsorted(starts, place, "right")) - 1
        token = place - int(ends[document - 1] if document else 0)
        at = place - int(starts[row])
        around = rows[row]["input_ids"][max(0, at - _AROUND) : at + _AROUND + 1]
        return {
            "where": f"{documents[document]['where']}, token {token + 1}",
            "expected": tokenizer.decode([int(wanted[number])]),
            "said": tokenizer.decode([int(found[number])]),
            "text": tokenizer.decode(around),
        }

    return Mistakes.ranked("nats", np.where(found == wanted, np.nan, losses), tell)
