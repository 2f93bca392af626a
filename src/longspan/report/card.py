"""The model card: the README.md of a run folder, in the form the Hugging Face Hub reads."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import FileSystemLoader, Template

from longspan.machine.printing import code_names
from longspan.models.publishing import LIBRARY, NAME, REPOSITORY
from longspan.report import count, duration, number, scores_table, share, size, stopped
from longspan.report.templating import environment
from longspan.results import TrainingResult


@dataclass(frozen=True)
class Hub:
    """Names of the Hugging Face Hub for the models of a task.

    Attributes:
        pipeline_tag: The Hub's name of the task, if it has one.
        tags: Tags of the Hub besides "longspan" and the mixers.
        metrics: The Hub's names of the scores.
        metric_names: The Hub's name of a score where it is another, by the score's.
    """

    pipeline_tag: str = ""
    tags: Sequence[str] = ()
    metrics: Sequence[str] = ()
    metric_names: Mapping[str, str] = field(default_factory=dict)


def card_template(kind: type) -> Template:
    """Template of the cards of a task: `card.md` beside its class or a base class, else `base.md` of all tasks."""
    # A class of a notebook has no file.
    files = [getattr(sys.modules.get(base.__module__), "__file__", None) for base in kind.__mro__]
    folders = list(dict.fromkeys(Path(file).parent for file in files if file))
    made = environment(FileSystemLoader(folders), keep_trailing_newline=True)
    made.filters |= {"code_names": code_names, "count": count, "duration": duration, "number": number, "share": share}
    made.filters |= {"size": size, "percent": "{:.0%}".format}
    return made.select_template(["card.md", "base.md"])


def model_card(
    recipe: Any, result: TrainingResult, mixers: Sequence[str], data_table: str, *, curve: bool = True
) -> str:
    """The card of a finished run. Its license is left to its owner.

    Args:
        recipe: The resolved `Recipe`.
        result: The result of training.
        mixers: The mixers of the model.
        data_table: The table of splits in Markdown.
        curve: Whether the folder has a figure of the losses.
    """
    task, encoder = recipe.task, recipe.model.get("encoder")
    dataset = _hub_dataset(recipe.data.path)
    # Where it lies is nobody's business.
    local = Path(encoder).resolve().name if encoder and Path(encoder).expanduser().is_dir() else ""
    head = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag=task.hub.pipeline_tag or None,
        tags=list(dict.fromkeys((LIBRARY, *task.hub.tags, *mixers))),
        datasets=[dataset] if dataset else None,
        base_model=encoder if encoder and not local else None,
        metrics=list(task.hub.metrics) or None,
        model_name=recipe.name,
        eval_results=_results(result, task.hub, dataset),
    )
    split, final = list(result.scores.items())[-1] if result.scores else ("", None)
    module = task.model_class.__module__
    return card_template(type(task)).render(
        head=head.to_yaml(),
        recipe=recipe,
        data=recipe.data,
        options=recipe.options,
        result=result,
        labels=result.details.get("labels"),
        parts=(result.details.get("parts") or {}).get("values"),
        split=split,
        final=final,
        mixers=", ".join(mixers) + (f" over the outputs of {local or encoder}" if encoder else ""),
        scores=scores_table(result.scores, "github"),
        table=data_table,
        curve=curve,
        name=NAME,
        repository=REPOSITORY,
        module="longspan" if module.startswith("longspan.") else module,
        model_class=task.model_class.__name__,
        started=_started(result.details),
        stopped=f" It {ended}." if (ended := stopped(result)) else "",
    )


def _started(details: Mapping[str, Any]) -> str:
    """Sentences on what a model read or learned besides its examples."""
    texts, source = details.get("unlabelled"), details.get("start_from")
    if texts:
        test = f" The {texts['in_test']:,} texts of the test split are among them." if texts["test"] else ""
        return f" It also read {texts['documents']:,} texts without labels.{test}"
    return f" It started from the run `{Path(source['run']).name}`." if source else ""


def _hub_dataset(source: str) -> str:
    """The name of the Hub's data set, OWNER/NAME or NAME; empty for other data."""
    name = source.removeprefix("hub:")
    if name == source or name.startswith((".", "/", "~")):
        return ""
    return "/".join(name.split("/")[:2])


def _results(result: TrainingResult, hub: Hub, dataset: str) -> list[EvalResult]:
    """Each score of each split as the Hub lists it; those that are not finite have no form there."""
    return [
        EvalResult(
            task_type=hub.pipeline_tag or "other",
            dataset_type=dataset or "custom",
            dataset_name=dataset or "its owner's data",
            dataset_split=split,
            metric_type=hub.metric_names.get(score, score),
            metric_name=words,
            metric_value=value,
        )
        for split, scores in result.scores.items()
        for score, words in type(scores).shown().items()
        if (value := scores.numbers().get(score)) is not None and math.isfinite(value)
    ]
