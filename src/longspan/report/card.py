"""The model card: the README.md of a run folder, in the form the Hugging Face Hub reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.report import count, duration, scores_table, size, stopped
from longspan.results import TrainingResult


@dataclass(frozen=True)
class CardParts:
    """What a task says in a model card.

    Attributes:
        description: What the model is, where the recipe does not say.
        made: What it does, after its mixers and size.
        results: How to read the scores.
        use: How to use it, in Markdown.
        limitations: What it is not good for.
        pipeline_tag: The Hub's name of the task, if it has one.
        tags: Tags of the Hub besides "longspan" and the mixers.
        metrics: The Hub's names of the scores.
    """

    description: str
    made: str
    use: str
    limitations: str
    results: str = ""
    pipeline_tag: str = ""
    tags: Sequence[str] = ()
    metrics: Sequence[str] = ()


def model_card(
    name: str, description: str, mixers: Sequence[str], result: TrainingResult, data_table: str, parts: CardParts
) -> str:
    """Return the card of a finished run.

    Args:
        name: The recipe's name.
        description: The recipe's description, perhaps empty.
        mixers: The mixers of the model.
        result: The result of training.
        data_table: The table of splits in Markdown.
        parts: What the task contributes.
    """
    head = ["library_name: transformers"]
    head += [f"pipeline_tag: {parts.pipeline_tag}"] if parts.pipeline_tag else []
    head += _listed("tags", ("longspan", *parts.tags, *dict.fromkeys(mixers))) + _listed("metrics", parts.metrics)
    return _CARD.format(
        head="\n".join(head),
        name=name,
        description=description or parts.description,
        mixers=", ".join(mixers),
        parameters=count(result.parameters),
        made=parts.made,
        scores="\n\n".join([scores_table(result.scores, "github"), *([parts.results] if parts.results else [])]),
        use=parts.use,
        data=data_table,
        stopped=f" It {ended}." if (ended := stopped(result)) else "",
        seconds=duration(result.seconds),
        speed=count(result.tokens_per_second),
        memory=size(result.peak_memory_bytes),
        limitations=parts.limitations,
    )


def _listed(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"- {value}" for value in values)] if values else []


_CARD = """\
---
{head}
---

# {name}

{description}

Made with longspan: {mixers}, {parameters} parameters{made}

## Results

{scores}

## Use

{use}

## Training

{data}

Training took {seconds} at {speed} tokens/s, with a peak memory of {memory}.{stopped} `recipe.toml` holds
every setting and `environment.json` the versions and the machine; `longspan train recipe.toml` repeats the run.

## Limitations

{limitations}
"""
