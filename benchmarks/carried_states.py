"""Loss of language models by the number of segments before, with carried states and from empty states.

    python benchmarks/carried_states.py RUN [RUN ...] [--segments 64] [--streams 48] [--data PATH] [--split validation]
                                        [--rows 16] [--picture FILE.png] [--json FILE]

Streams have `segments` + 1 segments. They start at even distances in the longest document, and overlap. Each is read
twice: with states carried from segment to segment, and with an empty state for each segment. Losses are means over the
same tokens, so the difference is the gain from carried states. It is negative where they hide recent tokens.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pictures
from tabulate import tabulate

from longspan.cli import quieten_transformers, use_fastest_exact_products
from longspan.data.text.long_documents import token_arrays, tokenize_documents
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.machine.environment import environment
from longspan.tasks.base.task import Run
from longspan.tasks.language_modelling.likelihood import token_losses
from longspan.tasks.language_modelling.options import TrainingOptions
from longspan.tasks.language_modelling.trainer import carries
from longspan.verbs.evaluate import load_split
from longspan.verbs.runs import load_run


def streams_of(run: Run, arguments: argparse.Namespace, length: int) -> list[np.ndarray]:
    """Return overlapping pieces of `length` tokens of the longest document, whose beginnings are evenly spread."""
    documents, _, split, _ = load_split(run, arguments.data, arguments.split)
    pieces = tokenize_documents(documents, tokenizer_of(run.processor), run.recipe.data, f"Tokenising {split}")
    longest: np.ndarray = max(token_arrays(pieces), key=len)
    if len(longest) < length:
        raise UserError(
            f"expected a document of at least {length:,} tokens, got {len(longest):,} in the longest; lower --segments."
        )
    starts = np.unique(np.linspace(0, len(longest) - length, arguments.streams).astype(int))
    return [longest[start : start + length] for start in starts]


def measure(run: Run, arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean loss of each segment of the streams, carried and by itself, each `(segments + 1,)`."""
    options = run.recipe.options
    assert isinstance(options, TrainingOptions)
    segment = options.segment_length
    if not carries(run.model, options):
        raise UserError(f"expected models trained with carried states, got {run.folder}; leave it out.")
    documents = streams_of(run, arguments, segment * (arguments.segments + 1))

    def by_segment(**how: object) -> np.ndarray:
        found = token_losses(run.model, documents, rows=arguments.rows, segment_length=segment, progress=True, **how)  # type: ignore[arg-type]
        # The last target is the end of a document, which is none here.
        means: np.ndarray = (
            np.stack([row[:-1] for row in found]).reshape(len(found), -1, segment).mean((0, 2), np.float64)
        )
        return means

    return by_segment(), by_segment(context="sliding", window=segment, stride=segment)


def spans(segments: int) -> list[tuple[int, int]]:
    """Return the numbers of segments before that each column covers, as (first, last): doubling ranges from 0 and 1."""
    found, first = [(0, 0)], 1
    while first <= segments:
        found.append((first, min(2 * first - 1, segments)))
        first *= 2
    return found


def draw(found: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Draw what carried states are worth against the segments read before."""
    with pictures.curves(path, "segments read before", "nats per token less than by itself", below=True) as axes:
        for name, (carried, alone) in found.items():
            parts = spans(len(carried) - 1)
            gains = [float((alone - carried)[first : last + 1].mean()) for first, last in parts]
            axes.plot([(first + last) / 2 for first, last in parts], gains, "o-", label=name)
        axes.axhline(0, color="0.4", linewidth=1)
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xlim(left=-0.2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run folders of language models")
    parser.add_argument("--segments", type=int, default=64, help="segments read before the last one")
    parser.add_argument("--streams", type=int, default=48, help="pieces of the longest document")
    parser.add_argument("--data", help="other data than each run's own")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--rows", type=int, default=16, help="streams, or segments, read at a time")
    parser.add_argument("--picture", type=Path, help="draw the gains here, as PNG")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    quieten_transformers()
    use_fastest_exact_products()
    found = {}
    for path in arguments.runs:
        run = load_run(path)
        name = "+".join(run.model.config.mixers)
        found[str(path) if name in found else name] = measure(run, arguments)
    parts = spans(arguments.segments)
    rows = []
    for name, both in found.items():
        for how, losses in zip(("carried", "by itself"), both, strict=True):
            rows.append([f"{name}, {how}", *(losses[first : last + 1].mean() for first, last in parts)])
    headers = [f"{first}" if first == last else f"{first} to {last}" for first, last in parts]
    print(tabulate(rows, ["segments read before", *headers], tablefmt="github", floatfmt=".4f"))
    if arguments.picture:
        draw(found, arguments.picture)
    if arguments.json:
        curves = {name: {"carried": both[0].tolist(), "alone": both[1].tolist()} for name, both in found.items()}
        arguments.json.write_text(json.dumps({"curves": curves, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
