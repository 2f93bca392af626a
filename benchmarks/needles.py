"""Needles in long documents: answers at known depths, in documents far longer than those of training.

    python benchmarks/needles.py --out FOLDER [--hay PATH ... --test-hay PATH ...] [--only additive,lstm,...]
                                 [--lengths 512,2048,8192,20000,50000] [--depths 11] [--each 20] [--documents 10000]
                                 [--model KEY=VALUE ...] [--seed 0] [--picture FILE.png] [--json FILE]

Each document is a stretch of text with facts such as "The code of Mirako is 48213." between its words. The question is
about one of them: "What is the code of Mirako?". All facts have the same form, so only the name finds the answer. No
name of a test document is in a training document. The recipe `question-answering` (with `model` below) trains models on
`--documents` of them, read once. These have 400 to 1,800 characters. Test documents have `--lengths` tokens, and the
fact is at a given depth: 0 is the beginning, 1 the end. An answer is right if it is the code, from its first character
to its last.

Text is that of the files given (folders: all .md and .txt files in them), other files in tests, or else random words.
NAME of `--only` may be several alternating mixers, `local+messages`, with settings of its own: `additive:depth=3`.
Rows of the table are appended to FOLDER/results.jsonl with commit and hardware; what is there is not measured again,
and runs in FOLDER are not trained again.
"""

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from longspan import predict, recipes, train
from longspan.cli import quieten_transformers, use_fastest_exact_products
from longspan.data.sources.formats.rows import Row
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.machine.environment import environment
from longspan.verbs.runs import load_run

FACTS = 8
SHORT, LONG = 400, 1800
MODEL = ["dim=64", "heads=4", "feed_forward_dim=128", "dropout=0.0"]
DATA = ["vocab_size=2000", "validation_fraction=0.02"]
TRAINING = ["num_train_epochs=1", "batch_tokens=8192", "per_device_train_batch_size=64"]
TRAINING += ["warmup_steps=50", "min_steps=0"]
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


