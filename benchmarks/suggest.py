"""Labels that `longspan suggest` saves: accuracy by the number of labels, chosen at random or by the model.

    python benchmarks/suggest.py FOLDER [--sets imdb,books,movie_reviews] [--seeds 3] [--labels 500]

FOLDER has the unpacked data: aclImdb (https://ai.stanford.edu/~amaas/data/sentiment), movie_reviews (of NLTK), and
books/train/AUTHOR/TITLE.md. Passages are 60 words of one of the first 12 authors with 60,000 words. The model is the
n-gram part of the recipe `classify`, on the first 256 tokens of each text. It begins with 100 labels drawn at random,
30 of which are for validation, and asks for 50 at a time: as `suggest` does, or by the margin alone. Labels drawn at
random are the same 100, and more.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from longspan import recipes
from longspan.tasks.base.ngrams import counts
from longspan.verbs.suggest import diverse, word_vectors

FIRST, HELD_OUT, STEP, COMPARED = 100, 30, 50, 1000
Texts = tuple[list[str], list[str]]


def files(folder: Path, names: Sequence[str], many: int, choose: random.Random) -> Texts:
    """Texts of folders of classes, in random order."""
    found = [(file, name) for name in names for file in sorted((folder / name).glob("*.txt"))]
    choose.shuffle(found)
    return [file.read_text(encoding="utf-8") for file, _ in found[:many]], [name for _, name in found[:many]]


def imdb(folder: Path, choose: random.Random) -> tuple[Texts, Texts]:
    train, test = (files(folder / "aclImdb" / split, ("neg", "pos"), 1500, choose) for split in ("train", "test"))
    return train, (test[0][:1000], test[1][:1000])


def movie_reviews(folder: Path, choose: random.Random) -> tuple[Texts, Texts]:
    texts, labels = files(folder / "movie_reviews", ("neg", "pos"), 2000, choose)
    return (texts[:1200], labels[:1200]), (texts[1200:], labels[1200:])


def books(folder: Path, choose: random.Random) -> tuple[Texts, Texts]:
    rows, authors = list[tuple[str, str]](), 0
    for author in sorted(path for path in (folder / "books" / "train").iterdir() if path.is_dir()):
        words = " ".join(file.read_text(encoding="utf-8") for file in sorted(author.glob("*.md"))).split()
        if len(words) >= 60_000 and authors < 12:
            authors += 1
            starts = choose.sample(range(2000, len(words) - 2000, 60), 300)
            rows += [(" ".join(words[start : start + 60]), author.name) for start in starts]
    choose.shuffle(rows)
    texts, labels = map(list, zip(*rows, strict=True))
    return (texts[:1500], labels[:1500]), (texts[1500:2500], labels[1500:2500])


def fitted(train: Texts, other: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Probabilities of other texts by the n-gram part fitted to a few, (n, c), and the labels."""
    few = pd.DataFrame({"text": train[0], "label": train[1]})
    held_out, few = few[:HELD_OUT], few[HELD_OUT:]
    held_out = held_out[held_out["label"].isin(few["label"])]
    test = pd.DataFrame({"text": other, "label": [few["label"].iloc[0]] * len(other)})
    recipe = recipes.load("classify", ["data.max_length=256"]).reading(
        {"train": few, "validation": held_out, "test": test}
    )
    prepared = recipe.task.prepare(recipe)
    wide, _ = recipe.task.counts()()._fitted(recipe, prepared)
    logits = counts._logits(wide, prepared.splits["test"])
    names = prepared.config["id2label"]
    return logits.double().softmax(1).numpy(), [names[number] for number in range(len(names))]


def next_ones(way: str, shares: np.ndarray, names: Sequence[str], vectors: np.ndarray) -> np.ndarray:
    """Places of the next examples to label."""
    ordered = np.sort(shares, 1)
    uncertainties = 1 - (ordered[:, -1] - ordered[:, -2])
    best = np.argsort(-uncertainties, kind="stable")[:COMPARED]
    if way == "margin":
        return best[:STEP]
    predicted = [names[number] for number in shares[best].argmax(1)]
    return best[diverse(uncertainties[best], predicted, vectors[best], STEP)]


def curve(way: str, pool: Texts, test: Texts, seed: int, labels: int, most: int) -> Iterator[tuple[int, float]]:
    """Test accuracy by the number of labels."""
    order = np.random.default_rng(seed).permutation(len(pool[0])).tolist()
    if way == "random":
        sizes = [labels]
    else:
        vectors, sizes = word_vectors(pool[0]), list(range(FIRST, most + 1, STEP))
    chosen = order[:FIRST]
    for size in sizes:
        if way == "random":
            chosen = order[:size]
        others = sorted(set(range(len(pool[0]))) - {*chosen}) if way != "random" else []
        asked = [pool[0][place] for place in others]
        train = [pool[0][place] for place in chosen], [pool[1][place] for place in chosen]
        shares, names = fitted(train, [*asked, *test[0]])
        right = [names[number] == label for number, label in zip(shares[len(asked) :].argmax(1), test[1], strict=True)]
        yield size, float(np.mean(right))
        if others:
            places = np.array(others)
            chosen = [*chosen, *places[next_ones(way, shares[: len(asked)], names, vectors[places])].tolist()]


SETS: dict[str, Callable[[Path, random.Random], tuple[Texts, Texts]]] = {
    "imdb": imdb, "books": books, "movie_reviews": movie_reviews,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--ways", default="random,suggest,margin")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labels", type=int, default=500)
    parser.add_argument("--most", type=int, default=350, help="labels at which choosing ends")
    args = parser.parse_args()
    for name in args.sets.split(","):
        pool, test = SETS[name](args.folder, random.Random(0))
        goal = None
        for way in args.ways.split(","):
            began = time.process_time()
            curves = [dict(curve(way, pool, test, seed, args.labels, args.most)) for seed in range(args.seeds)]
            mean = {size: float(np.mean([one[size] for one in curves])) for size in curves[0]}
            goal = mean[args.labels] if way == "random" else goal
            enough = [size for size, accuracy in mean.items() if goal is not None and accuracy >= goal]
            result = {"set": name, "way": way, "pool": len(pool[0]), "test": len(test[0]), "seeds": args.seeds}
            result["accuracy"] = {size: round(accuracy, 4) for size, accuracy in mean.items()}
            result |= {"labels needed": min(enough, default=None), "seconds": round(time.process_time() - began)}
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
