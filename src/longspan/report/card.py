"""The model card: the README.md of a run folder, in the form the Hugging Face Hub reads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from longspan.models.publishing import LIBRARY, REPOSITORY
from longspan.report import count, duration, scores_table, size, stopped
from longspan.results import TrainingResult


@dataclass(frozen=True)
class CardParts:
    """What a task says in a model card.

    Attributes:
        description: What the model is, where the recipe does not say.
        made: What it does, after its mixers and size.
        results: How to read the scores.
        use: How to use it, in Markdown. Code begins with the line `longspan.models.publishing.NAME` and loads from
            `name`, so that it runs in the run folder and, once uploaded, everywhere.
        limitations: What it is not good for.
        pipeline_tag: The Hub's name of the task, if it has one.
        tags: Tags of the Hub besides "longspan" and the mixers.
        metrics: The Hub's names of the scores.
        metric_names: The Hub's name of a score where it is another, by the score's.
    """

    description: str
    made: str
    use: str
    limitations: str
    results: str = ""
    pipeline_tag: str = ""
    tags: Sequence[str] = ()
    metrics: Sequence[str] = ()
    metric_names: Mapping[str, str] = field(default_factory=dict)


def model_card(
    name: str,
    description: str,
    mixers: Sequence[str],
    result: TrainingResult,
    data_table: str,
    parts: CardParts,
    source: str = "",
    encoder: str | None = None,
) -> str:
    """Return the card of a finished run. Its license is left to its owner.

    Args:
        name: The recipe's name.
        description: The recipe's description, perhaps empty.
        mixers: The mixers of the model.
        result: The result of training.
        data_table: The table of splits in Markdown.
        parts: What the task contributes.
        source: The recipe's `data.path`, which may name a data set of the Hub.
        encoder: The recipe's `model.encoder`: a folder, or a model of the Hub.
    """
    dataset, begun = _hub_dataset(source), result.details.get("start_from")
    # Where it lies is nobody's business.
    local = Path(encoder).resolve().name if encoder and Path(encoder).expanduser().is_dir() else ""
    head = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag=parts.pipeline_tag or None,
        tags=list(dict.fromkeys((LIBRARY, *parts.tags, *mixers))),
        datasets=[dataset] if dataset else None,
        base_model=encoder if encoder and not local else None,
        metrics=list(parts.metrics) or None,
        model_name=name,
        eval_results=_results(result, parts, dataset),
    )
    return _CARD.format(
        head=head.to_yaml(),
        name=name,
        description=description or parts.description,
        mixers=", ".join(mixers) + (f" over the outputs of {local or encoder}" if encoder else ""),
        parameters=count(result.parameters),
        made=parts.made,
        scores="\n\n".join([scores_table(result.scores, "github"), *([parts.results] if parts.results else [])]),
        use=parts.use,
        repository=REPOSITORY,
        data=data_table,
        started=f" It started from the run `{Path(begun['run']).name}`." if begun else "",
        stopped=f" It {ended}." if (ended := stopped(result)) else "",
        seconds=duration(result.seconds),
        speed=count(result.tokens_per_second),
        memory=size(result.peak_memory_bytes),
        limitations=parts.limitations,
    )


def _hub_dataset(source: str) -> str:
    """Return the name of the Hub's data set, OWNER/NAME or NAME; empty for other data."""
    name = source.removeprefix("hub:")
    if name == source or name.startswith((".", "/", "~")):
        return ""
    return "/".join(name.split("/")[:2])


def _results(result: TrainingResult, parts: CardParts, dataset: str) -> list[EvalResult]:
    """Return each score of each split as the Hub lists it; those that are not finite have no form there."""
    return [
        EvalResult(
            task_type=parts.pipeline_tag or "other",
            dataset_type=dataset or "custom",
            dataset_name=dataset or "its owner's data",
            dataset_split=split,
            metric_type=parts.metric_names.get(score, score),
            metric_name=words,
            metric_value=value,
        )
        for split, scores in result.scores.items()
        for score, words in type(scores).shown().items()
        if (value := scores.numbers().get(score)) is not None and math.isfinite(value)
    ]


_CARD = """\
---
{head}
---

# {name}

{description}

Made with longspan: {mixers}, {parameters} parameters{made}

## Results

{scores}

![losses and scores over the epochs](learning_curve.png)

## Use

With the package `longspan` installed:

{use}

The commands take folders: `hf download {repository} --local-dir FOLDER` makes one.

## Training

{data}

Training took {seconds} at {speed} tokens/s, with a peak memory of {memory}.{started}{stopped} `recipe.toml` holds
every setting and `environment.json` the versions and the machine; `longspan train recipe.toml` repeats the run.

## Limitations

{limitations}
"""
