"""Results of models that fill in masked words: tables and the model card."""

from longspan.models.publishing import NAME
from longspan.report import count, scores_table
from longspan.report.card import CardParts
from longspan.results import Evaluation
from longspan.tasks.base import Recipe
from longspan.tasks.corpora import documents_table
from longspan.tasks.masked_words.options import TrainingOptions
from longspan.tasks.options import CorpusData


def evaluation_report(evaluation: Evaluation) -> str:
    """Return what `longspan evaluate` prints."""
    details = evaluation.details
    parts = [
        documents_table({evaluation.split: details}),
        scores_table({evaluation.split: evaluation.scores}),
        f"{count(details['masked'])} tokens were predicted, {details['masked_share']:.0%} of all in "
        f"{details['masking']}, in rows of {count(details['segment_length'])} tokens, the same ones each time.",
        f"written to {evaluation.folder}",
    ]
    return "\n\n".join(parts)


def card_parts(recipe: Recipe[CorpusData, TrainingOptions]) -> CardParts:
    """Return what the model card says about a model that fills in masked words."""
    options = recipe.options
    return CardParts(
        description=f"A model that fills in masked words, trained with the recipe `{recipe.name}`.",
        made=f", trained on rows of {count(options.segment_length)} tokens, of which {options.masked_share:.0%} were "
        f"masked in {options.masking}.",
        results=_RESULTS,
        use=_USE,
        limitations=_LIMITATIONS,
        pipeline_tag="fill-mask",
        metrics=("perplexity", "accuracy"),
    )


_RESULTS = """\
Scores are those of the masked tokens. Numbers of models with other tokens, or masked in another way, do not compare."""

_USE = f"""\
```python
import longspan.models  # makes the architecture known to transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

{NAME}
model = AutoModelForMaskedLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name, split_special_tokens=False)
inputs = tokenizer("The film was<mask> to watch.", return_tensors="pt")
best = model(**inputs).logits[inputs.input_ids == tokenizer.mask_token_id].argmax(-1)
print(tokenizer.decode(best))
```

`longspan predict FOLDER FILE` fills in each `<mask>` in texts. Any recipe can start from it, with
`model.start_from=FOLDER`."""

_LIMITATIONS = """\
The scores apply to text like its training data. What it fills in is plausible, not true, and repeats what is biased in
its training data."""
