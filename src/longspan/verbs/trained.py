"""A run that has been trained, with all that can be done with it: `TrainedRun` and `load`."""

import dataclasses
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.data.processor import Processor, json_object
from longspan.options import make
from longspan.report.explanation import Explanation
from longspan.report.run_report import RunReport
from longspan.results import Evaluation, Statistics, TrainingResult
from longspan.results.scores import S
from longspan.results.tables import Predictions, PredictionStream, index_of
from longspan.tasks.base.options import GenerationOptions
from longspan.tasks.base.task import Recipe, Run
from longspan.training.uploads import push_run
from longspan.verbs import evaluate, explain, export, predict, report
from longspan.verbs.runs import as_run, load_run

#: Loading changes what transformers prints, for all threads.
_LOADING = threading.Lock()


class TrainedRun(TrainingResult[S]):
    """Result of `longspan.train` and `longspan.load`: the results of a run, its model, and predictions from it.

    Several threads may use one at once.
    """

    @functools.cached_property
    def loaded(self) -> Run:
        """The model with everything needed to use it, read from the run folder when it is first asked for."""
        with _LOADING:
            # Another thread may have been first.
            return self.__dict__.get("loaded") or load_run(self.folder)

    @property
    def model(self) -> PreTrainedModel:
        """The model, in evaluation mode, on the accelerator if there is one."""
        return self.loaded.model

    @property
    def processor(self) -> Processor:
        """Processor that turns examples into its inputs."""
        return self.loaded.processor

    @property
    def recipe(self) -> Recipe:
        """Recipe that it was trained with."""
        return self.loaded.recipe

    def predict(
        self, data: Any, *, min_probability: float | Mapping[str, float] = 0.0, **options: Any
    ) -> Predictions | PredictionStream:
        """Predictions of the model for examples.

        Args:
            data: Data in memory: a list of texts or of dicts, a DataFrame, a `datasets.Dataset`, or a dict of columns.
                Also an iterator of texts or dicts, of which a limited number is read ahead. Texts are never paths: for
                files, see `longspan.predict`.
            min_probability: Least probability of a label, or of each by its name; see `longspan.predict`.
            options: The task's prediction options, such as `beams` of translation.

        Returns:
            The predictions in order; an iterator of them where data are one. `to_pandas` makes a DataFrame of them. A
            row that cannot be read has an `error`.

        Raises:
            UserError: The data cannot be used, or lack a column.
        """
        found = predict.predict_given(self.loaded, data, min_probability=min_probability, **options)
        return Predictions(found, index_of(data)) if isinstance(data, Sized) else PredictionStream(found)

    def explain(self, given: Any, **options: Any) -> Explanation:
        """Say how much each part of an example speaks for what the model says about it; a notebook shows it.

        Args:
            given: The example: a text, an array, a picture or a dict. Or several in a list, a DataFrame or a
                `datasets.Dataset`, of which `row` names one.
            options: `row`, `of`, `at`, `method` and `check` of `longspan.explain`.

        Raises:
            UserError: It cannot be explained.
        """
        return explain.explain_given(self.loaded, given, **options)

    def evaluate(self, data: Any = None, split: str | None = None, **options: Any) -> Evaluation[S]:
        """Score the model on a split of its own data, or on other data; see `longspan.evaluate`."""
        return evaluate.evaluate(self.loaded, data, split, **options)

    def report(self, out: Path | str | None = None) -> RunReport:
        """Write `report.html`, a page about the run, to its folder or elsewhere; see `longspan.write_report`."""
        found = report.write_report(self.loaded, out)
        assert isinstance(found, RunReport)
        return found

    def generate(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """Continue a text; see `longspan.generate`."""
        return generate(self.loaded, prompt, **options)

    def export(self, out: Path | str, **options: Any) -> Any:
        """Write the model for use without longspan's trainer; see `longspan.export`."""
        return export.export(self.loaded, out, **options)

    def push_to_hub(self, repository: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload the run, but for its checkpoints, to a repository of the Hugging Face Hub, and return its address.

        Raises:
            UserError: The run is unfinished, or the Hub refuses or cannot be reached.
        """
        pushed = push_run(Path(self.folder), repository, message="A run of longspan", private=private, token=token)
        return pushed.repo_url.url


def load(folder: Path | str, *, checkpoint: int | str | None = None, allow_imports: Iterable[str] = ()) -> TrainedRun:
    """Load a run, as `train` returned it. Nothing in the folder is executed.

    Args:
        folder: The run folder.
        checkpoint: The model saved after this step, or "last", also of a run that is unfinished, whose results are
            then empty; by default, the final model.
        allow_imports: Packages or modules that may be imported for classes that the run names.

    Raises:
        UserError: It is missing, not a run folder, unfinished or damaged, has no such checkpoint, or it names code that
            has not been imported and may not be.
    """
    loaded = load_run(folder, checkpoint=checkpoint, allow_imports=allow_imports)
    path = Path(folder, "metrics.json")
    values = json_object(path) if checkpoint is None else {}
    run = TrainedRun.from_dict({**values, "task": loaded.task.name, "folder": str(folder)}, loaded.task.scores)
    run.__dict__["loaded"] = loaded
    return run


def trained(result: TrainingResult[S]) -> TrainedRun[S]:
    """Return the run that training made."""
    return TrainedRun(**{field.name: getattr(result, field.name) for field in dataclasses.fields(result)})


def generate(
    run: Run | Path | str,
    prompt: str = "",
    *,
    statistics: Statistics | None = None,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
    **options: Any,
) -> Iterator[str]:
    """Continue `prompt`, which starts a document; an empty one starts a new document.

    Args:
        run: The run folder of a language model, or what `longspan.verbs.runs.load_run` returned for it.
        prompt: The text to continue.
        statistics: Filled in as the text is made.
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        allow_imports: Packages or modules that dotted paths in the run folder may import.
        options: Any of `longspan.tasks.base.options.GenerationOptions`: `max_new_tokens`, `temperature`, `top_k`,
            `top_p`, `greedy`, `seed`, `ignore_end`.

    Yields:
        The text that follows the prompt, in pieces of whole characters, as soon as they are certain.

    Raises:
        UserError: A run whose models generate no text, options out of range, or a text longer than learned positions
            reach. Also a prompt with characters that a model of characters does not know.
    """
    loaded = as_run(run, checkpoint, allow_imports)
    chosen = make(GenerationOptions, options, "generating")
    return loaded.task.generate(loaded, prompt, chosen, Statistics() if statistics is None else statistics)
