"""A first task, which `make quickstart` runs: the section of a program in which each word stands.

    python benchmarks/sections.py [--out runs/quickstart] [--seed 0] [--modules 240] [--picture FILE.png] [--json FILE]

The documents are the modules of Python's standard library with 1,000 to 16,384 words, without tests. They are on every
machine. Each word is in a class, in a function, or in neither: Python's own parser gives the labels. The models read
words alone, without line breaks and indentation. So a label follows from words that may be thousands of words away. A
hash of a module's name draws its split, so that a module is in the same split on all machines.

The network (recipe `sections`) reads each module in full. The other models are logistic regressions on the words around
the word to label: five on each side by position, and in the second one, the counts of a hundred on each side. They are
fitted to every fourth word. OUT gets the run folder, the test split, and a page that explains the label of one word.
"""

import argparse
import ast
import hashlib
import json
import multiprocessing
import os
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

SHORTEST, LONGEST = 1_000, 16_384
WITHOUT = {
    "__pycache__",
    "dist-packages",
    "encodings",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
}
DISTANCES = (0, 10, 100, 1_000)
AROUND, BAG, EVERY = 5, 100, 4
COUNTS, WIDER, NETWORK = f"{2 * AROUND + 1} words", f"{2 * BAG + 1} words", "longspan, all words"
MODULES, EPOCHS = 240, 3
Document = dict[str, list[str]]


