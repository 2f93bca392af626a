"""Continue a text with a trained model: `generate`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longspan.results import Statistics
from longspan.tasks.base import Run
from longspan.tasks.options import GenerationOptions, make
from longspan.verbs.runs import as_run


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
        options: Any of `longspan.tasks.options.GenerationOptions`: `max_new_tokens`, `temperature`, `top_k`, `top_p`,
            `greedy`, `seed`, `ignore_end`.

    Yields:
        The text that follows the prompt, in pieces of whole characters, as soon as they are certain.

    Raises:
        UserError: A run whose models generate no text, options out of range, or a text longer than learned positions
            reach. Also a prompt with characters that a model of characters does not know.
    """
    loaded = as_run(run, checkpoint, allow_imports)
    chosen = make(GenerationOptions, options, "generating")
    return loaded.task.generate(loaded, prompt, chosen, Statistics() if statistics is None else statistics)
