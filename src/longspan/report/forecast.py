"""Results of `longspan plan` for people: `forecast_summary`."""

from longspan.report import count, duration, number, size, table
from longspan.results.forecast import Forecast, RunForecast, Suggestion


def forecast_summary(found: Forecast, style: str = "simple") -> str:
    """Summary that `longspan plan` prints: a table, where softmax is cheaper, and settings that fit into memory."""
    key = found.length_key
    headers = ["mixer", *([key] if key else []), "s/step", "tokens/s", "peak memory", "steps", "time", ""]
    rows = [
        [
            run.mixer,
            *(["all" if not run.length else count(run.length)] if key else []),
            number(run.seconds_per_step),
            count(run.tokens_per_second),
            size(run.peak_memory_bytes),
            count(run.steps),
            duration(run.seconds),
            _notes(run),
        ]
        for run in found.runs
    ]
    there = "unknown" if found.memory_bytes is None else size(found.memory_bytes)
    told = [f"Memory there is: {there} ({found.device}). Time includes validations and checkpoints, not reading."]
    if key and found.longest > 1:
        told.append(f"The longest training example has {count(found.longest)} positions.")
    told += [_crossing(name, at) for name, at in found.cheaper_from.items()]
    if any(not run.measured for run in found.runs):
        told.append("extrapolated: the longest batches were not measured, as they would take long or much memory.")
    # Each suggestion is a paragraph: words to copy are never filled up with those of the next.
    return "\n\n".join([table(headers, rows, style), "\n".join(told), *map(_suggestion, found.suggestions)])


def _notes(run: RunForecast) -> str:
    notes = (["does not fit"] if run.fits is False else []) + ([] if run.measured else ["extrapolated"])
    return ", ".join(notes)


def _crossing(name: str, at: int | None) -> str:
    if at is None:
        return f"softmax takes less time per step than {name} at all lengths."
    if not at:
        return f"{name} takes less time per step than softmax at all lengths."
    return f"softmax takes less time per step than {name} below about {count(at)} positions, more above."


def _suggestion(found: Suggestion) -> str:
    words = " ".join(found.overrides)
    if not words:
        return f"{found.mixer} does not fit into memory with any batch; choose a smaller model."
    if found.needed:
        return f"{found.mixer} fits into memory with: {words}"
    return f"{found.mixer} fits as it is; the largest batch that fits, up to 64 times the recipe's: {words}"
