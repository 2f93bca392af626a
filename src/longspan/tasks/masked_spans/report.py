"""Results of models that write masked spans: tables and the model card."""

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from longspan.models.publishing import NAME
from longspan.report import count, scores_table
from longspan.report.card import CardParts
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.corpora import documents_table
from longspan.tasks.base.task import Recipe
from longspan.tasks.masked_spans.options import MaskedSpansData, TrainingOptions


def evaluation_report(evaluation: Evaluation) -> str:
    """Return what `longspan evaluate` prints."""
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


def card_parts(recipe: Recipe[MaskedSpansData, TrainingOptions]) -> CardParts:
    """Return what the model card says about a model that writes masked spans."""
    options = recipe.options
    return CardParts(
        description=f"An encoder and a decoder that fill in masked spans of texts, trained with the recipe "
        f"`{recipe.name}`.",
        made=f", trained on windows of {count(recipe.data.max_length)} tokens, of which {options.masked_share:.0%} "
        f"were masked, in spans of {options.span_length:g} tokens on average.",
        results="Scores are those of the masked tokens, each given those before it, and of the special tokens between "
        "spans. Numbers of models with other tokens, or masked in another way, do not compare.",
        use=_USE,
        limitations="The scores apply to text like its training data. What it fills in is plausible, not true, and "
        "repeats what is biased in its training data.",
        metrics=("perplexity",),
    )


_USE = f"""\
```python
import longspan.models  # makes the architecture known to transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

{NAME}
model = AutoModelForSeq2SeqLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name, split_special_tokens=False)
read = tokenizer("The film was<extra_id_0> to watch.", return_tensors="pt", return_token_type_ids=False)
ids = model.generate(**read, max_new_tokens=20)
print(tokenizer.batch_decode(ids))
```

`longspan predict FOLDER FILE` fills in each `<mask>` in texts. Recipes with an encoder and a decoder start from it,
with `model.start_from=FOLDER`."""
