"""Loss against context length for several language models, and their relative effective context lengths.

    python benchmarks/context_length.py RUN [RUN ...] [--lengths 16,32,64,128,256,512] [--data PATH] [--split test]
                                        [--tokens 20000] [--stride 8] [--rows 32] [--share 0.1] [--threshold 0.01]
                                        [--picture FILE.png] [--json FILE]

All runs are scored on the same tokens, so they need the same tokenizer.

- "window": the model sees only the last tokens, as many as the length says. Windows start every `stride` tokens, or
  without overlap if the length is smaller; a stride of 1 is exact. Relative effective context lengths (Dai et al.
  2019) come from these losses, by `relative_context_lengths`. The runs are the group of models.

- "carried": states carried through the document, in segments as in training. For `relative` the length is that of the
  memory. Other mixers with states of constant size have one row, "whole document".

Beyond the segment length of training, marked in the picture, a model that generalises goes on improving.
"""

import argparse
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pictures
from tabulate import tabulate

from longspan.cli import quieten_transformers, use_fastest_exact_products
from longspan.data.text.long_documents import token_arrays, tokenize_documents
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.machine.environment import environment
from longspan.tasks.base.task import Run
from longspan.tasks.language_modelling.context_length import ContextLength, relative_context_lengths
from longspan.tasks.language_modelling.likelihood import attention_length, set_attention_length, token_losses
from longspan.tasks.language_modelling.options import TrainingOptions
from longspan.tasks.language_modelling.trainer import carries
from longspan.verbs.evaluate import load_split
from longspan.verbs.runs import load_run


def read_tokens(run: Run, data: str | None, split: str, most: int) -> list[np.ndarray]:
    """Return the first `most` tokens of the documents."""
    documents, _, split, _ = load_split(run, data, split)
    found = []
    for ids in token_arrays(
        tokenize_documents(documents, tokenizer_of(run.processor), run.recipe.data, f"Tokenising {split}")
    ):
        found.append(ids[:most])
        most -= len(found[-1])
        if not most:
            break
    return found


def measure(run: Run, documents: list[np.ndarray], lengths: list[int], stride: int, rows: int) -> dict[str, Any]:
    """Return the losses of all tokens, one after another, by context length: `window`, `carried` and `whole`."""

    def scored(**how: Any) -> np.ndarray:
        return np.concatenate(
            token_losses(run.model, documents, rows=rows, segment_length=segment, progress=True, **how)
        )

    options = run.recipe.options
    assert isinstance(options, TrainingOptions)
    segment = options.segment_length
    found: dict[str, Any] = {"window": {}, "carried": {}, "whole": None}
    for length in lengths:
        found["window"][length] = scored(context="sliding", window=length, stride=min(stride, length))
    if not carries(run.model, options):
        return found
    if attention_length(run.model) is not None:
        for length in lengths:
            set_attention_length(run.model, length)
            found["carried"][length] = scored()
    else:
        found["whole"] = scored()
    return found


def draw(curves: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw nats per token against context length, one colour per run."""
    across = "tokens seen (dotted: segment length in training)"
    with pictures.curves(path, across, "nats per token", height=5.4, below=True) as axes:
        for number, (path_of_run, curve) in enumerate(curves.items()):
            # Paths may be of any length, and would leave the picture no room.
            name, colour = f"…{path_of_run[-30:]}" if len(path_of_run) > 31 else path_of_run, f"C{number}"
            axes.plot(curve["window"].keys(), curve["window"].values(), "o-", color=colour, label=f"{name}, window")
            if curve["carried"]:
                axes.plot(
                    curve["carried"].keys(), curve["carried"].values(), "s--", color=colour, label=f"{name}, carried"
                )
            if curve["whole"] is not None:
                axes.axhline(curve["whole"], color=colour, linestyle="--", label=f"{name}, whole document")
            axes.axvline(curve["segment_length"], color=colour, linestyle=":", alpha=0.6)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run folders of language models")
    parser.add_argument("--lengths", default="16,32,64,128,256,512", help="context lengths in tokens")
    parser.add_argument("--data", help="other data than the first run's own")
    parser.add_argument("--split", default="test")
    parser.add_argument("--tokens", type=int, default=20000, help="score so many at the beginning of the documents")
    parser.add_argument("--stride", type=int, default=8, help="tokens from one window to the next")
    parser.add_argument("--rows", type=int, default=32, help="windows read at a time")
    parser.add_argument("--share", type=float, default=0.1, help="share of the tokens that is hardest, for the length")
    parser.add_argument("--threshold", type=float, default=0.01, help="least relative gain that counts")
    parser.add_argument("--picture", type=Path, help="draw the losses here, as PNG")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    quieten_transformers()
    use_fastest_exact_products()
    lengths = sorted(int(length) for length in arguments.lengths.split(","))
    documents: list[np.ndarray] = []
    losses: dict[str, dict[int, np.ndarray]] = {}
    curves: dict[str, dict[str, Any]] = {}
    for path in arguments.runs:
        run, name = load_run(path), str(path)
        tokens = read_tokens(run, arguments.data, arguments.split, arguments.tokens)
        documents = documents or tokens
        if [ids.tolist() for ids in tokens] != [ids.tolist() for ids in documents]:
            raise UserError(f"{name!r} does not read the same tokens as the first run: leave it out, or give --data.")
        found = measure(run, documents, lengths, arguments.stride, arguments.rows)
        losses[name] = found["window"]
        curves[name] = {
            "window": {length: mean(row) for length, row in found["window"].items()},
            "carried": {length: mean(row) for length, row in found["carried"].items()},
            "whole": None if found["whole"] is None else mean(found["whole"]),
            "segment_length": run.recipe.options.segment_length,
        }
    effective = relative_context_lengths(losses, share=arguments.share, threshold=arguments.threshold)
    print_tables(lengths, curves, effective)
    if arguments.picture:
        draw(curves, arguments.picture)
    if arguments.json:
        result = {
            "curves": curves,
            "relative_effective_context_length": {name: dataclasses.asdict(one) for name, one in effective.items()},
        }
        settings = {name: value for name, value in vars(arguments).items() if name not in ("json", "picture")}
        written = {"result": result, "settings": settings, "environment": environment()}
        arguments.json.write_text(json.dumps(written, indent=2, default=str) + "\n")


def mean(losses: np.ndarray) -> float:
    return float(losses.mean(dtype=np.float64))


def print_tables(lengths: list[int], curves: dict[str, dict[str, Any]], effective: dict[str, ContextLength]) -> None:
    rows = []
    for name, curve in curves.items():
        for way in ("window", "carried"):
            if curve[way]:
                rows.append([f"{name}, {way}", *curve[way].values(), None])
        if curve["whole"] is not None:
            rows.append([f"{name}, carried", *[None] * len(lengths), curve["whole"]])
    print(tabulate(rows, ["nats per token", *lengths, "whole document"], floatfmt=".4f", missingval="-"))
    print()
    rows = [
        [name, f"{'at least ' if one.at_least else ''}{one.length}", *(f"{gain:.2%}" for gain in one.gains.values())]
        for name, one in effective.items()
    ]
    steps = [f"{short} to {long}" for short, long in itertools.pairwise(lengths)]
    print(tabulate(rows, ["run", "effective length", *steps], disable_numparse=True))


if __name__ == "__main__":
    main()
