"""Data and model of a training run, ready for its first step, in time if it has a deadline: `prepare_run`."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, set_seed

from longspan.data.sources.caching import SmallSample
from longspan.data.sources.loading import source_bytes
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.tasks.base.task import Counted, Prepared, Recipe, Run, check_validation
from longspan.training import processes
from longspan.training.depths import freeze
from longspan.verbs import starting

PREPARING_SHARE = 1 / 3
"""Share of a time budget in which data and model are to be ready; 2.5 times it where the first sample misleads."""

FIRST_BYTES = 1_000_000
"""Size of the first sample, from which the time for a larger one is estimated. Twice as much is read whole at once."""


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """Data and a model, before anything is written.

    Attributes:
        recipe: The recipe.
        prepared: The data.
        model: The model.
        words: For how many tokens the recipe has word vectors, if any.
        begun: Parts that the model has from another run, if any.
    """

    recipe: Recipe
    prepared: Prepared
    model: PreTrainedModel
    words: int | None
    begun: starting.StartedFrom | None


def prepare_run(recipe: Recipe, seed: int, clock: Callable[[], float], began: float) -> PreparedRun:
    """Read the data and build the model, from as large a sample of the rows as can be prepared in time.

    Without a deadline, with a `data.sample`, and in several processes, what the settings name is read.

    Args:
        recipe: The recipe.
        seed: Seed of the weights.
        clock: Seconds from any origin.
        began: When the time budget began.
    """
    minutes, size = recipe.options.max_minutes, bytes_to_sample(recipe)
    if not size:
        return prepare_whole_run(recipe, seed)
    note(f"a sample of the data is read first, as there are {size / 1e6:,.0f} MB and training.max_minutes={minutes:g}")
    share, before, limit = _rounded(FIRST_BYTES / size), (0.0, 0.0), PREPARING_SHARE * 60 * minutes
    while True:
        start = clock()
        try:
            ready = prepare_whole_run(recipe if share == 1 else recipe.sampled(share), seed)
        except SmallSample:
            share = min(1.0, 8 * share)
            continue
        if share == 1:
            return ready
        took, left = clock() - start, limit - (clock() - began)
        # A line through the last two samples.
        each = max(took - before[0], 1e-9) / (share - before[1])
        larger = share + (left - took) / each
        if not before[1] and took <= left:
            # The first one includes what does not grow with the rows, such as reading past those not drawn.
            larger = max(larger, 4 * share)
        larger = _rounded(min(1.0, larger))
        if larger < min(1.0, 2 * share):
            break
        before, share = (took, share), larger
        # It may be large.
        del ready
    note(
        f"this run reads a sample of {100 * share:.2g}% of the rows (data.sample={share:g}), so that preparing them "
        f"takes no more than about a third of training.max_minutes={minutes:g}; raise it, or set data.sample=1 to read "
        "all"
    )
    return ready


def _rounded(share: float) -> float:
    """A share with two digits, for people."""
    return float(f"{share:.2g}")


def bytes_to_sample(recipe: Recipe) -> int:
    """Size of the data of which a run is to find out whether they are too many for its time; 0 if of none."""
    data = recipe.data
    if not recipe.options.max_minutes or data.sample or not data.samples or processes.count() > 1:
        return 0
    if getattr(data, "streaming", False):
        return 0
    size = source_bytes(data, recipe.task.columns(data))
    return size if size > 2 * FIRST_BYTES else 0


def prepare_whole_run(recipe: Recipe, seed: int) -> PreparedRun:
    """Read the data that the settings name, and build the model."""
    start_run = processes.in_each(lambda: starting.start_of(recipe))
    prepared = processes.in_turn(lambda: _prepared_data(recipe))
    set_seed(seed)
    model, words, begun = processes.in_each(lambda: build_model(recipe, prepared, start_run))
    return PreparedRun(recipe, prepared, model, words, begun)


def _prepared_data(recipe: Recipe) -> Prepared:
    recipe.task.processor.check(recipe.model, recipe.data)
    if recipe.model.get("encoder") and recipe.options.word_vectors:
        raise UserError(
            "expected training.word_vectors or model.encoder, whose outputs take the place of word vectors, got both; "
            "leave one of them out."
        )
    prepared = recipe.task.prepare(recipe)
    check_validation(prepared.splits)
    if remark := prepared.processor.remark(prepared.splits["validation"]):
        note(remark)
    return prepared


def build_model(
    recipe: Recipe, prepared: Prepared, start: Run | None, counted: Counted | None = None
) -> tuple[PreTrainedModel, int | None, starting.StartedFrom | None]:
    """Return a new model, for how many tokens the recipe has word vectors, if any, and what is that of another run.

    Its wide part is `counted` if that is given.
    """
    # Not every task from elsewhere knows what was counted before.
    model = recipe.task.build_model(recipe, prepared, *(() if counted is None else (counted,)))
    begun = starting.copy_weights(model, start, prepared) if start else None
    if begun and processes.rank() == 0:
        print(f"longspan: {begun.announcement()}", file=sys.stderr)
    freeze(model, recipe.options.freeze)
    path = recipe.options.word_vectors
    words = prepared.processor.load_vectors(model, Path(path)) if path else None
    return model, words, begun
