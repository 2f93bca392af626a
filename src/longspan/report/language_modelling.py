"""Results of language models: tables, the model card, and what a generation took."""

from collections.abc import Mapping
from typing import Any

from longspan.recipes import Recipe
from longspan.report import count, duration, scored, scores_table, share, size, table
from longspan.tasks.language_modelling import SCORES

_STARTS = {"zeros": "as zeros that are seen", "empty": "empty"}


def data_table(data: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of splits: documents and their tokens, characters and bytes."""
    splits = {name: row for name, row in data.items() if isinstance(row, Mapping) and "documents" in row}
    headers = ["split", "documents", "tokens", "unknown tokens", "characters", "bytes", "longest (tokens)"]
    keys = ["documents", "tokens", "unknown", "characters", "bytes", "longest"]
    return table(headers, ([name, *(count(row.get(key)) for key in keys)] for name, row in splits.items()), style)


def evaluation_summary(result: Mapping[str, Any]) -> str:
    """Return what `longspan evaluate` prints, from the result of `longspan.evaluate.evaluate`."""
    split = result["split"]
    positions = (
        [count(row["from"]) if row["from"] == row["to"] else f"{count(row['from'])} to {count(row['to'])}",
         count(row["tokens"]), share(row["loss"])]
        for row in result["by_position"]
    )  # fmt: skip
    parts = [
        data_table({split: result}),
        scores_table(SCORES, {split: result}),
        f"{_context(result)}\nThe ends of documents count as tokens, but have no bytes and no characters.",
        table(["position", "tokens", "nats per token"], positions),
        f"written to {result['folder']}",
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


def generation_summary(statistics: Mapping[str, Any]) -> str:
    """Return what `longspan generate --stats` prints, from `longspan.generate.Statistics.summary`."""
    early, late = statistics["early_milliseconds"], statistics["late_milliseconds"]
    parts = [
        f"{count(statistics['prompt_tokens'])} tokens of prompt read in {duration(statistics['prompt_seconds'])}",
        f"{count(statistics['new_tokens'])} made in {duration(statistics['seconds'])}"
        + (", then the document ended" if statistics["ended"] else ""),
    ]
    if early is not None:
        parts += [
            f"{statistics['tokens_per_second']:,.1f} tokens/s",
            f"{early:.2f} ms per token at first and {late:.2f} at last",
        ]
    return "; ".join([*parts, f"state of {count(statistics['state_bytes'])} bytes"])


def conversion_summary(result: Mapping[str, Any]) -> str:
    """Return what `longspan convert` prints, from the result of `longspan.convert.convert`."""
    attention = [f"{count(result['memory'])} positions of memory, which starts {_STARTS[result['start']]}"]
    attention += ["every position sees as many"] if result["same_length"] else []
    attention += [f"distances up to {count(result['clamp'])}"] if result["clamp"] else []
    return "\n".join(
        [
            f"{result['checkpoint']}: a checkpoint of {result['layout']}",
            f"{result['layers']} layers of width {result['dim']} with {result['heads']} heads, "
            f"{count(result['parameters'])} parameters, {count(result['vocabulary'])} words",
            "; ".join(attention),
            f"written to {result['folder']}",
        ]
    )


def model_card(recipe: Recipe, result: Mapping[str, Any]) -> str:
    """Return the README.md of a run folder, in the form the Hugging Face Hub reads.

    Args:
        recipe: The resolved recipe of the run.
        result: What `longspan.train.train` returns.
    """
    mixers = recipe.model.get("mixers", ["additive"])
    return _CARD.format(
        tags="\n".join(f"- {tag}" for tag in ("longspan", *dict.fromkeys(mixers))),
        name=recipe.name,
        description=recipe.description or f"A language model trained with the recipe `{recipe.name}`.",
        mixers=", ".join(mixers),
        parameters=count(result["parameters"]),
        segment=count(recipe.training["segment_length"]),
        scores=scores_table(SCORES, scored(result), "github"),
        data=data_table(result["data"], "github"),
        seconds=duration(result["seconds"]),
        speed=count(result["tokens_per_second"]),
        memory=size(result["peak_memory_bytes"]),
    )


_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
{tags}
metrics:
- perplexity
---

# {name}

{description}

Made with longspan: {mixers}, {parameters} parameters, trained on segments of {segment} tokens.

## Results

{scores}

The end of a document counts as a token. Bits per byte and per character are those of all tokens over the bytes and
characters of the text, whatever the tokens are.

## Use

```
longspan generate "PATH OF THIS FOLDER" --prompt "Some text" --max-new-tokens 200
```

or, from transformers (a document begins after an end token):

```python
import longspan.models  # makes the architecture known to transformers
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH OF THIS FOLDER")
tokenizer = AutoTokenizer.from_pretrained("PATH OF THIS FOLDER")
prompt = [tokenizer.eos_token_id, *tokenizer.encode("Some text", add_special_tokens=False)]
ids = model.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=True)
print(tokenizer.decode(ids[0, 1:]))
```

## Training

{data}

Training took {seconds} at {speed} tokens/s and {memory} of memory at most. `recipe.toml` holds every setting and
`environment.json` the versions and the machine; `longspan train recipe.toml` repeats the run.

## Limitations

The scores hold for text like that it was trained on. It continues text plausibly, not truthfully, and repeats what is
biased or private in its training data.
"""
