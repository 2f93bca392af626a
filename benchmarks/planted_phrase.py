"""Explain documents of 50,000 words in which a planted phrase decides: is its window found, and does it decide?

    python benchmarks/planted_phrase.py [--mixers A,B] [--documents 100] [--words 50000] [--json FILE] [key=value ...]

Documents are noise of 1,000 words. Those of the class "yes" contain a phrase of four words in one order; half of the
others have the same words in another order, so no word alone decides. A model with each mixer is trained on documents
of 100 to 4,000 words, more of them short, with the recipe `classify` without counts of n-grams. Then documents of
50,000 words with the phrase are explained by removal scores. Columns: how many are classified as "yes"; in how many of
these the window of 64 words with the highest score has a word of the phrase; in how many the prediction changes without
these words, and without as many random windows; and the median time of an explanation, as a multiple of that of a
forward pass.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from longspan import train
from longspan.data.batches.streams import pad
from longspan.explanations.methods import removal
from longspan.explanations.question import Question
from longspan.machine.environment import environment

MIXERS = (
    "additive", "messages", "bounded_memory", "competitive_gate", "competitive_lookup", "linear", "gated_linear",
    "delta", "local", "convolution", "recurrent",
)  # fmt: skip
PHRASE = ("amber", "birch", "cobalt", "delta")
WINDOW, NOISE = 64, 1000
SETTINGS = (
    "data.tokens=words", "data.max_length=0", "model.wide=false", "model.dim=32", "model.heads=4", "model.depth=1",
    "model.feed_forward_dim=64", "model.short_convolution=4", "model.pooling=max", "model.position=none",
    "model.dropout=0.0", "training.num_train_epochs=15", "training.min_steps=0", "training.max_minutes=0",
    "training.learning_rate=0.003", "training.batch_tokens=16384", "training.per_device_train_batch_size=16",
)  # fmt: skip


def document(words: int, label: str, choose: random.Random) -> tuple[str, int]:
    """Return a document of a class, and the place of its phrase."""
    text = [f"w{choose.randrange(NOISE)}" for _ in range(words)]
    place = choose.randrange(words - len(PHRASE))
    order = list(PHRASE)
    while label == "no" and order == list(PHRASE):
        choose.shuffle(order)
    if label == "yes" or choose.random() < 0.5:
        text[place : place + len(PHRASE)] = order
    return " ".join(text), place


def trained(mixer: str, count: int, settings: Sequence[str], folder: Path) -> Any:
    """Return the run of a mixer."""
    choose, rows = random.Random(0), []
    for number in range(count):
        label = "yes" if number % 2 else "no"
        rows.append({"text": document(round(100 * 40 ** choose.random()), label, choose)[0], "label": label})
    return train(
        "classify", [*SETTINGS, f"model.mixers={mixer}", *settings], data=rows, run=folder / "run", progress=False
    )


def explained(run: Any, documents: int, words: int) -> dict[str, float]:
    """Explain documents, and return the row of the table."""
    choose, found = random.Random(1), []
    model, names = run.model, run.model.config.id2label
    yes = next(number for number, name in names.items() if name == "yes")
    forward, times = [], []
    for _ in range(documents):
        text, place = document(words, "yes", choose)
        (encoded,) = run.processor.encode({"text": [text]}, run.recipe.data)
        batch = pad([encoded.streams], run.processor.streams)
        question = Question(model, batch, lambda logits: logits[:, yes] - logits[:, 1 - yes], lambda logits: logits)
        real = question.real
        began = time.perf_counter()
        whole = float(question.values(real.unsqueeze(0)))
        forward.append(time.perf_counter() - began)
        if whole <= 0:
            continue
        began = time.perf_counter()
        scores = removal(question)
        times.append(time.perf_counter() - began)
        sums = torch.stack([part.sum() for part in scores.split(WINDOW)])
        strongest = int(sums.argmax())
        inside = place // WINDOW <= strongest <= (place + len(PHRASE) - 1) // WINDOW
        kept = real.repeat(6, 1)
        for row in range(6):
            first = place if row == 0 else choose.randrange(words - len(PHRASE))
            kept[row, first : first + len(PHRASE)] = False
        values = question.values(kept)
        found.append((inside, bool(values[0] <= 0), float((values[1:] <= 0).float().mean())))
    shares = [sum(column) / max(1, len(found)) for column in zip(*found, strict=True)] or [0.0] * 3
    ratio = statistics.median(times) / statistics.median(forward) if times else 0.0
    return {
        "yes": len(found) / documents,
        "found": shares[0],
        "changed": shares[1],
        "changed at random": shares[2],
        "forward passes": ratio,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="further settings of the recipe `classify`")
    parser.add_argument("--mixers", default=",".join(MIXERS))
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--train", type=int, default=4000, help="documents for training")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_intermixed_args()
    print(json.dumps(environment()))
    rows: dict[str, dict[str, float]] = {}
    for mixer in given.mixers.split(","):
        with tempfile.TemporaryDirectory() as folder:
            run = trained(mixer, given.train, given.settings, Path(folder))
            validation = run.scores["validation"].accuracy
            rows[mixer] = {"validation accuracy": validation, **explained(run, given.documents, given.words)}
        print(mixer, json.dumps(rows[mixer]), flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    headers = ["mixer", *next(iter(rows.values()))]
    print(tabulate([[name, *(f"{x:.3f}" for x in row.values())] for name, row in rows.items()], headers))


if __name__ == "__main__":
    main()
