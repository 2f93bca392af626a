"""Results of language models: tables and the model card."""

from collections.abc import Mapping
from typing import Any

from longspan.models.publishing import NAME
from longspan.report import count, scores_table, share, table
from longspan.report.card import CardParts
from longspan.results import Evaluation
from longspan.tasks.base import Recipe
from longspan.tasks.corpora import documents_table
from longspan.tasks.language_modelling.options import TrainingOptions
from longspan.tasks.options import CorpusData


def evaluation_report(evaluation: Evaluation) -> str:
    """Return what `longspan evaluate` prints."""
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


def card_parts(recipe: Recipe[CorpusData, TrainingOptions]) -> CardParts:
    """Return what the model card says about a language model."""
    return CardParts(
        description=f"A language model trained with the recipe `{recipe.name}`.",
        made=f", trained on segments of {count(recipe.options.segment_length)} tokens.",
        results=_RESULTS,
        use=_USE,
        limitations=_LIMITATIONS,
        pipeline_tag="text-generation",
        metrics=("perplexity",),
    )


_RESULTS = """\
The end of a document counts as a token. Bits per byte and per character are those of all tokens over the bytes and
characters of the text, whatever the tokens are."""

_USE = f"""\
```python
import longspan.models  # makes the architecture known to transformers
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

{NAME}
model = AutoModelForCausalLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
# A document begins after an end token.
prompt = [tokenizer.eos_token_id, *tokenizer.encode("Some text", add_special_tokens=False)]
ids = model.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=True)
print(tokenizer.decode(ids[0, 1:]))
```

or, with constant memory per token, `longspan generate FOLDER --prompt "Some text" --max-new-tokens 200`."""

_LIMITATIONS = """\
The scores apply to text like its training data. It continues text plausibly, not truthfully, and repeats what is biased
or private in its training data."""