def text_of(paths: Sequence[Path], characters: int, seed: int) -> str:
    """Return a text of `characters` characters: from files, or of random words."""
    if not paths:
        drawn = random.Random(seed)
        words = ["".join(drawn.choices("etaoinshrdlu", k=drawn.randint(1, 9))) for _ in range(2000)]
        return " ".join(drawn.choices(words, k=characters // 4))
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file() and (file == path or file.suffix in (".md", ".txt"))
    ]
    text, parts = 0, []
    for file in files:
        if text < characters:
            parts.append(file.read_text(encoding="utf-8"))
            text += len(parts[-1])
    if not text:
        raise UserError(f"expected text in {', '.join(map(str, paths))}, got none; name .md or .txt files.")
    return "\n".join(parts)[:characters]


def name(drawn: random.Random, known: set[str], apart: set[str]) -> str:
    """Return a name that is not among those `known` or `apart`, and add it to the former."""
    while True:
        found = "".join(
            drawn.choice(CONSONANTS) + drawn.choice(VOWELS) + (drawn.choice("nrsl") if drawn.random() < 0.3 else "")
            for _ in range(drawn.randint(2, 4))
        ).capitalize()
        if found not in known and found not in apart:
            known.add(found)
            return found


def document(
    drawn: random.Random, hay: str, facts: int, apart: set[str], depth: float | None, used: set[str]
) -> dict[str, Any]:
    """Return `hay` with facts before some of its words, as a row of a table. The question is about one of them.

    Args:
        drawn: What draws names, codes and places.
        hay: The text.
        facts: How many facts there are.
        apart: Names that are not drawn.
        depth: From 0 to 1, where the fact that is asked for is; None for anywhere.
        used: Names that were drawn are added here.
    """
    here: set[str] = set()
    names = [name(drawn, here, apart) for _ in range(facts)]
    used |= here
    codes = [str(drawn.randint(10000, 99999)) for _ in names]
    places = [drawn.random() for _ in names]
    if depth is not None:
        places[0] = depth
    spaces = [0, *(at for at, character in enumerate(hay) if character == " "), len(hay)]
    parts, last, length, start = [], 0, 0, 0
    for number in sorted(range(facts), key=places.__getitem__):
        cut = spaces[round(places[number] * (len(spaces) - 1))]
        parts += [hay[last:cut], f" The code of {names[number]} is {codes[number]}."]
        length, last = length + len(parts[-2]) + len(parts[-1]), cut
        if not number:
            start = length - 1 - len(codes[0])
    text = "".join([*parts, hay[last:]])
    answers = {"text": [codes[0]], "answer_start": [start]}
    assert text.startswith(codes[0], start)
    return {"question": f"What is the code of {names[0]}?", "context": text, "answers": answers}


def write_training(path: Path, hay: str, documents: int, seed: int) -> None:
    """Write the training documents and, beside them, the names in these."""
    drawn, used = random.Random(seed), set[str]()
    with path.open("w", encoding="utf-8") as file:
        for _ in range(documents):
            size = drawn.randint(SHORT, LONG)
            at = drawn.randrange(max(1, len(hay) - size))
            row = document(drawn, hay[at : at + size], drawn.randint(FACTS // 2, FACTS), set(), None, used)
            file.write(json.dumps(row) + "\n")
    path.with_suffix(".names.json").write_text(json.dumps(sorted(used)), encoding="utf-8")


def stretches(hay: str, offsets: np.ndarray, tokens: int, drawn: random.Random) -> Iterator[str]:
    """Yield stretches of `hay` of `tokens` tokens, forever; `offsets` (t, 2) are the characters of its tokens."""
    if len(offsets) <= tokens:
        raise UserError(
            f"expected a text of more than {tokens:,} tokens to test on, got {len(offsets):,}; give more, or lower "
            "--lengths."
        )
    while True:
        first = drawn.randrange(len(offsets) - tokens)
        yield hay[offsets[first, 0] : offsets[first + tokens - 1, 1]]


def trained(args: argparse.Namespace, entry: str) -> Path:
    """Return the run folder of a model, trained if it is not there."""
    folder: Path = args.out / f"{entry.replace('/', '_')}-{args.seed}"
    if (folder / "metrics.json").exists():
        return folder
    mixers, *own = entry.split(":")
    given = [f"data.train={args.out / 'train.jsonl'}", f"model.mixers={json.dumps(mixers.split('+'))}"]
    given += [f"data.{setting}" for setting in DATA] + [f"training.{setting}" for setting in TRAINING]
    given += [f"model.{setting}" for setting in [*MODEL, *args.model, *own]] + [f"training.seed={args.seed}"]
    train(recipes.load("question-answering", given), run=folder, overwrite=folder.exists(), progress=False)
    return folder


def measure(args: argparse.Namespace, entry: str, hay: str, apart: set[str], length: int) -> Iterator[dict[str, Any]]:
    """Yield how many questions on documents of a length are answered rightly, depth by depth."""
    run = load_run(trained(args, entry))
    [(_, offsets)] = tokens_with_offsets(tokenizer_of(run.processor), [hay])
    drawn = random.Random(f"{args.seed} {length}")
    # Without the facts, of about a dozen tokens each.
    hays = stretches(hay, offsets, max(8, length - 13 * FACTS), drawn)
    for depth in np.linspace(0, 1, args.depths).round(3).tolist():
        documents = [document(drawn, next(hays), FACTS, apart, depth, set()) for _ in range(args.each)]
        rows = [
            Row({"question": row["question"], "context": row["context"]}, str(at)) for at, row in enumerate(documents)
        ]
        began, right = time.perf_counter(), 0
        for row, found in zip(documents, predict(run, rows), strict=True):
            (code,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
            right += (found.answer, found.start) == (code, start)  # type: ignore[attr-defined]
        seconds = round(time.perf_counter() - began, 1)
        yield {"name": entry, "length": length, "depth": depth, "right": right, "of": args.each, "seconds": seconds}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the accuracy of each model by depth and length, a square for each."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    lengths = sorted({row["length"] for row in rows})
    depths = sorted({row["depth"] for row in rows})
    figure = Figure(figsize=(1.6 + 2.1 * len(names), 4.2), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, entry in zip(panels, names, strict=True):
        found = {(row["depth"], row["length"]): row["right"] / row["of"] for row in rows if row["name"] == entry}
        cells = [[found.get((depth, length), np.nan) for length in lengths] for depth in depths]
        image = axes.imshow(cells, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        axes.set_title(entry, fontsize=9)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=60, fontsize=8)
        axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths], fontsize=8)
        axes.set_facecolor("lightgray")
    panels[0].set_ylabel("depth of the answer")
    figure.supxlabel("tokens of the document", fontsize=10)
    figure.colorbar(image, ax=panels[-1], label="accuracy")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hay", type=Path, nargs="*", default=[], help="text around the needles in training")
    parser.add_argument("--test-hay", type=Path, nargs="*", default=[], help="text around those of the tests")
    parser.add_argument("--only", default="additive,linear,local+additive,lstm,softmax")
    parser.add_argument("--lengths", default="512,2048,8192,20000,50000", help="tokens of test documents")
    parser.add_argument("--depths", type=int, default=11)
    parser.add_argument("--each", type=int, default=20, help="test documents of each length and depth")
    parser.add_argument("--documents", type=int, default=10000, help="training documents")
    parser.add_argument("--model", metavar="KEY=VALUE", nargs="*", default=[], help="more settings of every model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="draw the table here, as PNG")
    parser.add_argument("--json", type=Path, help="write the table here")
    args = parser.parse_args()
    quieten_transformers()
    use_fastest_exact_products()
    args.out.mkdir(parents=True, exist_ok=True)
    training, results = args.out / "train.jsonl", args.out / "results.jsonl"
    if not training.with_suffix(".names.json").exists():
        hay = text_of(args.hay, min(4_000_000, 300 * args.documents), args.seed)
        write_training(training, hay, args.documents, args.seed)
    apart = set(json.loads(training.with_suffix(".names.json").read_text(encoding="utf-8")))
    lengths, entries = [int(length) for length in args.lengths.split(",")], args.only.split(",")
    test = text_of(args.test_hay, 1_300_000 if args.test_hay else 24 * max(lengths), args.seed + 1)
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    known = [row for row in map(json.loads, lines) if row["seed"] == args.seed]
    for entry, length in itertools.product(entries, lengths):
        if any((row["name"], row["length"]) == (entry, length) for row in known):
            continue
        found = []
        for row in measure(args, entry, test, apart, length):
            found.append({**row, "seed": args.seed})
            print(f"{entry}: {length:,} tokens, depth {row['depth']:g}: {row['right']}/{row['of']}", file=sys.stderr)
        known += found
        with results.open("a", encoding="utf-8") as file:
            for row in found:
                file.write(json.dumps({**row, "environment": environment()}) + "\n")
    rows = [row for row in known if row["name"] in entries and row["length"] in lengths]
    print(tabulate(*table(rows, lengths), tablefmt="github", disable_numparse=True))
    if args.json:
        args.json.write_text(json.dumps({"result": rows, "environment": environment()}, indent=1), encoding="utf-8")
    if args.picture:
        draw(rows, args.picture)


def table(rows: Sequence[dict[str, Any]], lengths: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return cells and headers: for each model and length, the accuracy over all depths and that of the worst."""
    cells = []
    for entry in dict.fromkeys(row["name"] for row in rows):
        line = [entry]
        for length in lengths:
            found = [row for row in rows if (row["name"], row["length"]) == (entry, length)]
            shares = [row["right"] / row["of"] for row in found]
            line.append(f"{sum(shares) / len(shares):.3f} ({min(shares):.2f})" if shares else "")
        cells.append(line)
    return cells, ["mixers", *(f"{length:,} tokens" for length in lengths)]


if __name__ == "__main__":
    main()