def sections(source: str) -> Document:
    """The words of a program and the section of each."""
    kinds = ["module"] * (source.count("\n") + 2)

    def visit(node: ast.AST, kind: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = kind
            if isinstance(child, ast.ClassDef):
                inner = "class"
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "module":
                inner = "function"
            if inner != kind:
                assert isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                first = min(each.lineno for each in (child, *child.decorator_list))
                last = child.end_lineno or first
                kinds[first : last + 1] = [inner] * (last + 1 - first)
            visit(child, inner)

    visit(ast.parse(source), "module")
    lines = [re.findall(r"\w+|[^\w\s]", line) for line in source.split("\n")]
    words = [word for line in lines for word in line]
    return {
        "tokens": words,
        "labels": [kind for line, kind in zip(lines, kinds[1:], strict=False) for _ in line],
    }


def modules() -> Iterator[tuple[str, Document]]:
    """Yield the modules of the standard library, in the order of a hash of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(folder) for path in folder.rglob("*.py")]
    names = [name for name in names if not WITHOUT & set(name.parts)]
    for name in sorted(names, key=lambda name: hashlib.sha256(name.as_posix().encode()).digest()):
        source = (folder / name).read_text("utf-8").replace("\f", "")
        document = sections(source)
        if SHORTEST <= len(document["tokens"]) <= LONGEST:
            yield name.as_posix(), document


def split_of(name: str) -> str:
    """The split of a module: a fifth is for tests, a tenth for validation."""
    drawn = hashlib.sha256(name.encode()).digest()[-1] / 256
    return "test" if drawn < 0.2 else "validation" if drawn < 0.3 else "train"


def label_by_words_around(train: Sequence[Document], test: Sequence[Document], bag: int) -> list[np.ndarray]:
    """Labels of the words of `test` by logistic regression on the words around each."""
    from scipy import sparse
    from sklearn.linear_model import SGDClassifier

    frequent = Counter(word.lower() for document in train for word in document["tokens"]).most_common(8_000)
    numbers = {word: number for number, (word, _) in enumerate(frequent, 2)}
    size, margin = len(numbers) + 2, max(AROUND, bag)

    def features(document: Document) -> Any:
        ids = np.pad([numbers.get(word.lower(), 1) for word in document["tokens"]], margin)
        windows = np.lib.stride_tricks.sliding_window_view(ids, 2 * margin + 1)
        middle = windows[:, margin - AROUND : margin + AROUND + 1] + size * np.arange(2 * AROUND + 1)
        columns = np.hstack([middle, windows + size * (2 * AROUND + 1)]) if bag else middle
        # Counts have smaller weights, as there are more of them.
        values = np.repeat([1, 0.3], [2 * AROUND + 1, columns.shape[1] - 2 * AROUND - 1]).astype(np.float32)
        starts = np.arange(len(columns) + 1) * columns.shape[1]
        cells = (np.tile(values, len(columns)), columns.ravel(), starts)
        return sparse.csr_matrix(cells, (len(columns), size * (2 * AROUND + 2)))

    model = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=5, tol=None, random_state=0)
    # Neighbouring windows have nearly the same words.
    rows = sparse.vstack([features(each)[::EVERY] for each in train])
    model.fit(rows, np.concatenate([each["labels"][::EVERY] for each in train]))
    return [model.predict(features(document)) for document in test]


def since_start(labels: Sequence[str]) -> np.ndarray:
    """Number of words between each word and the first one of its section."""
    starts = np.flatnonzero(np.array(["", *labels[:-1]]) != np.array(labels))
    return np.arange(len(labels)) - np.repeat(starts, np.diff(starts, append=len(labels)))


def layer_seconds(name: str, **options: int) -> float:
    """Time of a layer on the longest document, forward and backward."""
    import torch

    from longspan import mixers

    layer = mixers.build(name, dim=64, **options)
    layer(torch.randn(1, 64, 64)).sum().backward()
    start = time.perf_counter()
    layer(torch.randn(1, LONGEST, 64)).sum().backward()
    return time.perf_counter() - start


def write_picture(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    """Draw accuracy against the distance to the start of the section."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for number, name in enumerate((COUNTS, WIDER, NETWORK), 2):
        heights = [100 * float(row[number]) for row in rows]
        bars = axes.bar(np.arange(len(rows)) + 0.27 * (number - 3), heights, 0.25, label=name)
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(rows)), [str(row[0]) for row in rows])
    axes.set(xlabel="words since the section began", ylabel="accuracy (%)", ylim=(0, 132), yticks=range(0, 101, 20))
    axes.legend(title="The model reads", ncols=3, loc="upper center", fontsize=8, title_fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", type=int, default=MODULES, help="number of modules")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    # The process that fits the simple models imports this file, and needs none of these.
    import torch

    import longspan
    from longspan.cli import quieten_transformers
    from longspan.machine.environment import environment
    from longspan.machine.limits import cores
    from longspan.machine.session import use_fastest_exact_products

    quieten_transformers()
    use_fastest_exact_products()
    begun = time.perf_counter()
    data: dict[str, list[Document]] = {"train": [], "validation": [], "test": []}
    for _, (name, document) in zip(range(arguments.modules), modules(), strict=False):
        data[split_of(name)].append(document)
    train, test = data["train"], data["test"]
    words = sum(len(each["tokens"]) for each in (*train, *data["validation"], *test))
    number = sum(map(len, data.values()))
    print(
        f"{number} modules of the standard library, {words:,} words: is each word in a class, a function, or neither?"
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    written = arguments.out / "test.jsonl"
    written.write_text("".join(json.dumps(each) + "\n" for each in test))
    # The simple models have a core of their own.
    torch.set_num_threads(max(1, cores() - 1))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        simple = {
            name: pool.submit(label_by_words_around, train, test, bag) for name, bag in ((COUNTS, 0), (WIDER, BAG))
        }
        run = longspan.train(
            "sections",
            data=data,
            run=arguments.out / "run",
            overwrite=True,
            num_train_epochs=EPOCHS,
            seed=arguments.seed,
        )
        found = {name: future.result() for name, future in simple.items()}
    torch.set_num_threads(cores())
    found[NETWORK] = [np.array(each.labels) for each in run.predict([{"tokens": each["tokens"]} for each in test])]
    right = {
        name: np.concatenate([labels == each["labels"] for labels, each in zip(rows, test, strict=True)])
        for name, rows in found.items()
    }
    distance = np.concatenate([since_start(each["labels"]) for each in test])
    rows = []
    for low, high in zip(DISTANCES, (*DISTANCES[1:], LONGEST), strict=True):
        here = (distance >= low) & (distance < high)
        name = f"{low:,} to {high - 1:,}" if high < LONGEST else f"{low:,} or more"
        rows.append([name, f"{here.mean():.0%}", *(f"{each[here].mean():.3f}" for each in right.values())])
    rows.append(["all", "100%", *(f"{each.mean():.3f}" for each in right.values())])
    print(f"\nAccuracy on {len(test)} test modules, each read in full, by the words that a model reads:\n")
    print(tabulate(rows, ["words since the section began", "share", *right], disable_numparse=True))
    linear, quadratic = layer_seconds("sru"), layer_seconds("softmax", heads=4)
    print(
        f"\nOne layer, {LONGEST:,} words, forward and backward: {1000 * linear:.0f} ms (sru); softmax attention "
        f"{1000 * quadratic:.0f} ms, {quadratic / linear:.0f} times as long."
    )
    # A word far from the start of its section, which only the network labels correctly.
    only = right[NETWORK] & ~right[WIDER] & (np.concatenate([each["labels"] for each in test]) == "class")
    place = int(np.argmax(np.where(only, distance, -1)))
    ends = np.cumsum([len(each["tokens"]) for each in test])
    row = int(np.searchsorted(ends, place, "right"))
    at = place - int(ends[row]) + len(test[row]["tokens"]) + 1
    page = arguments.out / "explanation.html"
    longspan.explain(run, [test[row]], at=at).save(page)
    # As installed, also where its environment is not active.
    program = os.path.relpath(Path(sys.executable).with_name("longspan"))
    command = f"{program} explain {arguments.out / 'run'} {written} --row {row + 1} --at {at} --out {page}"
    print(
        f"\nThe network's reasons for a word {distance[place]:,} words after the beginning of its class: {page}, from"
    )
    print(f"  {command}")
    if arguments.picture:
        write_picture(arguments.picture, rows)
    if arguments.json:
        scores = {name: round(float(each.mean()), 4) for name, each in right.items()}
        seconds = time.perf_counter() - begun
        result = {"seed": arguments.seed, "accuracy": scores, "rows": rows, "seconds": round(seconds, 1)}
        with arguments.json.open("a") as file:
            file.write(json.dumps({"result": result, "environment": environment()}) + "\n")


if __name__ == "__main__":
    main()
